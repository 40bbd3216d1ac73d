package httppool

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/headpond/headpond/httpwire"
)

// bufferSize is the size of a connection's read buffer. It holds nearly every response's head; a longer head enlarges it
// for as long as it is read.
const bufferSize = 8 << 10

var (
	errNoMoreBuffered       = errors.New("nothing more is buffered")
	errBareLF         error = malformed{errors.New("a line ends in LF without CR")}
	errBareCR         error = malformed{errors.New("a CR stands inside a line")}
	errLineTooLong    error = malformed{errors.New("longer than the limit")}
)

// reader reads CRLF lines and body bytes from src. It is used by one goroutine at a time. The slices it returns are valid
// until its next call.
type reader struct {
	src  io.Reader // nil = return buffered bytes, then errNoMoreBuffered
	buf  []byte
	r, w int
	head httpwire.Response // memory for parseHead
}

var readerPool = sync.Pool{New: func() any { return &reader{buf: make([]byte, bufferSize)} }}

func getReader(src io.Reader) *reader {
	rd := readerPool.Get().(*reader)
	rd.src = src
	return rd
}

// putReader frees rd. The caller must hold no slice of it.
func putReader(rd *reader) {
	rd.src, rd.r, rd.w = nil, 0, 0
	if len(rd.buf) != bufferSize {
		rd.buf = make([]byte, bufferSize)
	}
	readerPool.Put(rd)
}

func (rd *reader) buffered() int { return rd.w - rd.r }

// fill reads once from the source. limit bounds the buffer's size.
func (rd *reader) fill(limit int) error {
	if rd.src == nil {
		return errNoMoreBuffered
	}
	if rd.r > 0 {
		rd.w = copy(rd.buf, rd.buf[rd.r:rd.w])
		rd.r = 0
	}
	if rd.w == len(rd.buf) {
		if len(rd.buf) >= limit {
			return errLineTooLong
		}
		grown := make([]byte, min(2*len(rd.buf), max(limit, bufferSize)))
		copy(grown, rd.buf[:rd.w])
		rd.buf = grown
	}
	n, err := rd.src.Read(rd.buf[rd.w:])
	rd.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

// startsWith reports whether the next bytes are prefix, as soon as that is decided. It consumes nothing.
func (rd *reader) startsWith(prefix string) (bool, error) {
	for {
		n := min(rd.buffered(), len(prefix))
		if string(rd.buf[rd.r:rd.r+n]) != prefix[:n] {
			return false, nil
		}
		if n == len(prefix) {
			return true, nil
		}
		if err := rd.fill(bufferSize); err != nil {
			return true, err
		}
	}
}

// block returns the bytes up to and including the first empty line. Every line must end with CRLF and contain no other CR.
// A bare LF is reported as soon as it arrives, so that the reader does not wait for a peer that ended its head with one.
func (rd *reader) block(limit int) ([]byte, error) {
	scanned, line := 0, 0 // offsets from rd.r: of the unscanned bytes and of the current line
	for {
		pending := rd.buf[rd.r+scanned : rd.w]
		i := bytes.IndexByte(pending, '\n')
		if i < 0 {
			scanned += len(pending)
			if scanned > limit {
				return nil, errLineTooLong
			}
			if err := rd.fill(limit); err != nil {
				return nil, err
			}
			continue
		}
		end := scanned + i // of the LF
		if end >= limit {
			return nil, errLineTooLong
		}
		text, err := trimCRLF(rd.buf[rd.r+line : rd.r+end+1])
		if err != nil {
			return nil, err
		}
		scanned, line = end+1, end+1
		if len(text) == 0 {
			b := rd.buf[rd.r : rd.r+scanned]
			rd.r += scanned
			return b, nil
		}
	}
}

// line returns the next line without its CRLF.
func (rd *reader) line(limit int) ([]byte, error) {
	scanned := 0
	for {
		pending := rd.buf[rd.r+scanned : rd.w]
		if i := bytes.IndexByte(pending, '\n'); i >= 0 {
			end := rd.r + scanned + i + 1
			text, err := trimCRLF(rd.buf[rd.r:end])
			if err == nil && len(text) > limit {
				err = errLineTooLong
			}
			rd.r = end
			return text, err
		}
		scanned += len(pending)
		if scanned > limit+1 {
			return nil, errLineTooLong
		}
		if err := rd.fill(bufferSize); err != nil {
			return nil, err
		}
	}
}

// read returns buffered bytes first, and then reads directly into p.
func (rd *reader) read(p []byte) (int, error) {
	if rd.r < rd.w {
		n := copy(p, rd.buf[rd.r:rd.w])
		rd.r += n
		return n, nil
	}
	if rd.src == nil {
		return 0, errNoMoreBuffered
	}
	if len(p) >= bufferSize/2 {
		return rd.src.Read(p)
	}
	rd.r, rd.w = 0, 0
	if err := rd.fill(bufferSize); err != nil {
		return 0, err
	}
	return rd.read(p)
}

// trimCRLF removes the CRLF from a line that ends with LF.
func trimCRLF(line []byte) ([]byte, error) {
	n := len(line)
	if n < 2 || line[n-2] != '\r' {
		return nil, errBareLF
	}
	if bytes.IndexByte(line[:n-2], '\r') >= 0 {
		return nil, errBareCR
	}
	return line[:n-2], nil
}
