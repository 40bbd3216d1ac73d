package pgwire_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"

	"github.com/headpond/headpond/pgwire"
)

// FuzzReader reads a stream in pieces of every size, by every method, and checks that the bytes
// come out as they went in.
func FuzzReader(f *testing.F) {
	f.Add(uint16(3), uint16(600), uint16(40_000), byte(0))
	f.Add(uint16(0), uint16(16_384), uint16(507), byte(1))
	f.Add(uint16(511), uint16(512), uint16(513), byte(2))
	f.Fuzz(func(t *testing.T, a, b, c uint16, how byte) {
		var stream []byte
		var bodies [][]byte
		for i, n := range []uint16{a, b, c} {
			body := bytes.Repeat([]byte{byte('a' + i)}, int(n))
			bodies = append(bodies, body)
			stream = append(stream, (&pgwire.CopyData{Data: body}).Append(nil)...)
		}
		var src io.Reader = bytes.NewReader(stream)
		if how&1 != 0 {
			src = iotest.HalfReader(src)
		}
		if how&2 != 0 {
			src = iotest.DataErrReader(src)
		}
		r := pgwire.NewReader(src)
		for i, want := range bodies {
			h, err := r.Next()
			if err != nil || h != (pgwire.Header{Type: 'd', Len: len(want)}) {
				t.Fatalf("header %d: %+v %v", i, h, err)
			}
			start, err := r.Peek(100)
			if err != nil || !bytes.HasPrefix(want, start) || len(start) != min(100, len(want)) {
				t.Fatalf("peek %d: %d bytes, %v", i, len(start), err)
			}
			if got := read(t, r, (int(how)>>2+i)%3); got != nil && !bytes.Equal(got, want) {
				t.Fatalf("body %d: %d bytes, want %d", i, len(got), len(want))
			}
			r.Release()
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v", err)
		}
	})
}

// read reads a body whole, by chunks, or not at all.
func read(t *testing.T, r *pgwire.Reader, how int) []byte {
	t.Helper()
	switch how {
	case 0:
		b, err := r.Body()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte{}, b...)
	case 1:
		got := []byte{}
		for {
			chunk, err := r.Chunk()
			if err != nil {
				t.Fatal(err)
			}
			if chunk == nil {
				return got
			}
			got = append(got, chunk...)
		}
	}
	return nil // Next skips it
}

func TestReaderLimits(t *testing.T) {
	for _, length := range []string{"\x00\x00\x00\x03", "\x40\x00\x00\x00", "\xff\xff\xff\xff"} {
		if _, err := pgwire.NewReader(bytes.NewReader([]byte("Q" + length))).Next(); !errors.Is(err, pgwire.ErrLength) {
			t.Errorf("length % x: %v", length, err)
		}
	}
	r := pgwire.NewReader(bytes.NewReader([]byte("Q\x00\x00\x10\x00short")))
	r.MaxBody = 100
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Body(); !errors.Is(err, pgwire.ErrTooLarge) {
		t.Errorf("body over the limit: %v", err)
	}
	if err := r.Skip(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("end inside a message: %v", err)
	}
	r = pgwire.NewReader(bytes.NewReader([]byte("S\x00\x00\x00\x04Q")))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if err := r.SetSource(nil); !errors.Is(err, pgwire.ErrMalformed) {
		t.Errorf("change of source with bytes read ahead: %v", err)
	}
	if _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("end inside a header: %v", err)
	}
}

// TestReaderRun: a run ends before a message that is refused, incomplete or impossible, and no byte
// is lost.
func TestReaderRun(t *testing.T) {
	row := func(n int) []byte { return append(pgwire.AppendHeader(nil, 'D', n), bytes.Repeat([]byte{'x'}, n)...) }
	for name, c := range map[string]struct {
		run  int
		then []byte
	}{
		"refused":          {30, append(pgwire.AppendHeader(nil, 'Z', 1), 'I')},
		"half a header":    {30, []byte{'D', 0, 0}},
		"half a body":      {30, row(9)[:13]},
		"impossibly short": {30, []byte{'D', 0, 0, 0, 3, 0, 0, 0}},
		"impossibly long":  {30, []byte{'D', 255, 255, 255, 255, 0, 0, 0}},
		"nothing":          {30, nil},
		"nothing before":   {0, append(pgwire.AppendHeader(nil, 'Z', 1), 'I')},
	} {
		t.Run(name, func(t *testing.T) {
			stream := row(2)
			if c.run > 0 {
				stream = append(stream, row(20)...)
				stream = append(stream, row(0)...)
			}
			stream = append(stream, c.then...)
			r := pgwire.NewReader(bytes.NewReader(stream))
			rows := func(typ byte, body []byte) bool {
				return typ == 'D'
			}
			if got := r.Run(rows); len(got) != 0 {
				t.Errorf("nothing was read, and Run returned %q", got)
			}
			if h, err := r.Next(); err != nil || h.Len != 2 {
				t.Fatal(h, err)
			}
			if got := r.Run(rows); len(got) != 0 {
				t.Errorf("in the middle of a message Run returned %q", got)
			}
			if err := r.Skip(); err != nil {
				t.Fatal(err)
			}
			if got := r.Run(rows); !bytes.Equal(got, stream[7:7+c.run]) {
				t.Errorf("Run returned %q", got)
			}
			if r.Buffered() != len(c.then) || r.Left() != 0 {
				t.Errorf("%d bytes left, %d of a body", r.Buffered(), r.Left())
			}
		})
	}
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := pgwire.NewWriter(&out)
	var want []byte
	for i := range 200 {
		m := &pgwire.CopyData{Data: bytes.Repeat([]byte{byte(i)}, i*i)}
		want = m.Append(want)
		switch i % 3 {
		case 0:
			w.Send(m)
		case 1:
			w.Header('d', len(m.Data))
			_, _ = w.Write(m.Data)
		case 2:
			_, _ = w.Write(m.Append(w.AvailableBuffer()))
		}
		if i%10 == 0 {
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			w.Release()
		}
	}
	if err := w.Flush(); err != nil || !bytes.Equal(out.Bytes(), want) || w.Written() != uint64(len(want)) {
		t.Fatalf("%d bytes, want %d, %v", out.Len(), len(want), err)
	}
	broken := pgwire.NewWriter(failing{})
	broken.Send(&pgwire.Sync{})
	if err := broken.Flush(); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if _, err := broken.Write(make([]byte, 100_000)); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// BenchmarkRelay reads messages and writes them out, as a proxy does.
func BenchmarkRelay(b *testing.B) {
	var stream []byte
	for range 10 {
		stream = (&pgwire.DataRow{Values: [][]byte{[]byte("12345"), []byte("some text")}}).Append(stream)
	}
	stream = (&pgwire.ReadyForQuery{Status: pgwire.TxIdle}).Append(stream)
	src := bytes.NewReader(nil)
	r, w := pgwire.NewReader(src), pgwire.NewWriter(io.Discard)
	b.ReportAllocs()
	b.SetBytes(int64(len(stream)))
	for b.Loop() {
		src.Reset(stream)
		for range 11 {
			h, err := r.Next()
			if err != nil {
				b.Fatal(err)
			}
			body, err := r.Body()
			if err != nil {
				b.Fatal(err)
			}
			w.Header(h.Type, h.Len)
			_, _ = w.Write(body)
		}
		if err := w.Flush(); err != nil {
			b.Fatal(err)
		}
	}
}

// patient is a source that can be waited for.
type patient struct {
	io.Reader
	waits []error // results of WaitReadable; then nil
	reads int
}

func (p *patient) WaitReadable() error {
	if len(p.waits) == 0 {
		return nil
	}
	err := p.waits[0]
	p.waits = p.waits[1:]
	return err
}

func (p *patient) Read(b []byte) (int, error) {
	p.reads++
	return p.Reader.Read(b)
}

// TestReaderWaits reads sources that can be waited for without a buffer.
func TestReaderWaits(t *testing.T) {
	messages := (&pgwire.Query{SQL: "select 1"}).Append((&pgwire.Sync{}).Append(nil))
	for _, first := range []error{nil, os.ErrDeadlineExceeded, errors.ErrUnsupported} {
		src := &patient{Reader: bytes.NewReader(messages), waits: []error{first}}
		r := pgwire.NewReader(src)
		if first == os.ErrDeadlineExceeded {
			if _, err := r.Next(); !errors.Is(err, first) || src.reads > 0 {
				t.Errorf("a wait that fails: %v after %d reads", err, src.reads)
			}
		}
		for _, want := range []byte{pgwire.TypeSync, pgwire.TypeQuery} {
			h, err := r.Next()
			if err != nil || h.Type != want {
				t.Fatalf("%v: %c, %v", first, h.Type, err)
			}
			if _, err := r.Body(); err != nil {
				t.Fatal(err)
			}
			r.Release()
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%v: at the end: %v", first, err)
		}
	}
}
