package sqlite_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
)

// TestIdleSince has a client ask again and again: it is idle since its last answer.
func TestIdleSince(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	since := func() time.Time {
		if n := one[int](t, conn, "select 1"); n != 1 {
			t.Error(n)
		}
		return s.p.Sessions()[0].Since
	}
	first := since()
	conntest.Eventually(t, "the client is idle since a later time", func() bool { return since().After(first) })
}
