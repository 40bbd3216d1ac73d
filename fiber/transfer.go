package fiber

import (
	"errors"
	"net"
	"sync"
)

// Transfer moves bytes from one connection to another in two steps, for code that frames the data: between Receive and
// Send it knows how many bytes are on their way, and each step has errors of one connection only. Bulk between two
// plain TCP connections of one loop, or of package net, stays within the kernel; everything else goes through a buffer,
// which is held only from Receive to Send.
//
// The zero value is ready. A Transfer is for one user at a time. A caller that gives up between the two steps calls
// Drop.
type Transfer struct {
	piped          // data in the kernel
	buf   []byte   // data that is not in the kernel; from the pool of its size
	n     int      // bytes received and not sent
	since int      // bytes spliced without a pause
	next  transfer // how to receive next
}

// transfer is what the last piece indicates about the next one.
type transfer uint8

const (
	transferBulk   transfer = iota // much at once, as far as is known
	transferLittle                 // copied until a piece is large
	transferCopied                 // these connections cannot be spliced
)

// spliceWorth is the least limit of a Receive that splices. Measured through the gateway, beside the same with copies: of a POST of
// 64 KiB, of which 48 KiB come behind the head's read, splicing saves a tenth of the processor time, of 256 KiB a quarter (epoll) to a
// half (io_uring), of 1 MiB more than half. Less is a single read and write, of which the copy is the smaller part.
const spliceWorth = 32 << 10

// spliceLeast is the least that a splice must move for the next to be worth while.
const spliceLeast = 16 << 10

// transferLarge is the most that one Receive copies. A source that can be waited for only by a Read gets a buffer of
// transferSmall, which it may hold for long; crypto/tls returns no more than that at a time.
const (
	transferLarge = 64 << 10
	transferSmall = 16 << 10
)

var (
	largeBuffers = sync.Pool{New: func() any { return new([transferLarge]byte) }}
	smallBuffers = sync.Pool{New: func() any { return new([transferSmall]byte) }}
)

// Receive waits for data of src and takes at most limit bytes of it; limit is more than 0. dst is the connection that
// Send will use. The error is src's, as Read's: of the deadline, io.EOF at the end of the stream; nothing is on its way
// then. Only the one reader of src may call it.
func (t *Transfer) Receive(src Stream, dst net.Conn, limit int64) (n int, err error) {
	if t.n > 0 {
		panic("fiber: Receive of a Transfer that has something to send")
	}
	if t.next == transferBulk && limit >= spliceWorth {
		if n, err, done := t.splice(src, dst, limit); done {
			t.n = n
			return n, err
		}
	}
	if n, err = t.read(src, limit); n > 0 {
		t.n, err = n, nil // an error comes again
	} else {
		t.putBuffer()
	}
	switch {
	case t.next == transferCopied:
	case n >= spliceLeast:
		t.next = transferBulk
	default:
		t.next = transferLittle
	}
	return n, err
}

// read receives into a buffer, which it holds only if src cannot be waited for without.
func (t *Transfer) read(src Stream, limit int64) (int, error) {
	switch err := waitForSocket(src); {
	case errors.Is(err, errors.ErrUnsupported):
		t.buf = smallBuffers.Get().(*[transferSmall]byte)[:]
	case err != nil:
		return 0, err
	default:
		t.buf = largeBuffers.Get().(*[transferLarge]byte)[:]
	}
	return src.Read(t.buf[:min(limit, int64(len(t.buf)))])
}

// Send sends the bytes that Receive took, and calls moved with the size of every piece, of 64 KiB at most, that dst has
// taken. The error is dst's, as Write's; bytes that dst has not taken are lost. moved must neither wait nor end its
// goroutine; it may set deadlines.
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

// Held returns how much memory the Transfer holds between Receive and Send, in bytes: none for data that stays in the kernel.
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
