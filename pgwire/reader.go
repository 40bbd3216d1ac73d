package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

// Sizes of a Reader's and a Writer's memory.
const (
	smallBuffer = 512       // kept by a Reader that cannot wait without one; most short queries fit
	largeBuffer = 16 << 10  // borrowed while messages arrive; one read of a busy socket
	maxLength   = 1<<30 - 1 // the largest message that PostgreSQL sends or accepts
)

// DefaultMaxBody is the default of Reader.MaxBody, in bytes. Larger bodies can be read in pieces with Chunk.
const DefaultMaxBody = 1 << 20

// Errors of a Reader.
var (
	// ErrLength reports an impossible length word: garbage, or another protocol.
	ErrLength = errors.New("pgwire: impossible message length")
	// ErrTooLarge reports a message over a limit of this program, not of the protocol.
	ErrTooLarge = errors.New("pgwire: message too large")
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// Header is the type and length of a message.
type Header struct {
	Type byte
	Len  int // bytes of body, without the length word
}

// Reader reads messages from a connection: Next returns the header; then Body returns the whole body in memory, Chunk
// returns it in pieces, whatever its size, or Skip drops it. A Reader reads ahead as much as one read of the connection
// returns. It may be used by one goroutine at a time.
//
// The 16 KiB buffer for busy connections is borrowed from a pool. After Release a waiting Reader holds no buffer if the
// source has a method WaitReadable() error, which returns when a Read would not wait. Otherwise, or if WaitReadable
// returns errors.ErrUnsupported, it keeps 512 bytes.
type Reader struct {
	// MaxBody bounds Body, in bytes; 0 means DefaultMaxBody.
	MaxBody int

	src        io.Reader
	wait       waiter // src, if it implements waiter; else nil
	buf        []byte // buf[start:end] is unread; nil = none
	start, end int
	left       int                // unread bytes of the current body
	large      *[largeBuffer]byte // buf, if it is borrowed
	small      *[smallBuffer]byte // kept after its first use
}

// waiter is a source that can be waited for without a buffer.
type waiter interface{ WaitReadable() error }

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader {
	r := &Reader{src: src}
	r.wait, _ = src.(waiter)
	return r
}

// SetSource changes the source, for instance to the TLS connection made from the old one. It returns an error if there are
// unread bytes: they were sent before the change.
func (r *Reader) SetSource(src io.Reader) error {
	if r.Buffered() > 0 {
		return fmt.Errorf("%w: %d bytes sent before the change of transport", ErrMalformed, r.Buffered())
	}
	r.src = src
	r.wait, _ = src.(waiter)
	return nil
}

// Buffered returns the number of unread bytes in the buffer.
func (r *Reader) Buffered() int { return r.end - r.start }

// HasMessage reports whether a whole message is buffered, so that reading it does not block.
func (r *Reader) HasMessage() bool {
	b := r.buf[r.start:r.end]
	return r.left == 0 && len(b) >= 5 && uint32(len(b)) >= 1+binary.BigEndian.Uint32(b[1:])
}

// Release returns an empty large buffer to the pool. Call it before a long wait.
func (r *Reader) Release() {
	if r.start != r.end {
		return
	}
	if r.large != nil {
		largeBuffers.Put(r.large)
	}
	r.large, r.buf, r.start, r.end = nil, nil, 0, 0
}

// Prepare borrows the large buffer now. Call it when data is about to arrive: it is then read
// by one call, without WaitReadable before it.
func (r *Reader) Prepare() { r.grow() }

// Fill reads from the source once. It is for a caller that knows that a Read would not wait, and that must not wait for
// the end of a message; Buffered and HasMessage report the result. Call it only if no whole message is buffered.
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

// Next skips the remaining body and reads the next header. At a clean end of the source it
// returns io.EOF, in the middle of a message io.ErrUnexpectedEOF.
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

// Body returns the whole remaining body. It is valid until the next call.
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

// bigBody reads a body larger than the buffer. It allocates as bytes arrive, so that a length word alone costs no memory.
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

// Peek returns the first n bytes of the remaining body, or all of it if it is shorter, without
// consuming them. n must not be over 16 KiB. They are valid until the next call.
func (r *Reader) Peek(n int) ([]byte, error) {
	n = min(n, r.left, largeBuffer)
	if err := r.fill(n); err != nil {
		return nil, midMessage(err)
	}
	return r.buf[r.start : r.start+n : r.start+n], nil
}

// Discard consumes the next n bytes of the body, which Peek has returned.
func (r *Reader) Discard(n int) {
	n = min(n, r.left, r.Buffered())
	r.start, r.left = r.start+n, r.left-n
}

// Chunk returns the next piece of the current body, at least one byte and at most 16 KiB; nil = the end of the body. It is
// valid until the next call.
func (r *Reader) Chunk() ([]byte, error) {
	if r.left == 0 {
		return nil, nil
	}
	want := 1
	if r.left > smallBuffer {
		want = smallBuffer + 1 // a large body justifies the large buffer
	}
	if err := r.fill(want); err != nil {
		return nil, midMessage(err)
	}
	n := min(r.left, r.Buffered())
	chunk := r.buf[r.start : r.start+n : r.start+n]
	r.start, r.left = r.start+n, r.left-n
	return chunk, nil
}

// Run consumes the whole messages in the buffer, up to the first one for which takes returns false, and returns them with
// their headers, so that messages that are only inspected can be forwarded with one copy. It also stops at an impossible
// length. It never reads the source. In the middle of a message, and without whole messages, it returns an empty slice.
// The result is valid until the next call, the body passed to takes until takes returns.
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

// Unread makes p, which was read from the source by other means, the next input. Nothing may be buffered, and no body
// partly read; p, of at most 16 KiB, is copied.
func (r *Reader) Unread(p []byte) {
	if r.Buffered() > 0 || r.left > 0 {
		panic("pgwire: Unread with input that is not read yet")
	}
	switch {
	case len(p) > smallBuffer, r.buf == nil && r.wait != nil:
		r.grow()
	case r.buf == nil:
		if r.small == nil {
			r.small = new([smallBuffer]byte)
		}
		r.buf = r.small[:]
	}
	r.start, r.end = 0, copy(r.buf, p)
}

// Left returns the number of unread bytes of the current body.
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

// Startup reads a start-up packet, which has no type byte, and returns its bytes after the length word. They are valid
// until the next call. A packet over MaxStartup is an error wrapping ErrLength.
func (r *Reader) Startup() ([]byte, error) {
	if err := r.fill(4); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(r.buf[r.start:])
	if n < 8 || n > MaxStartup {
		return nil, fmt.Errorf("%w: start-up packet of %d bytes, want 8 to %d%s", ErrLength, n, MaxStartup, otherProtocol(r.buf[r.start:r.start+4]))
	}
	if err := r.fill(int(n)); err != nil {
		return nil, midMessage(err)
	}
	packet := r.buf[r.start+4 : r.start+int(n)]
	r.start += int(n)
	return packet, nil
}

// otherProtocol says which protocol begins with what was read as the length of a start-up packet; "" if it is none that clients of a wrong port
// often speak.
func otherProtocol(first []byte) string {
	switch {
	case slices.Contains([]string{"GET ", "POST", "HEAD", "PUT ", "OPTI", "PATC", "DELE", "CONN", "PRI "}, string(first)):
		return "; it begins like a request of HTTP"
	case first[0] == 0x16 && first[1] == 3: // a TLS record with a handshake
		return "; it begins like TLS"
	case string(first) == "SSH-":
		return "; it begins like SSH"
	}
	return ""
}

// PeekStart returns the first n bytes of the source without consuming them, to recognize other
// protocols. n must not be over 512.
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

// borrow takes a buffer, once the source is readable if it has WaitReadable.
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

// makeRoom makes space for n bytes from start on.
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

// midMessage replaces io.EOF within a message by io.ErrUnexpectedEOF.
func midMessage(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
