package fiber

import "time"

// closeTime is the interval in which the peer of a closed connection must accept some of the unsent data; otherwise the
// connection is reset.
const closeTime = 10 * time.Second

// linger arms a timer, which calls lingering, for a closed connection with unsent data.
func (c *Conn) linger(l *loop) {
	c.wr.deadline = c.unsent() // a closed connection needs no write deadline, so the field holds the number of unsent bytes at the last check
	l.timers.arm(c, l.now+int64(closeTime))
}

// unsent returns how many written bytes the peer's system has not acknowledged.
func (c *Conn) unsent() int64 {
	n := unsent(c.fd)
	for _, s := range []*sendBuffer{c.out, c.sending} {
		if s != nil {
			n += s.n
		}
	}
	return int64(n)
}

// lingerLeast is how many bytes a peer must accept in each closeTime.
const lingerLeast = 16 << 10

// lingering resets a closed connection whose peer accepts less than lingerLeast in closeTime.
func (c *Conn) lingering(l *loop) bool {
	switch {
	case !c.closed:
		return false
	case c.out == nil && c.flight == 0:
		return true // the connection has ended
	}
	if !l.closing && !c.abort && c.unsent() <= c.wr.deadline-lingerLeast {
		c.linger(l)
		return true
	}
	c.abort = true
	if c.out != nil || c.sending != nil { // so that the peer does not take a part of the stream for the whole
		resetOnClose(c.fd, true)
	}
	l.poller.close(c)
	return true
}
