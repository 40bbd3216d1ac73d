package tcpproxy

import (
	"io"
	"net"
	"sync"
)

// bufferSize is what one read takes at most: a TLS record with its header fits
// twice, and bulk data is spliced.
const bufferSize = 32 << 10

// buffers holds *[bufferSize]byte. What is in one belongs to whoever took it;
// nothing beyond the bytes just read is ever written anywhere.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// copy moves bytes from src to dst until one of them ends: readErr is why src
// did, io.EOF at the end of its stream; else writeErr is why dst did. moved is
// told of every piece.
func (r *relay) copy(src, dst *side, moved func(int)) (readErr, writeErr error) {
	if len(src.pending) > 0 {
		n, err := dst.conn.Write(src.pending)
		src.pending = nil
		moved(n)
		if err != nil {
			return nil, err
		}
	}
	if c, ok := src.conn.(copier); ok {
		return c.CopyTo(dst.conn, moved, func(n int) { r.session.proxy.spliced.Add(uint64(n)) })
	}
	if src.fast != nil {
		return r.copyFast(src, dst, moved)
	}
	return copyPlain(src.conn, dst.conn, moved)
}

// copier is a connection of an engine (package fiber), which copies in its own
// way.
type copier interface {
	CopyTo(dst net.Conn, moved, spliced func(int)) (readErr, writeErr error)
}

// copyPlain copies through a buffer it holds all the time.
func copyPlain(src io.Reader, dst io.Writer, moved func(int)) (readErr, writeErr error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := src.Read(buf[:])
		if n > 0 {
			m, err := dst.Write(buf[:n])
			moved(m)
			if err != nil {
				return nil, err
			}
		}
		if err != nil {
			return err, nil
		}
	}
}
