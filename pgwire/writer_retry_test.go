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

// TestWriterGap: messages that do not fit in the buffer after a time-out are lost with all that follows, until Retry. It succeeds
// if no message was cut off.
func TestWriterGap(t *testing.T) {
	big := strings.Repeat("x", 16<<10-100)
	for name, fill := range map[string]func(*pgwire.Writer) (whole bool){
		"messages": func(w *pgwire.Writer) bool {
			_, _ = w.Write([]byte(big))
			w.Send(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			return true
		},
		"a message from the middle on": func(w *pgwire.Writer) bool {
			w.Header(pgwire.TypeDataRow, len(big))
			_, _ = w.Write([]byte(big))
			return false
		},
		"a whole message behind its header": func(w *pgwire.Writer) bool {
			w.Header(pgwire.TypeDataRow, 0)
			_, _ = w.Write([]byte(big))
			return true
		},
	} {
		c := &lateConn{room: 3}
		w := pgwire.NewWriter(c)
		before := strings.Repeat("y", 1000)
		_, _ = w.Write([]byte(before))
		whole := fill(w)
		header := w.Buffered() - (1000 - 3)
		c.room = 1 << 20
		w.Retry()
		_, _ = w.Write([]byte("end"))
		switch err := w.Flush(); {
		case whole && (err != nil || c.Len() != 1000+header+3 || !strings.HasPrefix(c.String(), before) || !strings.HasSuffix(c.String(), "end")):
			t.Errorf("%s: %d bytes, %v", name, c.Len(), err)
		case !whole && (err == nil || c.Len() != 3):
			t.Errorf("%s: %d bytes, %v: something is written after a message that was cut off", name, c.Len(), err)
		}
	}
}
