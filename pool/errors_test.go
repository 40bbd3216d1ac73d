package pool_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

func TestConfigErrors(t *testing.T) {
	b := &backend{t: t}
	for name, change := range map[string]func(*pool.Config[*res]){
		"Open":            func(c *pool.Config[*res]) { c.Open = nil },
		"Close":           func(c *pool.Config[*res]) { c.Close = nil },
		"Budget":          func(c *pool.Config[*res]) { c.Budget = new(pool.Budget) },
		"OnLeak":          func(c *pool.Config[*res]) { c.LeakAfter = 1 },
		"MaxSize":         func(c *pool.Config[*res]) { c.MaxSize = -1 },
		"MinIdle":         func(c *pool.Config[*res]) { c.MinIdle = 11 },
		"MaxIdle":         func(c *pool.Config[*res]) { c.MinIdle, c.MaxIdle = 3, 2 },
		"MaxLifetime":     func(c *pool.Config[*res]) { c.MaxLifetime = -1 },
		"AcquireTimeout":  func(c *pool.Config[*res]) { c.AcquireTimeout = -1 },
		"CheckInterval":   func(c *pool.Config[*res]) { c.CheckInterval = -1 },
		"OpenTimeout":     func(c *pool.Config[*res]) { c.OpenTimeout = -1 },
		"OpenConcurrency": func(c *pool.Config[*res]) { c.OpenConcurrency = -1 },
		"Overflow":        func(c *pool.Config[*res]) { c.Overflow = 7 },
	} {
		cfg := pool.Config[*res]{Name: "odd", Open: b.Open, Close: b.Close}
		change(&cfg)
		_, err := pool.New(cfg)
		if !errors.Is(err, pool.ErrConfig) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "odd") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	p := b.start(pool.Limits{})
	defer b.end(p)
	for _, err := range []error{p.Resize(0), p.Resize(1 << 30), p.Update(pool.Limits{MinIdle: -1})} {
		if !errors.Is(err, pool.ErrConfig) {
			t.Errorf("error %v", err)
		}
	}
	want(t, "size after refused changes", p.Stats().MaxSize, pool.DefaultMaxSize)
}

func TestOverflowNames(t *testing.T) {
	for _, o := range []pool.Overflow{pool.OverflowWait, pool.OverflowDirect} {
		got, err := pool.ParseOverflow(o.String())
		want(t, o.String(), got, o)
		want(t, "error", err, nil)
	}
	if _, err := pool.ParseOverflow("queue"); !errors.Is(err, pool.ErrConfig) {
		t.Errorf("error %v", err)
	}
}

func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1, AcquireTimeout: time.Minute, MaxWaiters: 3})
		holder := acquire(t, p)
		short, cancel1 := context.WithTimeout(ctx, time.Second)
		defer cancel1()
		canceled, cancel2 := context.WithCancel(ctx)
		byDeadline, byCancel, byLimit := begin(short, p), begin(canceled, p), begin(ctx, p)
		synctest.Wait()
		e := wantErr(t, acquireErr(p), pool.ErrTooManyWaiters)
		want(t, "waiting", e.Waiting, 3)
		want(t, "in use", e.InUse, 1)
		cancel2()
		time.Sleep(time.Second)
		synctest.Wait()
		e = wantErr(t, byDeadline.err, pool.ErrTimeout, context.DeadlineExceeded)
		want(t, "waited", e.Waited, time.Second)
		want(t, "net.Error timeout", e.Timeout(), true)
		wantErr(t, byCancel.err, context.Canceled)
		time.Sleep(time.Minute)
		synctest.Wait()
		e = wantErr(t, byLimit.err, pool.ErrTimeout)
		if errors.Is(e, context.DeadlineExceeded) || !strings.Contains(e.Error(), `pool "test": timed out`) {
			t.Errorf("error %v", e)
		}
		s := p.Stats()
		want(t, "timed out", s.TimedOut, 2)
		want(t, "canceled", s.Canceled, 1)
		want(t, "rejected", s.Rejected, 1)
		want(t, "waited", s.Waited, 4) // the first one for its open
		want(t, "peak", s.PeakInUse, 1)
		want(t, "age when it last refused", s.LastRefused.Sub(s.Since), time.Minute)
		holder.Release()
		wantErr(t, acquireErrCtx(canceled, p), context.Canceled)
		b.end(p)
		wantErr(t, acquireErr(p), pool.ErrClosed)
		if err := p.Resize(3); !errors.Is(err, pool.ErrClosed) {
			t.Errorf("Resize after Close: %v", err)
		}
	})
}

// The error reports a caller's deadline once, with the cause in its context.
func TestDeadlineIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 1})
		holder := acquire(t, p)
		for _, why := range []error{nil, errors.New("the request's time is over")} {
			late, cancel := context.WithTimeoutCause(ctx, time.Second, why)
			e := wantErr(t, acquireErrCtx(late, p), pool.ErrTimeout, context.DeadlineExceeded)
			cancel()
			if why != nil {
				wantErr(t, e, why)
			}
			want(t, "told", strings.Count(e.Error(), context.DeadlineExceeded.Error()), 1)
		}
		holder.Release()
		b.end(p)
	})
}

func acquireErr(p *pool.Pool[*res]) error { return acquireErrCtx(ctx, p) }

func acquireErrCtx(ctx context.Context, p *pool.Pool[*res]) error {
	_, err := p.Acquire(ctx)
	return err
}

func TestErrorSaysWhatMatters(t *testing.T) {
	down := errors.New("refused")
	for text, e := range map[string]*pool.Error{
		`pool "db": pool is closed`: {Kind: pool.ErrClosed, MaxSize: 3},
		`pool "db": open failed after 2s: refused`: {
			Kind: pool.ErrOpen, Cause: down, LastOpenError: down, Waited: 2 * time.Second, MaxSize: 3,
		},
		`pool "db": timed out waiting for a resource after 5s (max size 3: 3 in use, 0 idle, 0 opening; 7 waiting)`: {
			Kind: pool.ErrTimeout, Waited: 5 * time.Second, MaxSize: 3, InUse: 3, Waiting: 7,
		},
		`pool "db": timed out waiting for a resource after 5s while one was being opened (max size 3: 2 in use, 0 idle, 1 opening; 0 waiting; last open error: refused)`: {
			Kind: pool.ErrTimeout, Waited: 5 * time.Second, MaxSize: 3, InUse: 2, Opening: 1, LastOpenError: down,
		},
	} {
		e.Pool = "db"
		want(t, "error", e.Error(), text)
	}
}

func TestOpenErrorWithoutWaiters(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 2, MaxWaiters: -1})
	defer b.end(p)
	one, two := acquire(t, p), acquire(t, p)
	wantErr(t, acquireErr(p), pool.ErrTooManyWaiters)
	one.Release()
	two.Release()
}

func TestMisusePanics(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{})
	defer b.end(p)
	l := acquire(t, p)
	l.Release()
	stale := map[string]func(){"Release": l.Release, "Discard": l.Discard}
	for name, call := range stale {
		wantPanic(t, `pool "test": `+name, call)
	}
	again := acquire(t, p) // the same resource: the old lease must not touch it
	for name, call := range stale {
		wantPanic(t, `pool "test": `+name, call)
	}
	again.Discard()
	wantPanic(t, `pool "test": Discard`, again.Discard)
	wantPanic(t, `pool "test": Release`, again.Release)
	var zero pool.Lease[*res]
	wantPanic(t, "zero Lease", zero.Release)
	wantPanic(t, "zero Lease", zero.Discard)
	want(t, "in use", p.Stats().InUse, 0)
}

func wantPanic(t *testing.T, text string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if s, _ := recover().(string); !strings.Contains(s, text) {
			t.Errorf("panic %q does not contain %q", s, text)
		}
	}()
	f()
}

func TestWith(t *testing.T) {
	b := &backend{t: t}
	p := b.start(pool.Limits{MaxSize: 1})
	want(t, "error", p.With(ctx, func(*res) error { return errDown }), errDown)
	want(t, "kept", p.Stats().Idle, 1)
	if err := p.With(ctx, func(*res) error { return errors.Join(errDown, pool.ErrDiscard) }); !errors.Is(err, errDown) {
		t.Errorf("error %v", err)
	}
	want(t, "discarded", p.Stats().Discarded, 1)
	wantPanic(t, "ouch", func() { _ = p.With(ctx, func(*res) error { panic("ouch") }) })
	want(t, "discarded", p.Stats().Discarded, 2)
	b.end(p)
	wantErr(t, p.With(ctx, func(*res) error { return nil }), pool.ErrClosed)
}
