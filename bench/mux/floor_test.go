package mux

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"testing"
)

// raw is the floor: one socket per logical connection, eight bytes of header.
// A small message is copied behind its header and written at once; a large one
// goes out in one writev; reading goes through one buffer and straight into
// place for the rest.
type raw struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte
	vec  [2][]byte
}

func newRaw(c net.Conn) *raw { return &raw{conn: c, r: bufio.NewReaderSize(c, 64<<10)} }

func (r *raw) send(p []byte) error {
	r.buf = binary.BigEndian.AppendUint64(r.buf[:0], uint64(len(p)))
	if len(p) <= 4<<10 {
		r.buf = append(r.buf, p...)
		_, err := r.conn.Write(r.buf)
		return err
	}
	r.vec = [2][]byte{r.buf, p}
	v := net.Buffers(r.vec[:])
	_, err := v.WriteTo(r.conn)
	return err
}

func (r *raw) recv(p []byte) ([]byte, error) {
	h, err := r.r.Peek(8)
	if err != nil {
		return nil, err
	}
	p = p[:binary.BigEndian.Uint64(h)]
	r.r.Discard(8)
	_, err = io.ReadFull(r.r, p)
	return p, err
}

func openRaw(b *testing.B, n, _ int) (here, there []port, stop func()) {
	return pairs(b, n, func(c net.Conn) port { return newRaw(c) })
}

// study is the messaging study's transport, without its demultiplexer: per chunk
// of at most 64 KiB a 45-byte header (1 + 36 + 4 + 4) in a new slice with the
// payload, one write; five unbuffered reads and their allocations on the way in.
type study struct{ conn net.Conn }

const (
	studyID    = "123e4567-e89b-12d3-a456-426614174000"
	studyChunk = 64 << 10
)

func (s study) send(p []byte) error {
	total := len(p)
	for {
		n := min(len(p), studyChunk)
		msg := make([]byte, 0, 45+n)
		msg = append(msg, 1)
		msg = append(msg, studyID...)
		msg = binary.BigEndian.AppendUint32(msg, uint32(total))
		msg = binary.BigEndian.AppendUint32(msg, uint32(n))
		msg = append(msg, p[:n]...)
		if _, err := s.conn.Write(msg); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

func (s study) recv([]byte) ([]byte, error) {
	var whole []byte
	for {
		kind, id := make([]byte, 1), make([]byte, 36)
		total, size := make([]byte, 4), make([]byte, 4)
		for _, part := range [][]byte{kind, id, total, size} {
			if _, err := io.ReadFull(s.conn, part); err != nil {
				return nil, err
			}
		}
		if string(id) != studyID {
			return nil, io.ErrUnexpectedEOF
		}
		data := make([]byte, binary.BigEndian.Uint32(size))
		if _, err := io.ReadFull(s.conn, data); err != nil {
			return nil, err
		}
		if whole = append(whole, data...); len(whole) >= int(binary.BigEndian.Uint32(total)) {
			return whole, nil
		}
	}
}

func openStudy(b *testing.B, n, _ int) (here, there []port, stop func()) {
	return pairs(b, n, func(c net.Conn) port { return study{c} })
}

func pairs(b *testing.B, n int, wrap func(net.Conn) port) (here, there []port, stop func()) {
	var conns []net.Conn
	for range n {
		c, s := socketPair(b)
		conns = append(conns, c, s)
		here, there = append(here, wrap(c)), append(there, wrap(s))
	}
	return here, there, func() {
		for _, c := range conns {
			c.Close()
		}
	}
}
