package fiber

import "time"

// closeTime bounds how long a closed connection that was written to waits for a peer that does not read; then it is reset.
const closeTime = 10 * time.Second

// linger has lingering look after a closed connection that has something to send.
func (c *Conn) linger(l *loop) {
	c.wr.deadline = c.unsent() // nobody writes any more: how much it was at the last look
	l.timers.arm(c, l.now+int64(closeTime))
}

// unsent is how much of what was written the peer's system has not taken.
func (c *Conn) unsent() int64 {
	n := unsent(c.fd)
	for _, s := range []*sendBuffer{c.out, c.sending} {
		if s != nil {
			n += s.n
		}
	}
	return int64(n)
}

// lingerLeast is how much a peer has to take in each closeTime.
const lingerLeast = 16 << 10

// lingering gives up sending for a closed connection whose peer takes next to nothing.
func (c *Conn) lingering(l *loop) bool {
	switch {
	case !c.closed:
		return false
	case c.out == nil && c.flight == 0:
		return true // gone
	}
	if !l.closing && !c.abort && c.unsent() <= c.wr.deadline-lingerLeast {
		c.linger(l)
		return true
	}
	c.abort = true
	if c.out != nil || c.sending != nil { // the peer must not take what it has got for everything
		resetOnClose(c.fd, true)
	}
	l.poller.close(c)
	return true
}
