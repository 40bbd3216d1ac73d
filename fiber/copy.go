package fiber

import (
	"errors"
	"io"
	"net"
	"sync"
)

// copySize is the most that one read of a copy takes: a TLS record with its header fits twice.
const copySize = 32 << 10

// copyBuffers holds *[copySize]byte. A buffer belongs to the copy that took it. Only the bytes just read into it are ever written out,
// so that no data of another session can leak.
var copyBuffers = sync.Pool{New: func() any { return new([copySize]byte) }}

// copyLittle is the size of the buffer that a copy holds while it waits for a source that cannot be waited for without one.
const copyLittle = 1 << 10

// Copy implements Stream.CopyTo by reading and writing, for connections without a better way.
func Copy(src Stream, dst net.Conn, moved func(n int)) (readErr, writeErr error) {
	for {
		err := src.WaitReadable()
		if errors.Is(err, errors.ErrUnsupported) {
			return copyHolding(src, dst, moved, nil)
		}
		if err != nil {
			return err, nil
		}
		if _, readErr, writeErr = copyOnce(src, dst, moved); readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// copyHolding copies through a small buffer; through a large one while reads fill the small one; and by splicing, where that is
// possible, while reads fill the large one.
func copyHolding(src, dst net.Conn, moved, spliced func(int)) (readErr, writeErr error) {
	small := make([]byte, copyLittle)
	var bulk *Transfer // nil until there is bulk
	for {
		n, readErr, writeErr := copyPiece(src, dst, small, moved)
		for n >= copyLittle && readErr == nil && writeErr == nil {
			if n, readErr, writeErr = copyOnce(src, dst, moved); n == copySize && readErr == nil && writeErr == nil {
				if bulk == nil {
					bulk = &Transfer{}
				}
				readErr, writeErr = spliceSockets(bulk, src, dst, moved, spliced)
				n = 0 // no bulk now: wait with the small buffer
			}
		}
		if readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
}

// copyOnce is copyPiece through a pooled buffer.
func copyOnce(src io.Reader, dst io.Writer, moved func(int)) (n int, readErr, writeErr error) {
	buf := copyBuffers.Get().(*[copySize]byte)
	defer copyBuffers.Put(buf)
	return copyPiece(src, dst, buf[:], moved)
}

// copyPiece copies the data of one read.
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
