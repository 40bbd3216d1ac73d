package tcpproxy_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/tcpproxy"
)

// TestBudget: a fifth of the sessions of the last twenty seconds may move, and ten always.
func TestBudget(t *testing.T) {
	now := time.Unix(1e9, 0)
	b := tcpproxy.NewBudget(now)
	for _, step := range []struct {
		name     string
		after    time.Duration
		sessions uint64
		want     int
	}{
		{"the floor", time.Second, 20, 10},
		{"used up", time.Second, 30, 0},
		{"a fifth", time.Second, 150, 30},
		{"later", 7 * time.Second, 100, 20},
		{"it counts what has moved before", 9 * time.Second, 10, 2},
		{"the next window: what is left of the first one counts", 11 * time.Second, 0, 0},
		{"an hour later: the usual sessions, in the 3610 s since that one began", time.Hour, 360_000, 398},
		{"and an hour of silence", time.Hour, 0, 10},
	} {
		now = now.Add(step.after)
		b.Begin(step.sessions)
		if n := b.Take(now, 1000); n != step.want {
			t.Errorf("%s: %d sessions move, want %d", step.name, n, step.want)
		}
	}
}
