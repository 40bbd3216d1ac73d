package pgwire_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/headpond/headpond/pgwire"
)

// Bytes of Unread come first, long or short, in a used or a new Reader.
func TestUnread(t *testing.T) {
	message := func(text string) []byte { return (&pgwire.Query{SQL: text}).Append(nil) }
	for _, size := range []int{0, 100, 507, 508, 5000, 16<<10 - 6} {
		first, second := message(strings.Repeat("a", size)), message("second")
		r := pgwire.NewReader(bytes.NewReader(second))
		for range 3 {
			r.Unread(first)
			if got := r.Run(func(byte, []byte) bool { return true }); !bytes.Equal(got, first) {
				t.Fatalf("%d bytes: got %d", len(first), len(got))
			}
			r.Release()
		}
		r.Unread(first[:len(first)-2])
		if r.HasMessage() {
			t.Errorf("%d bytes: a message without its end", len(first))
		}
		r.Release() // which there is something in
		if r.Buffered() != len(first)-2 {
			t.Errorf("%d bytes buffered of %d", r.Buffered(), len(first)-2)
		}
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		r = pgwire.NewReader(bytes.NewReader(second))
		r.Unread(first)
		for _, want := range [][]byte{first, second} {
			h, err := r.Next()
			if err != nil || h.Len != len(want)-5 {
				t.Fatalf("%+v, %v", h, err)
			}
			if body, err := r.Body(); err != nil || !bytes.Equal(body, want[5:]) {
				t.Fatalf("another body, %v", err)
			}
			r.Release()
		}
		if _, err := r.Next(); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
}
