package sqlite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"modernc.org/libc"
)

// Leases returns two functions that lease and release a reader: one as a session does, one with the
// pool alone.
func Leases(ctx context.Context, b *Backend) (asSession, plain func() error) {
	p := newParker(b)
	s := &session{b: b, ctx: pool.WithParker(ctx, p), parker: p}
	s.guard.s = s
	asSession = func() error {
		h, err := s.acquire(s.ctx, false)
		if err == nil {
			h.release()
		}
		return err
	}
	plain = func() error {
		lease, err := b.db.AcquireReader(ctx)
		if err == nil {
			lease.Release()
		}
		return err
	}
	return asSession, plain
}

// Rewrite returns a statement in SQLite's dialect.
func Rewrite(sql string) (string, error) {
	rw, err := rewrite(sql)
	if err != nil {
		return "", err
	}
	return rw.sql, nil
}

// Literals returns the values of the string literals and of quoted names, in order.
func Literals(sql string) (strings, names []string) {
	for _, t := range tokenize(sql) {
		switch t.kind {
		case kindString:
			strings = append(strings, stringValue(t.text))
		case kindQuoted:
			names = append(names, t.name())
		}
	}
	return strings, names
}

// Names returns the tokens of sql without dots. Quoted names are unquoted.
func Names(sql string) (names []string) {
	for _, t := range tokenize(sql) {
		if !t.is(".") {
			names = append(names, t.name())
		}
	}
	return names
}

// Covered reports whether the tokens of sql are in order and within it.
func Covered(sql string) bool {
	at := 0
	for _, t := range tokenize(sql) {
		if t.start < at || t.end <= t.start || t.end > len(sql) || sql[t.start:t.end] != t.text {
			return false
		}
		at = t.end
	}
	return true
}

// Tokens returns the texts of the tokens of sql.
func Tokens(sql string) (texts []string) {
	for _, t := range tokenize(sql) {
		texts = append(texts, t.text)
	}
	return texts
}

// SplitStatements exposes splitStatements.
func SplitStatements(sql string) []string {
	statements, _ := splitStatements(sql)
	return statements
}

// NumericRoundTrip encodes a decimal in binary and decodes it again.
func NumericRoundTrip(s string) (string, error) { return parseNumeric(appendNumeric(nil, s)) }

// NativeOK reports whether the driver's fields were found.
func NativeOK() bool { return nativeOK }

// MemoryLimit returns SQLite's heap limit, in bytes.
func MemoryLimit() int64 {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	return heap.values + heap.caches + heap.conns.Load()
}

// GiveMemoryBack trims SQLite's memory now.
func GiveMemoryBack() { trimNow() }

// MemoryWillBeGivenBack reports whether a trim is scheduled.
func MemoryWillBeGivenBack() bool {
	heap.trimming.Lock()
	defer heap.trimming.Unlock()
	return heap.armed.Load()
}

// Cached returns how much memory SQLite's page caches take, in bytes.
func Cached() int64 {
	tls := libc.NewTLS()
	defer tls.Close()
	return cached(tls)
}

// CopyFormat reads and writes the text or csv format of a COPY.
type CopyFormat struct{ o copyOptions }

// NewCopyFormat makes a CopyFormat from the options of a COPY.
func NewCopyFormat(options map[string]string) (*CopyFormat, error) {
	f := new(CopyFormat)
	return f, f.o.resolve(options)
}

// Line returns a row as COPY TO sends it, and the values that it stands for: a value of the text format that looks like
// NULL is NULL.
func (f *CopyFormat) Line(row [][]byte) (line []byte, means [][]byte) {
	for i, v := range row {
		if i > 0 {
			line = append(line, f.o.delimiter)
		}
		if v == nil {
			line = append(line, f.o.null...)
		} else if value := f.o.appendValue(nil, v, len(row) == 1); f.o.format == "text" && string(value) == f.o.null {
			v, line = nil, append(line, value...)
		} else {
			line = append(line, value...)
		}
		means = append(means, v)
	}
	return append(line, '\n'), means
}

// quiet is a connection without deadlines.
type quiet struct{ fiber.Stream }

func (quiet) SetReadDeadline(time.Time) error { return nil }

// MaxCopyRow bounds a row for Rows, in bytes.
const MaxCopyRow = 1 << 16

// Rows returns the rows in the data of a COPY FROM that arrives in messages of size bytes, and the most bytes buffered
// at a time.
func (f *CopyFormat) Rows(data []byte, size, columns int) (rows [][][]byte, held int, err error) {
	var stream bytes.Buffer
	w := pgwire.NewWriter(&stream)
	for part := range slices.Chunk(data, size) {
		w.Send(&pgwire.CopyData{Data: part})
	}
	w.Send(&pgwire.CopyDone{})
	if err := w.Flush(); err != nil {
		return nil, 0, err
	}
	s := &session{b: &Backend{cfg: Config{MaxMessage: MaxCopyRow}}, c: &pgproxy.Client{Conn: quiet{}, Reader: pgwire.NewReader(&stream)}}
	s.guard.s, s.guard.ctx = s, &statement{Context: context.Background()}
	in := &copyIn{copyStatement: &copyStatement{copyOptions: f.o}, s: s, columns: make([]string, columns)}
	for first := true; ; first = false {
		err := in.next(first)
		held = max(held, cap(in.buf)+cap(in.cell))
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return rows, held, err
		}
		in.split()
		row := make([][]byte, len(in.values))
		for i, v := range in.values {
			row[i] = bytes.Clone(v)
		}
		rows = append(rows, row)
	}
}
