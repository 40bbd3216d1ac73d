package pgwire_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// lateConn takes some bytes, and then runs into its deadline.
type lateConn struct {
	bytes.Buffer
	room int
}

func (c *lateConn) Write(p []byte) (int, error) {
	if n := min(c.room, len(p)); n < len(p) {
		c.room = 0
		_, _ = c.Buffer.Write(p[:n])
		return n, os.ErrDeadlineExceeded
	}
	c.room -= len(p)
	return c.Buffer.Write(p)
}

// TestWriterRetry: after a time-out the rest can be written, and nothing is if a part of it is gone.
func TestWriterRetry(t *testing.T) {
	c := &lateConn{room: 3}
	w := pgwire.NewWriter(c)
	_, _ = w.Write([]byte("hello "))
	if w.Flush() == nil || w.Flush() == nil {
		t.Error("a time-out is no error")
	}
	_, _ = w.Write([]byte("world"))
	c.room = 100
	if w.Retry(); w.Flush() != nil || c.String() != "hello world" || w.Written() != 11 {
		t.Errorf("%q, %d bytes", c.String(), w.Written())
	}
	big := []byte(strings.Repeat("x", 1<<20))
	if _, err := w.Write(big); err == nil {
		t.Error("a time-out in a large message is no error")
	}
	c.room = 2 << 20
	if w.Retry(); w.Flush() == nil {
		t.Error("something is written after a message that was cut off")
	}
}
