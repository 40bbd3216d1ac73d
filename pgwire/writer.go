package pgwire

import (
	"errors"
	"io"
	"os"
)

// Writer buffers messages and writes them to a connection in one write per Flush, or per 16 KiB. It may be used by one
// goroutine at a time. The first error of the connection is kept and returned by every later Flush; later messages are
// dropped, or wait for Retry.
type Writer struct {
	dst   io.Writer
	buf   []byte
	large *[largeBuffer]byte
	err   error
	body  int  // bytes that are missing of the body after the last Header
	gap   bool // Write has dropped something after an error, and drops all that follows
	lost  bool // a message was written or dropped in part
	total uint64
}

// NewWriter returns a Writer to dst.
func NewWriter(dst io.Writer) *Writer { return &Writer{dst: dst} }

// SetDest changes the destination, for instance to the TLS connection made from the old one.
// Unflushed bytes go to the new destination.
func (w *Writer) SetDest(dst io.Writer) { w.dst = dst }

// Send appends a message.
func (w *Writer) Send(m Message) { w.commit(m.Append(w.AvailableBuffer())) }

// Header appends the five bytes before a body of n bytes, which the caller must Write.
func (w *Writer) Header(typ byte, n int) {
	w.commit(AppendHeader(w.AvailableBuffer(), typ, n))
	w.body = n
}

// Write appends raw bytes. It does not retain p. The error is nil unless the connection has failed.
func (w *Writer) Write(p []byte) (int, error) {
	body := w.body
	w.body = max(0, body-len(p))
	switch {
	case w.gap:
		return 0, w.err
	case len(w.buf)+len(p) <= largeBuffer:
		w.buf = append(w.borrowed(), p...)
		return len(p), w.err
	}
	if err := w.Flush(); err != nil {
		w.gap, w.lost = true, body > 0
		return 0, err
	}
	if len(p) < largeBuffer {
		w.buf = append(w.borrowed(), p...)
		return len(p), nil
	}
	if n := w.write(p); n < len(p) {
		w.gap, w.lost = true, n+body > 0
	}
	return len(p), w.err
}

// AvailableBuffer returns an empty slice with the free part of the buffer as its capacity. Append to it and pass the
// result to Write at once; if it fits, nothing is copied.
func (w *Writer) AvailableBuffer() []byte {
	b := w.borrowed()
	return b[len(b):]
}

// borrowed borrows the buffer if there is none, and returns it with its content.
func (w *Writer) borrowed() []byte {
	if w.large == nil {
		w.large = largeBuffers.Get().(*[largeBuffer]byte)
		w.buf = append(w.large[:0], w.buf...)
	}
	return w.buf
}

// commit accepts the bytes that were appended to AvailableBuffer.
func (w *Writer) commit(b []byte) {
	if len(w.buf)+len(b) <= largeBuffer && w.large != nil && !w.gap {
		w.buf = append(w.buf, b...)
		return
	}
	_, _ = w.Write(b)
}

// Buffered returns the number of bytes that wait for Flush.
func (w *Writer) Buffered() int { return len(w.buf) }

// Written returns the number of bytes written to the connection.
func (w *Writer) Written() uint64 { return w.total }

// Flush writes the buffered messages. It keeps the memory for the next ones.
func (w *Writer) Flush() error {
	if len(w.buf) > 0 {
		n := w.write(w.buf)
		if !errors.Is(w.err, os.ErrDeadlineExceeded) {
			n = len(w.buf)
		}
		w.buf = append(w.buf[:0], w.buf[n:]...)
	}
	return w.err
}

// Retry makes the next Flush write what is left of a write that ran into the connection's deadline, unless that ends in the middle
// of a message. Set a later deadline before. Messages that did not fit in the buffer after the error are lost, with all that
// came behind them: end the connection after the next one.
func (w *Writer) Retry() {
	if !w.lost && errors.Is(w.err, os.ErrDeadlineExceeded) {
		w.err, w.gap = nil, false
	}
}

// Release frees the buffer if it is empty. Call it before a long wait.
func (w *Writer) Release() {
	if w.large != nil && len(w.buf) == 0 {
		largeBuffers.Put(w.large)
		w.large, w.buf = nil, nil
	}
}

// write returns how many bytes it has written.
func (w *Writer) write(p []byte) int {
	if w.err != nil {
		return 0
	}
	n, err := w.dst.Write(p)
	w.total += uint64(n)
	w.err = err
	return n
}
