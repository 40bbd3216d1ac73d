package httppool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/headpond/headpond/httpwire"
)

// bufferSize is the size of a connection's read buffer. It holds nearly every response's head; a longer head enlarges it
// for as long as it is read.
const bufferSize = 8 << 10

var (
	errNoMoreBuffered = errors.New("nothing more is buffered")
	errHeadTooLong    = fmt.Errorf("%w: the head is longer than the limit", httpwire.ErrMalformed)
)

// reader reads heads and bodies from src. It is used by one goroutine at a time. The slices it returns are valid
// until its next call.
type reader struct {
	src  io.Reader // nil = return buffered bytes, then errNoMoreBuffered
	buf  []byte
	r, w int
	head httpwire.Response // memory for head.parse
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

// bytes returns what is buffered.
func (rd *reader) bytes() []byte { return rd.buf[rd.r:rd.w] }

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
			return errHeadTooLong
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

// block returns the bytes up to and including the first empty line. Input that no response begins with is refused at its
// first wrong byte: its sender may never send an empty line.
func (rd *reader) block(limit int) ([]byte, error) {
	for scanned := 0; ; {
		b := rd.bytes()
		from := max(scanned-len(emptyLine)+1, 0)
		if i := bytes.Index(b[from:], emptyLine); i >= 0 {
			n := from + i + len(emptyLine)
			if n > limit {
				return nil, errHeadTooLong
			}
			rd.r += n
			return b[:n], nil
		}
		switch scanned = len(b); {
		case scanned > limit:
			return nil, errHeadTooLong
		case scanned > 0:
			if _, err := rd.head.Parse(b, false); !errors.Is(err, httpwire.ErrIncomplete) {
				return nil, err
			}
		}
		if err := rd.fill(limit); err != nil {
			return nil, err
		}
	}
}

// emptyLine is an empty line with the end of the line before it.
var emptyLine = []byte("\r\n\r\n")

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
