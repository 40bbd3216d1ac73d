package httppool

import (
	"errors"
	"io"
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
	chunks httpwire.Chunks
	rest   []byte // content that chunks has found; a part of the reader's buffer
	left   int64  // unread bytes of a body with Content-Length
	open   bool   // the head was read: idle limits apply. Written before the body is returned.

	mu      sync.Mutex // not held while reading
	reading bool
	closed  bool
	ended   bool
	err     error // the result of Read once ended
}

func (b *body) start(x *exchange) {
	b.x, b.left, b.open = x, x.head.length, true
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
		return b.readChunks(p)
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

// maxFraming bounds the buffer for a piece of the framing. Chunks refuses what is longer than half of that.
const maxFraming = 32 << 10

// readChunks returns what has arrived of a chunked body, or waits for more. It returns io.EOF with the last bytes or after
// them; the trailers are in the response then.
func (b *body) readChunks(p []byte) (n int, err error) {
	rd := b.x.rd
	for {
		k := copy(p[n:], b.rest)
		b.rest, n = b.rest[k:], n+k
		if n == len(p) {
			return n, nil
		}
		if left := b.chunks.Left(); n == 0 && left >= bufferSize && rd.buffered() == 0 {
			n, err = rd.read(p[:min(int64(len(p)), left)])
			b.chunks.Skip(int64(n))
			return n, unexpected(err)
		}
		content, used, done, err := b.chunks.Next(rd.bytes())
		rd.r += used
		switch b.rest = content; {
		case done:
			b.addTrailer()
			return n, io.EOF
		case err == nil:
			continue
		case !errors.Is(err, httpwire.ErrIncomplete):
			return n, err
		case n > 0:
			return n, nil
		}
		if err := rd.fill(maxFraming); err != nil {
			return 0, unexpected(err)
		}
	}
}

// unexpected replaces an end of input by an error that is not mistaken for the body's end.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
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
		b.x.finish()
	case b.closed || err == nil:
		b.err = errBodyClosed
		b.x.drop()
	default:
		b.err = b.x.fail("body", err)
	}
}

// addTrailer fills in the announced trailers and adds those that were not announced. Forbidden ones are dropped.
func (b *body) addTrailer() {
	resp := &b.x.resp
	for _, f := range b.chunks.Trailer {
		if httpwire.ForbiddenTrailer(f.Name) {
			continue
		}
		if resp.Trailer == nil {
			resp.Trailer = http.Header{}
		}
		resp.Trailer.Add(string(f.Name), string(f.Value))
	}
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
