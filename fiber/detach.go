package fiber

import (
	"bytes"
	"errors"
	"net"
	"os"
)

// Detach turns the connection into one of package net, for code on goroutines, which would otherwise make a trip to the
// loop for each operation. ahead is received data that was not read; it precedes the data that conn reads. Written data
// is sent first, and Detach waits until running Reads and Writes have ended. On success this Conn is closed. On an
// error it is unchanged, or closed.
func (c *Conn) Detach() (conn net.Conn, ahead []byte, err error) {
	take := func(l *loop) { conn, ahead, err = c.detach(l) }
	if l := c.loop.Load(); l.isCaller() {
		take(l)
	} else {
		c.onItsLoop(l, take, &err)
	}
	return conn, ahead, c.opError("detach", err)
}

func (c *Conn) detach(l *loop) (net.Conn, []byte, error) {
	for _, s := range []*side{&c.rd, &c.wr} {
		if err := c.begin(l, s); err != nil {
			return nil, nil, err
		}
		defer c.end(l, s)
	}
	for !l.poller.socket(c, &c.wr, false) {
		if err := c.wait(l, &c.wr); err != nil {
			return nil, nil, err
		}
	}
	for !l.poller.stop(c) {
		if err := c.wait(l, &c.rd); err != nil {
			return nil, nil, err
		}
	}
	switch {
	case c.inErr != 0:
		return nil, nil, c.inErr
	case c.outErr != 0:
		return nil, nil, c.outErr
	}
	c.LocalAddr() // so that this Conn still knows its addresses
	c.RemoteAddr()
	ahead := bytes.Clone(c.in)
	if !l.poller.remove(c) {
		return nil, nil, errors.New("the kernel has an operation under way")
	}
	l.table.drop(c.slot)
	l.timers.disarm(c)
	c.in = nil
	c.setClosed()
	l.conns.Add(-1)
	l.open--
	f := os.NewFile(uintptr(c.fd), "socket")
	defer f.Close()
	conn, err := net.FileConn(f)
	return conn, ahead, err
}
