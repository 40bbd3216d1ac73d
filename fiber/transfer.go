package fiber

import (
	"errors"
	"net"
	"sync"
)

// Transfer moves bytes from one connection to another in two steps, for code that frames the data.
// Between Receive and Send the caller knows the number of bytes, and each step returns errors of
// one connection only. Bulk data between two plain TCP connections of one loop, or of package net,
// stays within the kernel. Other data goes through a buffer, which is held only from Receive to
// Send.
//
// The zero value is ready to use. A Transfer is for one user at a time. A caller that gives up between the two steps
// must call Drop.
type Transfer struct {
	piped          // data in the kernel
	buf   []byte   // data that is not in the kernel; from a pool of buffers of its size
	n     int      // bytes received and not sent yet
	since int      // bytes spliced since the last pause
	next  transfer // how to receive next
}

// transfer says how to receive, by the last piece received.
type transfer uint8

const (
	transferBulk        transfer = iota // splice: data is expected in large pieces
	transferSmallPieces                 // copy, until a piece is large
	transferCopied                      // copy always: these connections cannot be spliced
)

// spliceThreshold is the least limit of a Receive that splices. Measured through the gateway against copies: splicing saves
// a tenth of the processor time of a POST of 64 KiB, of which 48 KiB come after the read of the head; a quarter (epoll)
// to a half (io_uring) with 256 KiB; and more than half with 1 MiB. Shorter data is a single read and write, in which
// copying is the smaller part.
const spliceThreshold = 32 << 10

// minSplice is how much a splice must move so that the next piece is spliced too.
const minSplice = 16 << 10

// transferLarge bounds the bytes that one Receive copies. A source that cannot be waited for without a Read gets a
// buffer of transferSmall, which it may hold for long; crypto/tls returns at most that much at a time.
const (
	transferLarge = 64 << 10
	transferSmall = 16 << 10
)

var (
	largeBuffers = sync.Pool{New: func() any { return new([transferLarge]byte) }}
	smallBuffers = sync.Pool{New: func() any { return new([transferSmall]byte) }}
)

// Receive waits for data of src and takes at most limit bytes of it; limit is positive. dst is the connection for the
// following Send. The error is src's, as Read's: of the deadline, or io.EOF at the end of the stream; then no data is
// on its way. Only the one reader of src may call Receive.
func (t *Transfer) Receive(src Stream, dst net.Conn, limit int64) (n int, err error) {
	if t.n > 0 {
		panic("fiber: Receive of a Transfer that has something to send")
	}
	if t.next == transferBulk && limit >= spliceThreshold {
		if n, err, done := t.splice(src, dst, limit); done {
			t.n = n
			return n, err
		}
	}
	if n, err = t.read(src, limit); n > 0 {
		t.n, err = n, nil // the next Receive returns the error again
	} else {
		t.putBuffer()
	}
	switch {
	case t.next == transferCopied:
	case n >= minSplice:
		t.next = transferBulk
	default:
		t.next = transferSmallPieces
	}
	return n, err
}

// read receives into a buffer. It holds the buffer during the wait only if src cannot be waited for without a Read.
func (t *Transfer) read(src Stream, limit int64) (int, error) {
	switch err := waitForSocket(src); {
	case errors.Is(err, errors.ErrUnsupported) || err == nil && limit <= transferSmall:
		t.buf = smallBuffers.Get().(*[transferSmall]byte)[:]
	case err != nil:
		return 0, err
	default:
		t.buf = largeBuffers.Get().(*[transferLarge]byte)[:]
	}
	return src.Read(t.buf[:min(limit, int64(len(t.buf)))])
}

// Send sends the bytes that Receive took, and calls moved with the size of every piece that dst has
// accepted. The error is dst's, as Write's; bytes that dst has not accepted are lost. moved must neither wait nor end
// its goroutine; it may set deadlines.
func (t *Transfer) Send(dst net.Conn, moved func(n int)) error {
	defer t.Drop() // also when moved panics
	if t.buf == nil {
		return t.empty(dst, moved)
	}
	n, err := dst.Write(t.buf[:t.n])
	if n > 0 {
		moved(n)
	}
	return err
}

// Held returns how much memory the Transfer holds between Receive and Send, in bytes; data in the kernel does not
// count.
func (t *Transfer) Held() int { return len(t.buf) }

// Drop discards received data that was not sent, if there is any.
func (t *Transfer) Drop() {
	t.dropPipe(t.n)
	t.putBuffer()
	t.n = 0
}

func (t *Transfer) putBuffer() {
	switch len(t.buf) {
	case transferLarge:
		largeBuffers.Put((*[transferLarge]byte)(t.buf))
	case transferSmall:
		smallBuffers.Put((*[transferSmall]byte)(t.buf))
	}
	t.buf = nil
}
