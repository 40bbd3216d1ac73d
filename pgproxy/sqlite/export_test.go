package sqlite

import (
	"context"

	"github.com/headpond/headpond/pool"
)

// Leases returns two ways to lease a reader and give it back: as a session does, and without one.
func Leases(ctx context.Context, b *Backend) (asSession, plain func() error) {
	p := newPatient(b)
	s := &session{b: b, ctx: pool.WithParker(ctx, p), patient: p}
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

// Literals returns the values of the string literals and the texts of quoted
// names, in order.
func Literals(sql string) (strings, names []string) {
	for _, t := range tokenize(sql) {
		switch t.kind {
		case kindString:
			strings = append(strings, stringValue(t.text))
		case kindQuoted:
			names = append(names, t.text)
		}
	}
	return strings, names
}

// Covered reports whether the tokens of sql lie in order and inside it.
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

// MemoryLimit returns the bound of SQLite's memory in the process, in bytes.
func MemoryLimit() int64 {
	heap.mu.Lock()
	defer heap.mu.Unlock()
	return heap.values + heap.conns.Load()
}

// GiveMemoryBack does at once what otherwise happens some time after a statement.
func GiveMemoryBack() { trimNow() }
