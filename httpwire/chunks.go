package httpwire

import (
	"bytes"
	"fmt"
)

// Limits of the chunked coding. Extensions are unused in practice; an endless series of them, or
// of tiny chunks, is an attack.
const (
	maxSizeLine = 1 << 10  // bytes of a size line with its extensions
	maxTrailer  = 16 << 10 // bytes of all trailer lines
	slack       = 16 << 10 // bytes of framing allowed beyond one per byte of content
)

// Chunks decodes the chunked coding strictly (RFC 9112, section 7.1). Its zero value is ready for a
// body.
type Chunks struct {
	// Trailer are the fields after the last chunk, once Next has said done. Their bytes are those
	// given to that call.
	Trailer []Field

	state    chunkState
	left     uint64
	overhead int64
}

type chunkState uint8

const (
	chunkSize    chunkState = iota // a size line comes
	chunkContent                   // left bytes of content come
	chunkEnd                       // the CRLF after content comes
	chunkTrailer                   // trailers and the empty line come
	chunkDone
)

// Reset makes c ready for another body.
func (c *Chunks) Reset() { *c = Chunks{Trailer: c.Trailer[:0]} }

// Next decodes at the start of b: it returns the content it found, which is a part of b, and the number
// of bytes of b it has consumed. Content may be empty while there is progress. done means that the body
// has ended. The error is ErrIncomplete if b has too little for a step, or wraps ErrMalformed.
func (c *Chunks) Next(b []byte) (content []byte, n int, done bool, err error) {
	for {
		switch c.state {
		case chunkSize:
			k, err := c.sizeLine(b[n:])
			if err != nil {
				return nil, n, false, progress(n, err)
			}
			n += k
		case chunkContent:
			if n == len(b) {
				return nil, n, false, progress(n, ErrIncomplete)
			}
			k := int(min(c.left, uint64(len(b)-n)))
			content = b[n : n+k]
			c.content(uint64(k))
			return content, n + k, false, nil
		case chunkEnd:
			end := b[n:min(n+2, len(b))]
			if string(end) != "\r\n"[:len(end)] {
				return nil, n, false, fmt.Errorf("%w: a chunk is longer than its size", ErrMalformed)
			}
			if len(end) < 2 {
				return nil, n, false, progress(n, ErrIncomplete)
			}
			n += 2
			c.state = chunkSize
		case chunkTrailer:
			k, err := c.trailers(b[n:])
			if err != nil {
				return nil, n, false, progress(n, err)
			}
			c.state = chunkDone
			return nil, n + k, true, nil
		default:
			return nil, n, true, nil
		}
	}
}

// Left is how much content of the current chunk is to come; 0 between chunks.
func (c *Chunks) Left() int64 {
	if c.state != chunkContent {
		return 0
	}
	return int64(c.left) // ChunkSize takes 60 bits at most
}

// Skip counts n bytes of content, at most Left, that do not pass through Next.
func (c *Chunks) Skip(n int64) {
	if n < 0 || n > c.Left() {
		panic("httpwire: Skip of more than is left of the chunk")
	}
	c.content(uint64(n))
}

// content notes that n bytes of it have come.
func (c *Chunks) content(n uint64) {
	if c.left -= n; c.left == 0 {
		c.state = chunkEnd
	}
	c.overhead -= int64(n)
}

// progress hides ErrIncomplete if bytes were consumed.
func progress(n int, err error) error {
	if n > 0 && err == ErrIncomplete { //nolint:errorlint // never wrapped
		return nil
	}
	return err
}

func (c *Chunks) sizeLine(b []byte) (int, error) {
	line, n, err := nextLine(b)
	switch {
	case err != nil:
		return 0, err
	case n == 0 && len(b) > maxSizeLine || len(line) > maxSizeLine:
		return 0, fmt.Errorf("%w: chunk size line longer than %d bytes", ErrMalformed, maxSizeLine)
	case n == 0:
		return 0, ErrIncomplete
	}
	if c.overhead += int64(n) + 2; c.overhead > slack {
		return 0, fmt.Errorf("%w: chunked body carries more framing than content", ErrMalformed)
	}
	if c.left, err = ChunkSize(line); err != nil {
		return 0, err
	}
	c.state = chunkContent
	if c.left == 0 {
		c.state = chunkTrailer
	}
	return n, nil
}

// ChunkSize reads the line before a chunk, without its CRLF: "1a2b;extension". Spaces after the digits are allowed
// because old servers pad with them and all readers agree on their meaning. The error wraps ErrMalformed.
func ChunkSize(line []byte) (size uint64, err error) {
	digits := 0
	for digits < len(line) && HexDigit(line[digits]) >= 0 {
		size = size<<4 | uint64(HexDigit(line[digits]))
		digits++
	}
	rest := bytes.TrimLeft(line[digits:], " ")
	if digits == 0 || digits > 15 || len(rest) > 0 && rest[0] != ';' || !ValidValue(rest) {
		return 0, fmt.Errorf("%w: chunk size %.40q", ErrMalformed, line)
	}
	return size, nil
}

func (c *Chunks) trailers(b []byte) (n int, err error) {
	c.Trailer, n, err = ParseFields(c.Trailer[:0], b)
	if err == ErrIncomplete && len(b) > maxTrailer || n > maxTrailer { //nolint:errorlint // never wrapped
		err = fmt.Errorf("%w: trailers longer than %d bytes", ErrMalformed, maxTrailer)
	}
	return n, err
}

// HexDigit is the value of a hexadecimal digit; -1 if c is none.
func HexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}

// ForbiddenTrailer reports whether the field of that name frames, routes or secures a message, so that it must not
// come after it (RFC 9110, section 6.5.1).
func ForbiddenTrailer[S ~string | ~[]byte](name S) bool {
	b := []byte(name)
	switch knownField(b) {
	case Other, Date, Via, XRequestID:
	default:
		return true
	}
	for _, other := range [...]string{"set-cookie", "cookie", "content-encoding", "content-type", "content-range", "max-forwards"} {
		if EqualFold(b, other) {
			return true
		}
	}
	return false
}
