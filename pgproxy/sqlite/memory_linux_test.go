package sqlite_test

import (
	"bytes"
	"os"
	"strconv"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
)

// resident returns the resident memory of the process, in bytes.
func resident(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(string(bytes.Fields(b)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// Memory that SQLite's allocator keeps after a statement is returned to the system.
func TestMemoryIsGivenBack(t *testing.T) {
	conn := start(t).connect(t)
	sqlite.GiveMemoryBack()
	before := resident(t)
	for range 3 {
		if n := one[int64](t, conn, `SELECT length(hex(zeroblob(50000000)) || hex(zeroblob(10000000)))`); n != 120000000 {
			t.Fatalf("%d bytes", n)
		}
		sqlite.GiveMemoryBack()
		if after := resident(t); after > before+40<<20 {
			t.Errorf("%d MiB before and %d MiB after", before>>20, after>>20)
		}
	}
}
