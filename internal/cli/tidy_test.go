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
		live      uint64
		want      bool
	}{
		{time.Second, 20 << 20, 0, false}, // a rush
		{time.Second, 20 << 20, 0, false},
		{time.Second, 1 << 10, 0, true}, // is over
		{time.Second, 1 << 10, 0, false},
		{time.Second, 20 << 20, 0, false}, // the next comes soon
		{time.Second, 1 << 10, 0, false},
		{time.Second, 20 << 20, 0, false},
		{10 * time.Second, 1 << 10, 0, true},
		{time.Minute, 512 << 10, 0, false}, // busy, if only a little
		{time.Minute, 1 << 10, 0, false},   // and it was not much
		{time.Minute, 2 << 20, 1 << 30, false},
		{time.Minute, 1 << 10, 1 << 30, false}, // not for so much that is in use
		{time.Minute, 1 << 10, 1 << 20, true},
	} {
		now = now.Add(look.after)
		if got := tidier.due(now, tidier.last+look.allocated, look.live); got != look.want {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
	}
}
