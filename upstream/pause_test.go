package upstream_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestPauseEndsWithItsLimit pauses for no longer than Pause itself takes: no endpoint stays paused.
func TestPauseEndsWithItsLimit(t *testing.T) {
	u, err := upstream.New(upstream.Config[int]{
		Name:     "paused",
		Settings: upstream.Settings{Endpoints: []upstream.Endpoint{{Address: "a:1"}, {Address: "b:1"}, {Address: "c:1"}}},
		Open:     func(context.Context, string) (int, error) { return 1, nil },
		Close:    func(int) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for range 2000 {
		if err := u.Pause(time.Nanosecond); err != nil {
			t.Fatal(err)
		}
		for !u.Status().PausedUntil.IsZero() {
			runtime.Gosched()
		}
		u.Resume()
		for _, e := range u.Status().Endpoints {
			if e.Pool.Paused {
				t.Fatalf("endpoint %s stays paused, and Resume does not end it", e.Address)
			}
		}
	}
	if err := u.Pause(upstream.MaxPause + 1); !errors.Is(err, upstream.ErrConfig) {
		t.Error(err)
	}
	u.Close()
	if err := u.Pause(time.Hour); !errors.Is(err, pool.ErrClosed) {
		t.Error(err)
	}
}

// TestPauseStopsTheClockOfNarrow has an acquire that may wait for an instant wait for the end of a pause.
func TestPauseStopsTheClockOfNarrow(t *testing.T) {
	u, err := upstream.New(upstream.Config[int]{
		Name:     "paused",
		Settings: upstream.Settings{Endpoints: []upstream.Endpoint{{Address: "a:1"}}},
		Open:     func(context.Context, string) (int, error) { return 1, nil },
		Close:    func(int) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if err := u.Pause(time.Hour); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		l, err := u.AcquireNarrow(t.Context(), "", upstream.Narrow{Wait: time.Nanosecond})
		if err == nil {
			l.Release()
		}
		ended <- err
	}()
	for u.Status().Endpoints[0].Pool.Waiting == 0 {
		select {
		case err := <-ended:
			t.Fatal(err)
		default:
			runtime.Gosched()
		}
	}
	u.Resume()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestReplaced: callers that wait at an Upstream when it is closed, and those that come after that, get connections of the one that
// has replaced it, or of the one that has replaced this. What is leased stays.
func TestReplaced(t *testing.T) {
	b := newBackends()
	cfg := b.config("a:1")
	cfg.Limits = pool.Limits{MaxSize: 1}
	old, between, last := start(t, cfg), start(t, b.config("b:1")), start(t, b.config("c:1"))
	held := acquire(t, old)
	got := make(chan string)
	go func() {
		l, err := old.AcquireNarrow(t.Context(), "", upstream.Narrow{})
		if err != nil {
			t.Error(err)
		} else {
			defer l.Release()
		}
		got <- l.Endpoint()
	}()
	for old.Status().Endpoints[0].Pool.Waiting == 0 {
		runtime.Gosched()
	}
	old.ReplaceBy(between)
	between.ReplaceBy(last)
	old.Close()
	if e := <-got; e != "b:1" {
		t.Errorf("the caller that waited has a connection to %s", e)
	}
	between.Close()
	l := acquire(t, old)
	if e := l.Endpoint(); e != "c:1" {
		t.Errorf("a later caller has a connection to %s", e)
	}
	l.Release()
	held.Release()
	last.Close()
	if _, err := old.Acquire(t.Context()); !errors.Is(err, pool.ErrClosed) {
		t.Error(err)
	}
}
