package upstream_test

import (
	"context"
	"errors"
	"log/slog"
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
		Logger:   slog.New(slog.DiscardHandler),
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
