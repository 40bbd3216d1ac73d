package pgwire_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/headpond/headpond/pgwire"
)

// Fill takes the result of one Read of the source, and reports its end as Next does.
func TestFill(t *testing.T) {
	message := (&pgwire.Query{SQL: strings.Repeat("a", 600)}).Append(nil)
	for cut := range message {
		r := pgwire.NewReader(iotest.OneByteReader(strings.NewReader(string(message[:cut]))))
		for range cut {
			if err := r.Fill(); err != nil {
				t.Fatal(err)
			}
		}
		want := io.ErrUnexpectedEOF
		if cut == 0 {
			want = io.EOF
		}
		if err := r.Fill(); r.Buffered() != cut || r.HasMessage() || !errors.Is(err, want) {
			t.Fatalf("%d bytes of %d, %v", r.Buffered(), cut, err)
		}
	}
	r := pgwire.NewReader(strings.NewReader(string(message)))
	if err := r.Fill(); err != nil || !r.HasMessage() {
		t.Fatal(err, r.Buffered())
	}
	r = pgwire.NewReader(iotest.ErrReader(io.ErrClosedPipe))
	if err := r.Fill(); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}
