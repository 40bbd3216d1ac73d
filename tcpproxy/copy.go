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
		if _, ok := dst.conn.(copier); !ok { // TLS
			return copyWaiting(c, dst.conn, moved)
		}
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
	io.Reader
	WaitReadable() error
	CopyTo(dst net.Conn, moved, spliced func(int)) (readErr, writeErr error)
}

// copyWaiting copies through a buffer that it holds while there is something in it.
func copyWaiting(src copier, dst io.Writer, moved func(int)) (readErr, writeErr error) {
	for {
		if err := src.WaitReadable(); err != nil {
			return err, nil
		}
		buf := buffers.Get().(*[bufferSize]byte)
		_, readErr, writeErr := copyPiece(src, dst, buf[:], moved)
		buffers.Put(buf)
		if readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// smallSize is what a direction holds while it waits and its source cannot be waited for without a
// buffer, as under TLS. What is said in small pieces mostly fits.
const smallSize = 1 << 10

// copyPlain copies through a small buffer, and through a large one while reads fill more than the
// small one.
func copyPlain(src io.Reader, dst io.Writer, moved func(int)) (readErr, writeErr error) {
	small := make([]byte, smallSize)
	for {
		n, readErr, writeErr := copyPiece(src, dst, small, moved)
		if n == smallSize && readErr == nil && writeErr == nil {
			readErr, writeErr = copyMuch(src, dst, moved)
		}
		if readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// copyMuch copies until a read brings little. Without an error the copying is to go on.
func copyMuch(src io.Reader, dst io.Writer, moved func(int)) (readErr, writeErr error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, readErr, writeErr := copyPiece(src, dst, buf[:], moved)
		if n < smallSize || readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// copyPiece moves what one read brings.
func copyPiece(src io.Reader, dst io.Writer, buf []byte, moved func(int)) (n int, readErr, writeErr error) {
	n, readErr = src.Read(buf)
	if n > 0 {
		var m int
		m, writeErr = dst.Write(buf[:n])
		moved(m)
	}
	if writeErr != nil {
		readErr = nil
	}
	return n, readErr, writeErr
}
