package httppool

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync"

	"github.com/headpond/headpond/httpwire"
)

// maxDrain is how many buffered bytes of an unread response Close skips to save the connection.
const maxDrain = bufferSize

var errBodyClosed = errors.New("http upstream: read on a closed response body")

// body is a response's body. Read is for one goroutine at a time; Close may be called from another at any time.
type body struct {
	x      *exchange
	chunks chunkReader
	left   int64 // unread bytes of a body with Content-Length
	open   bool  // the head was read: idle limits apply. Written before the body is returned.

	mu      sync.Mutex // not held while reading
	reading bool
	closed  bool
	ended   bool
	err     error // the result of Read once ended
}

func (b *body) start(x *exchange) {
	b.x, b.left, b.open = x, x.head.length, true
	b.chunks.rd = x.rd
}

// Read reads the body as it arrives. At io.EOF the trailers are in the response and the lease has ended.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.ended || b.closed || len(p) == 0 {
		defer b.mu.Unlock()
		return 0, b.err
	}
	if b.reading {
		b.mu.Unlock()
		return 0, errors.New("http upstream: two concurrent reads of one response body")
	}
	b.reading = true
	b.mu.Unlock()
	n, err := b.read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	if err != nil || b.closed {
		b.end(err)
		err = b.err
	}
	return n, err
}

func (b *body) read(p []byte) (int, error) {
	switch b.x.head.length {
	case httpwire.Chunked:
		return b.chunks.read(p)
	case httpwire.Unframed:
		return b.x.rd.read(p)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.x.rd.read(p)
	if b.left -= int64(n); b.left == 0 {
		return n, io.EOF
	}
	return n, unexpected(err)
}

// end ends the exchange; err is the error that ended the reading, nil if Close did. mu is held.
func (b *body) end(err error) {
	if b.ended {
		return
	}
	b.ended = true
	switch {
	case err == io.EOF:
		b.err = io.EOF
		b.setTrailer()
		b.x.finish()
	case b.closed || err == nil:
		b.err = errBodyClosed
		b.x.drop()
	default:
		if b.x.head.length == httpwire.Chunked && !isNetError(err) {
			err = malformed{err}
		}
		b.err = b.x.fail("body", err)
	}
}

// setTrailer fills in the announced trailers and adds those that were not announced.
func (b *body) setTrailer() {
	resp := &b.x.resp
	if len(b.chunks.trailer) == 0 {
		return
	}
	if resp.Trailer == nil {
		resp.Trailer = make(http.Header, len(b.chunks.trailer))
	}
	maps.Copy(resp.Trailer, b.chunks.trailer)
}

// Close releases the connection if the rest of the body has arrived, and closes it otherwise.
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.ended {
		return nil
	}
	b.closed = true
	b.err = errBodyClosed
	if b.reading {
		_ = b.x.conn.close() // interrupts the reader, which calls end
		return nil
	}
	if b.drain() {
		b.end(io.EOF)
		b.err = errBodyClosed
		return nil
	}
	b.end(nil)
	return nil
}

// drain skips the rest of the body if all of it is buffered.
func (b *body) drain() bool {
	if b.x.head.length == httpwire.Unframed {
		return false
	}
	b.x.rd.src = nil
	var scratch [512]byte
	for skipped := 0; skipped <= maxDrain; {
		n, err := b.read(scratch[:])
		if err != nil {
			return err == io.EOF
		}
		skipped += n
	}
	return false
}
