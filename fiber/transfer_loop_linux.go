//go:build linux && (amd64 || arm64)

package fiber

import (
	"net"

	"golang.org/x/sys/unix"
)

// spliceLoop is splice from a connection of the caller's loop; known is false for any other.
func (t *Transfer) spliceLoop(src Stream, dst net.Conn, limit int64) (n int, done, known bool, err error) {
	c, ok := unwrapAhead(src).(*Conn)
	if !ok {
		return 0, false, false, nil
	}
	l := c.loop.Load()
	d, ok := written(dst).(*Conn)
	if !ok || !l.isCaller() || d.loop.Load() != l || c.unix || d.unix {
		t.next = transferCopied
		return 0, false, true, nil
	}
	n, err, done = t.spliceConn(l, c, int(min(limit, spliceLimit)))
	return n, done, true, c.opError("read", err)
}

// spliceConn waits for bulk on c and splices once.
func (t *Transfer) spliceConn(l *loop, c *Conn, limit int) (n int, err error, done bool) {
	if err := c.begin(l, &c.rd); err != nil {
		return 0, err, true
	}
	defer c.end(l, &c.rd)
	f := l.current
	f.bulk = true
	defer func() { f.bulk = false }()
	if t.since >= spliceBurst {
		t.since = 0
		if err := c.yield(l); err != nil {
			return 0, err, true
		}
	}
	for !l.poller.stop(c) {
		if err := c.wait(l, &c.rd); err != nil {
			return 0, err, true
		}
	}
	for waited := false; ; {
		if c.received() { // the data is in memory already
			return 0, nil, false
		}
		if !l.poller.socket(c, &c.rd, false) {
			if err := c.wait(l, &c.rd); err != nil {
				return 0, err, true
			}
			continue
		}
		pipe, n, err := fillPipe(c.fd, limit)
		if err == unix.EAGAIN && !waited { //nolint:errorlint // made by the system call
			waited = true
			l.poller.socket(c, &c.rd, true)
			continue
		}
		t.pipe = pipe
		t.since += n
		c.unsure = true // the splice may have emptied the socket
		return t.filled(n, err)
	}
}

// emptyLoop is empty into a connection of a loop; known is false for any other.
func (t *Transfer) emptyLoop(dst net.Conn, moved func(int)) (err error, known bool) {
	d, ok := written(dst).(*Conn)
	if !ok {
		return nil, false
	}
	l := d.loop.Load()
	if !l.isCaller() {
		return d.opError("write", net.ErrClosed), true // d was moved between the two steps, which is not allowed
	}
	return d.opError("write", t.emptyConn(l, d, moved)), true
}

func (t *Transfer) emptyConn(l *loop, d *Conn, moved func(int)) error {
	if err := d.begin(l, &d.wr); err != nil {
		return err
	}
	defer d.end(l, &d.wr)
	for !l.poller.socket(d, &d.wr, false) { // written data comes first
		if err := d.wait(l, &d.wr); err != nil {
			return err
		}
	}
	if d.outErr != 0 { // a splice would return another error
		return d.outErr
	}
	return emptyPipe(l, d, t.pipe, t.n, func(m int) {
		t.n -= m
		moved(m)
	})
}
