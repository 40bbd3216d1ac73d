package fiber

import (
	"net"

	"github.com/headpond/headpond/internal/splice"
)

// spliceSockets moves received data from src to dst, as long as it comes in bulk, if both are TCP connections of
// package net. On return it holds no data. t, which has nothing to send, says whether splicing is possible, and keeps
// what the next call needs.
func spliceSockets(t *Transfer, src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	dst, before := splitBefore(dst)
	from, to := socketOf(src), socketOf(dst)
	if from == nil || to == nil || t.next == transferCopied {
		t.next = transferCopied
		return nil, nil
	}
	defer t.Drop() // also when moved or spliced panics
	for {
		n, err, done := t.spliceSocket(from, to, splice.PipeSize)
		if err != nil || !done {
			return err, nil
		}
		t.n = n
		if before != nil {
			before()
		}
		if spliced != nil {
			spliced(n)
		}
		if err := t.emptySocket(moved); err != nil {
			return nil, err
		}
		t.dropPipe(0)
		if n < minSplice {
			return nil, nil
		}
	}
}

// socketOf returns c if it is a TCP connection of package net, without a layer such as TLS.
func socketOf(c net.Conn) *net.TCPConn {
	c = written(c)
	if w, ok := c.(*adapted); ok {
		c = w.Conn
	}
	tcp, _ := c.(*net.TCPConn)
	return tcp
}
