package fiber

import "time"

// closeTime is the interval in which the peer of a closed connection must accept some of the unsent data; otherwise the
// connection is reset.
const closeTime = 10 * time.Second

// linger arms a timer, which calls lingering, for a closed connection with unsent data.
func (c *Conn) linger(l *loop) {
	c.wr.deadline = c.delivered() // a closed connection needs no write deadline, so the field holds the value at the last check
	l.timers.arm(c, l.now+int64(closeTime))
}

// delivered returns a number that grows by each byte that the peer's system accepts: those of TCP that it has
// acknowledged, otherwise minus those that it has not accepted. The latter may count a send that is under way twice.
func (c *Conn) delivered() int64 {
	if n, _ := acked(c.fd); n > 0 {
		return int64(n)
	}
	n := unsent(c.fd)
	for _, s := range []*sendBuffer{c.out, c.sending} {
		if s != nil {
			n += s.n
		}
	}
	return int64(-n)
}

// minDelivered is how many bytes a peer must accept in each closeTime.
const minDelivered = 16 << 10

// lingering resets a closed connection whose peer accepts less than minDelivered in closeTime.
func (c *Conn) lingering(l *loop) bool {
	switch {
	case !c.closed:
		return false
	case c.out == nil && c.flight == 0:
		return true // the connection has ended
	}
	if !l.closing && !c.abort && c.delivered() >= c.wr.deadline+minDelivered {
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
