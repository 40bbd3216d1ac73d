//go:build !race

package sqlite_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pgwire"
)

// A large value is sent from SQLite's memory. Copies of it, in hex, took several times its size.
func TestLargeValueIsNotCopied(t *testing.T) {
	const size = 64 << 20
	c := start(t).wire(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c.w.Send(&pgwire.Query{SQL: fmt.Sprintf(`SELECT 1, zeroblob(%d), NULL, 'end'`, size)})
	if err := c.w.Flush(); err != nil {
		t.Fatal(err)
	}
	length := 0
	for typ := byte(0); typ != pgwire.TypeReadyForQuery; {
		h, err := c.r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if typ = h.Type; typ == pgwire.TypeDataRow {
			length = h.Len
		}
		if err := c.r.Skip(); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if want := 2 + 4 + 1 + 4 + 2 + 2*size + 4 + 4 + 3; length != want {
		t.Errorf("a row of %d bytes, want %d", length, want)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > size/4 {
		t.Errorf("%d bytes were allocated to send a blob of %d", got, size)
	}
}

// A free connection is leased without a timer.
func TestLeaseWithoutTimer(t *testing.T) {
	session, plain := sqlite.Leases(t.Context(), start(t).b)
	allocs := func(lease func() error) float64 {
		return testing.AllocsPerRun(100, func() {
			if err := lease(); err != nil {
				t.Error(err)
			}
		})
	}
	if n := allocs(session) - allocs(plain); n > 1 { // the handle itself
		t.Errorf("a session's lease takes %v allocations more", n)
	}
}

// A statement that would take gigabytes to parse is refused.
func TestStatementOfManyWords(t *testing.T) {
	c := start(t).wire(t)
	c.w.Send(&pgwire.Query{SQL: "SELECT " + strings.Repeat("(", 3<<20)})
	c.want(c.until(pgwire.TypeReadyForQuery), "E 54000", "Z I")
	c.w.Send(&pgwire.Parse{Query: "SELECT " + strings.Repeat("(", 3<<20)})
	c.w.Send(&pgwire.Sync{})
	c.want(c.until(pgwire.TypeReadyForQuery), "E 54000", "Z I")
}

// A look-up by a prepared statement allocates its portal, its context and its lease. Once a millisecond, and possibly
// each time, it also allocates for a check of the file's path.
func TestPreparedLookUpAllocs(t *testing.T) {
	const want = 9 + 3
	if n := testing.AllocsPerRun(200, preparedLookUp(t)); n > want {
		t.Errorf("a look-up allocates %v times, want at most %d", n, want)
	}
}

// BenchmarkPrepared looks a key up by a prepared statement: Bind, Execute, Sync.
func BenchmarkPrepared(b *testing.B) {
	look := preparedLookUp(b)
	b.ReportAllocs()
	for b.Loop() {
		look()
	}
}

// preparedLookUp returns a function that looks a key up by a prepared statement and allocates nothing itself.
func preparedLookUp(tb testing.TB) func() {
	s := start(tb)
	mustExec(tb, s.connect(tb), "CREATE TABLE kv (k INTEGER PRIMARY KEY, v INTEGER)")
	mustExec(tb, s.connect(tb), "INSERT INTO kv VALUES (1, 10), (2, 20)")
	c := s.wire(tb)
	c.w.Send(&pgwire.Parse{Name: "look", Query: "SELECT v FROM kv WHERE k = $1"})
	c.w.Send(&pgwire.Sync{})
	c.until(pgwire.TypeReadyForQuery)
	bind := &pgwire.Bind{Statement: "look", Params: [][]byte{[]byte("2")}}
	return func() {
		c.w.Send(bind)
		c.w.Send(&pgwire.Execute{})
		c.w.Send(&pgwire.Sync{})
		if err := c.w.Flush(); err != nil {
			tb.Fatal(err)
		}
		for typ := byte(0); typ != pgwire.TypeReadyForQuery; {
			h, err := c.r.Next()
			if err != nil {
				tb.Fatal(err)
			}
			if typ = h.Type; typ == pgwire.TypeErrorResponse {
				tb.Fatal("an error")
			}
			if err := c.r.Skip(); err != nil {
				tb.Fatal(err)
			}
		}
	}
}
