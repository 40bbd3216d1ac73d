package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Sizes of a Reader's and a Writer's memory.
const (
	smallBuffer = 512       // kept by a Reader that cannot wait without one; most short queries fit
	largeBuffer = 16 << 10  // borrowed while messages flow; one read of a busy socket
	maxLength   = 1<<30 - 1 // the largest message PostgreSQL itself sends or accepts
)

// DefaultMaxBody is the largest body, in bytes, that Reader.Body gathers in memory unless
// MaxBody says otherwise. Larger ones can be read piece by piece with Chunk.
const DefaultMaxBody = 1 << 20

// Errors of a Reader.
var (
	// ErrLength reports a length word no message can have: garbage, or another protocol.
	ErrLength = errors.New("pgwire: impossible message length")
	// ErrTooLarge reports a message over a limit of this program, not of the protocol.
	ErrTooLarge = errors.New("pgwire: message too large")
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// Header is what precedes a body.
type Header struct {
	Type byte
	Len  int // bytes of body, without the length word
}

// Reader reads messages from a connection: Next for the header, then the body by Body (whole,
// in memory), Chunk (piece by piece, for bodies of any size) or Skip. It reads ahead, as much
// as one read of the connection gives. It may be used by one goroutine at a time.
//
// The 16 KiB it reads busy connections with are borrowed from a pool. A Reader that was told to
// Release holds none while it waits if the source has a method WaitReadable() error, which
// returns when a Read would not wait; otherwise it keeps 512 bytes. errors.ErrUnsupported from
// WaitReadable means that the source has no such thing after all.
type Reader struct {
	// MaxBody bounds Body, in bytes; 0 means DefaultMaxBody.
	MaxBody int

	src        io.Reader
	wait       waiter // src, if it can; else nil
	buf        []byte // buf[start:end] is read and not yet consumed; nil = none
	start, end int
	left       int                // bytes of the current body not yet consumed
	large      *[largeBuffer]byte // buf, if it is borrowed
	small      *[smallBuffer]byte // kept once it was needed
}

// waiter is a source that can be waited for without a buffer.
type waiter interface{ WaitReadable() error }

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader {
	r := &Reader{src: src}
	r.wait, _ = src.(waiter)
	return r
}

// SetSource goes on with another source, such as the TLS connection made from the old one.
// Bytes read ahead from the old source are an error: they came before the change.
func (r *Reader) SetSource(src io.Reader) error {
	if r.Buffered() > 0 {
		return fmt.Errorf("%w: %d bytes sent before the change of transport", ErrMalformed, r.Buffered())
	}
	r.src = src
	r.wait, _ = src.(waiter)
	return nil
}

// Buffered returns how many bytes were read ahead and not consumed.
func (r *Reader) Buffered() int { return r.end - r.start }

// HasMessage reports whether a whole message lies in the buffer, so that reading it blocks not.
func (r *Reader) HasMessage() bool {
	b := r.buf[r.start:r.end]
	return r.left == 0 && len(b) >= 5 && uint32(len(b)) >= 1+binary.BigEndian.Uint32(b[1:])
}

// Release gives the large buffer back if nothing is in it. Call it before waiting for long.
func (r *Reader) Release() {
	if r.start != r.end {
		return
	}
	if r.large != nil {
		largeBuffers.Put(r.large)
	}
	r.large, r.buf, r.start, r.end = nil, nil, 0, 0
}

// Prepare borrows the large buffer now. Call it before reading what is about to arrive: it is
// read in one go then, without being waited for first.
func (r *Reader) Prepare() { r.grow() }

// Fill reads from the source once, for whoever knows that a Read would not wait, and must not wait for the
// rest of a message either. Then Buffered and HasMessage tell what there is. It is for when no whole message
// is buffered.
func (r *Reader) Fill() error {
	r.grow()
	r.makeRoom(min(r.Buffered()+1, largeBuffer))
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	if r.Buffered() > 0 {
		return midMessage(err)
	}
	return err
}

// Next skips what is left of the current body and reads the next header. At a clean end of the
// source it returns io.EOF, in the middle of a message io.ErrUnexpectedEOF.
func (r *Reader) Next() (Header, error) {
	if err := r.Skip(); err != nil {
		return Header{}, err
	}
	if err := r.fill(5); err != nil {
		return Header{}, err
	}
	b := r.buf[r.start:]
	n := binary.BigEndian.Uint32(b[1:])
	if n < 4 || n > maxLength {
		return Header{}, fmt.Errorf("%w: %d bytes in a message of type %q", ErrLength, n, b[0])
	}
	h := Header{Type: b[0], Len: int(n) - 4}
	r.start += 5
	r.left = h.Len
	return h, nil
}

// Body returns what is left of the current body, whole. It is valid until the next call.
// A body over MaxBody is an error wrapping ErrTooLarge, and can still be read by Chunk.
func (r *Reader) Body() ([]byte, error) {
	limit := r.MaxBody
	if limit == 0 {
		limit = DefaultMaxBody
	}
	n := r.left
	switch {
	case n > limit:
		return nil, fmt.Errorf("%w: body of %d bytes, limit %d", ErrTooLarge, n, limit)
	case n <= largeBuffer:
		if err := r.fill(n); err != nil {
			return nil, midMessage(err)
		}
		body := r.buf[r.start : r.start+n : r.start+n]
		r.start, r.left = r.start+n, 0
		return body, nil
	}
	return r.bigBody(n)
}

// bigBody gathers a body larger than the buffer, growing with what really arrives, so that a
// length word alone does not make it allocate.
func (r *Reader) bigBody(n int) ([]byte, error) {
	body := make([]byte, 0, 2*largeBuffer)
	for r.left > 0 {
		chunk, err := r.Chunk()
		if err != nil {
			return nil, err
		}
		body = append(body, chunk...)
	}
	return body[:n:n], nil
}

// Peek returns the first n bytes of what is left of the body, or all if fewer are left,
// without consuming them. n must not be over 16 KiB. They are valid until the next call.
func (r *Reader) Peek(n int) ([]byte, error) {
	n = min(n, r.left, largeBuffer)
	if err := r.fill(n); err != nil {
		return nil, midMessage(err)
	}
	return r.buf[r.start : r.start+n : r.start+n], nil
}

// Discard consumes the next n bytes of the body, which were seen by Peek.
func (r *Reader) Discard(n int) {
	n = min(n, r.left, r.Buffered())
	r.start, r.left = r.start+n, r.left-n
}

// Chunk returns the next piece of the current body: what has arrived, at least one byte,
// at most 16 KiB; nil at the end of the body. It is valid until the next call.
func (r *Reader) Chunk() ([]byte, error) {
	if r.left == 0 {
		return nil, nil
	}
	want := 1
	if r.left > smallBuffer {
		want = smallBuffer + 1 // a large body is worth the large buffer
	}
	if err := r.fill(want); err != nil {
		return nil, midMessage(err)
	}
	n := min(r.left, r.Buffered())
	chunk := r.buf[r.start : r.start+n : r.start+n]
	r.start, r.left = r.start+n, r.left-n
	return chunk, nil
}

// Run returns the messages that lie whole in the buffer, headers included, up to the first that
// takes refuses, and consumes them: what needs no more than a look passes at the price of one
// copy. A length that no message can have ends the run, too. It never reads the source. In the
// middle of a message, and where there are none, it returns an empty slice. What it returns is
// valid until the next call, the body given to takes until that returns.
func (r *Reader) Run(takes func(typ byte, body []byte) bool) []byte {
	if r.left > 0 {
		return nil
	}
	b, n := r.buf[r.start:r.end], 0
	for len(b)-n >= 5 {
		size := uint64(binary.BigEndian.Uint32(b[n+1:])) + 1
		if size < 5 || size > uint64(len(b)-n) || !takes(b[n], b[n+5:n+int(size)]) {
			break
		}
		n += int(size)
	}
	r.start += n
	return b[:n:n]
}

// Unread has p, which was read from the source in another way, come next. Nothing may be buffered, nor a
// body be read in part; p, of 16 KiB at most, is copied.
func (r *Reader) Unread(p []byte) {
	if r.Buffered() > 0 || r.left > 0 {
		panic("pgwire: Unread before what is unread")
	}
	switch {
	case len(p) > smallBuffer:
		r.grow()
	case r.buf == nil:
		if r.small == nil {
			r.small = new([smallBuffer]byte)
		}
		r.buf = r.small[:]
	}
	r.start, r.end = 0, copy(r.buf, p)
}

// Left returns how many bytes of the current body are not yet consumed.
func (r *Reader) Left() int { return r.left }

// Skip consumes the rest of the current body.
func (r *Reader) Skip() error {
	for r.left > 0 {
		if _, err := r.Chunk(); err != nil {
			return err
		}
	}
	return nil
}

// Startup reads a start-up packet, which has no type byte, and returns what follows its length
// word, valid until the next call. A packet over MaxStartup is an error wrapping ErrLength.
func (r *Reader) Startup() ([]byte, error) {
	if err := r.fill(4); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if n < 8 || n > MaxStartup {
		return nil, fmt.Errorf("%w: start-up packet of %d bytes, want 8 to %d", ErrLength, n, MaxStartup)
	}
	if err := r.fill(int(n)); err != nil {
		return nil, midMessage(err)
	}
	packet := r.buf[r.start+4 : r.start+int(n)]
	r.start += int(n)
	return packet, nil
}

// PeekStart returns the first n bytes of the source without consuming them, for telling other
// protocols apart. n must not be over 512.
func (r *Reader) PeekStart(n int) ([]byte, error) {
	if err := r.fill(min(n, smallBuffer)); err != nil {
		return nil, err
	}
	return r.buf[r.start : r.start+n], nil
}

// fill reads until n bytes (at most largeBuffer) are buffered.
func (r *Reader) fill(n int) error {
	if r.end-r.start >= n {
		return nil
	}
	if r.buf == nil {
		if err := r.borrow(); err != nil {
			return err
		}
	}
	r.makeRoom(n)
	for r.end-r.start < n {
		got, err := r.src.Read(r.buf[r.end:])
		r.end += got
		if err != nil && r.end-r.start < n {
			if errors.Is(err, io.EOF) && r.end > r.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if r.end == len(r.buf) && r.large == nil && got > 0 {
			r.grow()
		}
	}
	return nil
}

// borrow gets a buffer, once there is something to read if that can be waited for.
func (r *Reader) borrow() error {
	if r.wait != nil {
		err := r.wait.WaitReadable()
		if err == nil {
			r.grow()
			return nil
		}
		if !errors.Is(err, errors.ErrUnsupported) {
			return err
		}
		r.wait = nil
	}
	if r.small == nil {
		r.small = new([smallBuffer]byte)
	}
	r.buf = r.small[:]
	return nil
}

// makeRoom sees to it that n bytes fit between start and the end of the buffer.
func (r *Reader) makeRoom(n int) {
	if n > len(r.buf) {
		r.grow()
	}
	if r.start == r.end {
		r.start, r.end = 0, 0
	}
	if r.start+n > len(r.buf) || r.end == len(r.buf) {
		r.end = copy(r.buf, r.buf[r.start:r.end])
		r.start = 0
	}
}

// grow changes to the large buffer.
func (r *Reader) grow() {
	if r.large != nil {
		return
	}
	r.large = largeBuffers.Get().(*[largeBuffer]byte)
	r.end = copy(r.large[:], r.buf[r.start:r.end])
	r.start, r.buf = 0, r.large[:]
}

// midMessage makes the end of the source inside a message the error it is.
func midMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
