package cli

import (
	"testing"
	"time"
)

// Memory is returned once after a burst, and not between two bursts that follow each other.
func TestMemoryIsGivenBackAfterARush(t *testing.T) {
	var tidier tidier
	tidier.took(time.Second)
	now := time.Now()
	for i, look := range []struct {
		after     time.Duration
		allocated uint64 // since the last check
		live      uint64
		want      bool
	}{
		{time.Second, 20 << 20, 0, false}, // a burst
		{time.Second, 20 << 20, 0, false},
		{time.Second, 1 << 10, 0, true}, // the burst is over
		{time.Second, 1 << 10, 0, false},
		{time.Second, 20 << 20, 0, false}, // the next burst comes soon
		{time.Second, 1 << 10, 0, false},
		{time.Second, 20 << 20, 0, false},
		{10 * time.Second, 1 << 10, 0, true},
		{time.Minute, 512 << 10, 0, false}, // a little load
		{time.Minute, 1 << 10, 0, false},   // too little was allocated
		{time.Minute, 512 << 10, 16 << 20, false},
		{time.Minute, 2 << 20, 1 << 30, false}, // quiet for so many clients, but not worth it
		{time.Minute, 1 << 10, 1 << 30, false}, // not worth it with this much memory in use
		{time.Minute, 1 << 10, 1 << 20, true},
	} {
		now = now.Add(look.after)
		if got := tidier.due(now, tidier.last+look.allocated, look.live); got != look.want {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
	}
}

// The cheaper a trim is, the sooner another one may follow.
func TestCheapTrimsMayFollowEachOther(t *testing.T) {
	var tidier tidier
	now := time.Now()
	for i, look := range []struct {
		took time.Duration
		want bool
	}{
		{10 * time.Millisecond, true}, // the first
		{0, false},
		{4 * time.Millisecond, true}, // 6 s later
		{time.Minute, true},          // 3 s later
		{0, false},
		{0, false},
		{0, false},
		{time.Second, true}, // 12 s later, whatever the last one took
	} {
		now = now.Add(3 * time.Second)
		if got := tidier.due(now, tidier.last+4<<20, 128<<20); got {
			t.Errorf("look %d: a trim during a burst", i)
		}
		tidier.last = tidier.tidied + 20<<20 // the burst is over
		if got := tidier.due(now, tidier.last, 1<<20); got != look.want {
			t.Errorf("look %d: %v, want %v", i, got, look.want)
		}
		if look.want {
			tidier.took(look.took)
		}
	}
}

// What only the start needs is returned when the start is over, before the first burst.
func TestMemoryOfTheStartIsGivenBack(t *testing.T) {
	ready, done, trimmed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tidy(ready, done, func() { close(trimmed) })
	}()
	close(ready)
	<-trimmed
	close(done)
	<-ended
}
