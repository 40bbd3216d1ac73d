//go:build linux && (amd64 || arm64)

package fiber

import (
	"io"

	"golang.org/x/sys/unix"
)

// move implements poller. It writes from the buffer into which the kernel has received.
func (p *uring) move(c, d *Conn) (n int, full bool, readErr, writeErr error) {
	if !p.readable(c) {
		return 0, false, nil, nil
	}
	if len(c.in) == 0 {
		_, err, _ := p.read(c, nil)
		if err == nil {
			err = io.EOF
		}
		return 0, false, err, nil
	}
	full = len(c.in) >= recvSize
	for len(c.in) > 0 {
		m, err, done := p.write(d, c.in)
		if err != nil {
			return n, false, nil, err
		}
		if !done {
			return n, false, nil, nil
		}
		n += m
		p.consume(c, m)
	}
	return n, full, nil, nil
}

func (p *uring) socket(c *Conn, s *side, tried bool) (ready bool) {
	switch {
	case s == &c.wr && tried:
		p.pollOut(c)
	case s == &c.wr:
		return c.out == nil && c.sending == nil || c.outErr != 0
	case tried: // poll, as a receive would take the data
		p.poll(c, kindPollIn, unix.POLLIN|unix.POLLRDHUP)
		c.polling = true
	default:
		return !c.polling
	}
	return false
}

// polledOut continues sending, or wakes the fiber that waits for room or for the end of a connect. The kernel completes
// the poll also, unasked and at once, when the peer has ended its stream. In that case a multishot poll reports when
// there is room; repeated single polls would keep the loop busy.
func (p *uring) polledOut(c *Conn, e cqe) {
	over, end := e.flags&cqeMore == 0, e.res == unix.POLLRDHUP && !(c.closed && c.abort)
	if over {
		c.flight--
		c.pollingOut = false
	}
	switch {
	case end && over && (c.full || !c.closed):
		p.poll(c, kindPollOut, unix.POLLOUT).len = pollMultishot
		c.pollingOut = true
	case !end && !over:
		p.cancel(c, kindPollOut)
	}
	switch {
	case end:
	case c.full:
		c.full = false
		p.transmit(c)
	default:
		c.wakeWriter(p.loop)
	}
}
