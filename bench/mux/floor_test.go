package mux

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"net"
	"runtime"
	"testing"
)

// raw is the floor: one socket per logical connection and a header of eight bytes. A small message
// is copied after its header and written at once. A large one is written with one writev. Reads go
// through one buffer, and directly into the message for the rest.
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

// study is the messaging study's transport, without its demultiplexer: for each chunk of at most 64 KiB a header of 45
// bytes (1 + 36 + 4 + 4) and one write; on the way in five unbuffered reads. What it allocates is made after its
// published figures, which are 8 for a chunk and 2 for a message (10, 34 and 130 for 100 B, 200 KiB and 1 MiB one way;
// a round trip of 100 B takes 20 of 1,176 bytes together): see TestStudyAllocates. Locks it may have had are left out.
type study struct {
	conn net.Conn
	from string // of the last message
}

const (
	studyID    = "123e4567-e89b-12d3-a456-426614174000"
	studyChunk = 64 << 10
)

func (s *study) send(p []byte) error {
	total := len(p)
	for {
		n := min(len(p), studyChunk)
		id := append(make([]byte, 0, 36), studyID...)
		header := append(make([]byte, 0, 45), 1)
		header = append(header, id...)
		header = binary.BigEndian.AppendUint32(header, uint32(total))
		header = binary.BigEndian.AppendUint32(header, uint32(n))
		msg := append(append(make([]byte, 0, 45+n), header...), p[:n]...)
		keep(id, header, msg)
		if _, err := s.conn.Write(msg); err != nil {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
	}
}

func (s *study) recv([]byte) ([]byte, error) {
	var whole []byte
	for {
		kind, id := make([]byte, 1), make([]byte, 36)
		total, size := make([]byte, 4), make([]byte, 4)
		for _, part := range [][]byte{kind, id, total, size} {
			if _, err := io.ReadFull(s.conn, part); err != nil {
				return nil, err
			}
		}
		data := make([]byte, binary.BigEndian.Uint32(size))
		if _, err := io.ReadFull(s.conn, data); err != nil {
			return nil, err
		}
		if whole == nil {
			s.from = string(id)
			whole = make([]byte, 0, binary.BigEndian.Uint32(total))
		}
		if whole = append(whole, data...); len(whole) >= int(binary.BigEndian.Uint32(total)) {
			return whole, nil
		}
	}
}

// keep makes the compiler allocate what the study's code did.
//
//go:noinline
func keep(id, header, msg []byte) {
	if id == nil {
		kept = [][]byte{id, header, msg}
	}
}

var kept [][]byte

// TestStudyAllocates compares a round trip's allocations with those the study published.
func TestStudyAllocates(t *testing.T) {
	for _, c := range []struct {
		size        int
		allocs, mem float64
	}{{100, 20, 1176}, {200 << 10, 68, 1.28e6}, {1 << 20, 260, 6.5e6}} {
		near, far := net.Pipe()
		here, there := &study{conn: near}, &study{conn: far}
		rounds := max(20, 100_000/c.size)
		p := make([]byte, c.size)
		done := make(chan error, 1)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		go func() {
			var err error
			for i := 0; i < rounds && err == nil; i++ {
				var m []byte
				if m, err = there.recv(nil); err == nil {
					err = there.send(m)
				}
			}
			done <- err
		}()
		for range rounds {
			err := here.send(p)
			if err == nil {
				_, err = here.recv(nil)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		allocs, mem := float64(after.Mallocs-before.Mallocs)/float64(rounds), float64(after.TotalAlloc-before.TotalAlloc)/float64(rounds)
		t.Logf("%d bytes: %.1f allocations, %.0f bytes", c.size, allocs, mem)
		if math.Abs(allocs/c.allocs-1) > 0.05 || math.Abs(mem/c.mem-1) > 0.1 {
			t.Errorf("the study had %v of %v", c.allocs, c.mem)
		}
		_, _ = near.Close(), far.Close()
	}
}

func openStudy(b *testing.B, n, _ int) (here, there []port, stop func()) {
	return pairs(b, n, func(c net.Conn) port { return &study{conn: c} })
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
