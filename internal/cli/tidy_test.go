package cli

import (
	"testing"
	"time"
)

// Memory is given back after a rush, once, and not between two that follow each other.
func TestMemoryIsGivenBackAfterARush(t *testing.T) {
	var tidier tidier
	now := time.Now()
	for i, look := range []struct {
		after     time.Duration
		allocated uint64 // since the last look
		want      bool
	}{
		{time.Second, 20 << 20, false}, // a rush
		{time.Second, 20 << 20, false},
		{time.Second, 1 << 10, true}, // is over
		{time.Second, 1 << 10, false},
		{time.Second, 20 << 20, false}, // the next comes soon
		{time.Second, 1 << 10, false},
		{time.Second, 20 << 20, false},
		{10 * time.Second, 1 << 10, true},
		{time.Minute, 1 << 20, false}, // busy, if only a little
		{time.Minute, 1 << 10, false}, // and it was not much
	} {
		now = now.Add(look.after)
		if got := tidier.due(now, tidier.last+look.allocated); got != look.want {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
	}
}
