package httppool

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/headpond/headpond/httpwire"
)

// Limits of the chunked coding. No known software uses chunk extensions; an endless series of them is
// an attack.
const (
	maxChunkLine    = 1 << 10  // bytes of a size line with its extensions
	maxTrailerBytes = 16 << 10 // bytes of all trailer lines
	chunkSlack      = 16 << 10 // bytes of framing allowed beyond one per body byte
)

// chunkReader decodes the chunked transfer coding strictly (RFC 9112, section 7.1).
type chunkReader struct {
	rd       *reader
	left     uint64 // of the current chunk
	inChunk  bool   // a chunk's CRLF has not been read
	overhead int64  // framing bytes minus body bytes seen, never below 0
	trailer  http.Header
	err      error // sticky; io.EOF after the trailers
}

// read returns body bytes. At the end it has read the trailers and returns io.EOF, possibly with the last bytes.
func (c *chunkReader) read(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	if len(p) == 0 {
		return 0, nil
	}
	if c.left == 0 {
		if c.err = c.next(); c.err != nil {
			return 0, c.err
		}
	}
	if uint64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.rd.read(p)
	c.left -= uint64(n)
	c.overhead = max(0, c.overhead-int64(n))
	if n > 0 {
		err = nil
	}
	if err != nil {
		c.err = unexpected(err)
		return n, c.err
	}
	return n, nil
}

// next goes to the start of the next chunk that has bytes, or past the trailers.
func (c *chunkReader) next() error {
	if c.inChunk {
		end, err := c.rd.line(maxChunkLine)
		if err != nil {
			return fmt.Errorf("after a chunk: %w", unexpected(err))
		}
		if len(end) != 0 {
			return errors.New("a chunk is longer than its size")
		}
		c.inChunk = false
	}
	line, err := c.rd.line(maxChunkLine)
	if err != nil {
		return fmt.Errorf("chunk size line: %w", unexpected(err))
	}
	if c.overhead += int64(len(line)) + 4; c.overhead > chunkSlack {
		return errors.New("chunked body carries more framing than content")
	}
	c.left, err = httpwire.ChunkSize(line)
	if err != nil {
		return err
	}
	if c.left > 0 {
		c.inChunk = true
		return nil
	}
	return c.end()
}

func (c *chunkReader) end() error {
	block, err := c.rd.block(maxTrailerBytes)
	if err != nil {
		return fmt.Errorf("trailers: %w", unexpected(err))
	}
	if c.trailer, err = parseTrailers(block); err != nil {
		return err
	}
	return io.EOF
}

// unexpected replaces an end of input by an error that is not mistaken for the body's end.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
