package gateway_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
)

// TestHoldersAreNamedOnce: and then when they have held twice as long, however often others begin and stop to wait meanwhile.
func TestHoldersAreNamedOnce(t *testing.T) {
	began := time.Now()
	var all []listener.Info
	for i := range 20 {
		all = append(all, listener.Info{ID: fmt.Sprint(i), Upstream: "a", Held: began})
	}
	all = append(all, listener.Info{ID: "b", Upstream: "b", Held: began}, listener.Info{ID: "idle", Upstream: "a"})
	var h gateway.Holders
	lines := map[string]int{}
	for second := range 100 {
		crowded := map[string]int{"a": 3}
		if second%2 == 1 {
			crowded = map[string]int{"b": 1}
		}
		for _, s := range h.Due(append([]listener.Info(nil), all...), crowded, 10*time.Second, began.Add(time.Duration(second)*time.Second)) {
			lines[s.ID]++
		}
	}
	if len(lines) != 6 || lines["idle"] != 0 {
		t.Errorf("named: %v", lines)
	}
	for id, n := range lines {
		if n != 4 { // after 10, 20, 40 and 80 seconds
			t.Errorf("%s is named %d times", id, n)
		}
	}
	if h.Due(nil, map[string]int{"a": 1}, 0, began); h.Remembered() != 0 {
		t.Errorf("%d are remembered", h.Remembered())
	}
}

// TestHoldersAreNotToBlame: nobody is named while those who wait get connections that are being opened, as when a server answers late,
// or wait for the end of a pause or the next attempt to open a connection.
func TestHoldersAreNotToBlame(t *testing.T) {
	for name, c := range map[string]struct {
		pool pool.Stats
		want int
	}{
		"full":                     {pool.Stats{MaxSize: 5, InUse: 5, Waiting: 3}, 3},
		"a slow server":            {pool.Stats{MaxSize: 500, InUse: 5, Opening: 251, Waiting: 251}, 0},
		"one more than are opened": {pool.Stats{MaxSize: 5, InUse: 3, Opening: 2, Waiting: 3}, 1},
		"opened ahead of demand":   {pool.Stats{MaxSize: 5, InUse: 3, Opening: 2}, 0},
		"opens fail":               {pool.Stats{MaxSize: 500, InUse: 41, Waiting: 3, LastOpenError: io.ErrUnexpectedEOF}, 0},
		"full, and opens fail":     {pool.Stats{MaxSize: 5, InUse: 5, Waiting: 3, LastOpenError: io.ErrUnexpectedEOF}, 3},
		"paused":                   {pool.Stats{MaxSize: 5, InUse: 5, Waiting: 3, Paused: true}, 0},
	} {
		if got := gateway.WaitForLeases(c.pool); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
