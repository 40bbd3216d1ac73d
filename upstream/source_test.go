package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// pusher is a Source that a test pushes sets through.
type pusher struct {
	sets chan []upstream.Endpoint
	errs chan error
	took chan error // results of report
}

func newPusher() *pusher {
	return &pusher{make(chan []upstream.Endpoint), make(chan error), make(chan error, 1)}
}

func (*pusher) String() string { return "test" }

func (p *pusher) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-p.sets:
			p.took <- report(set, nil)
		case err := <-p.errs:
			p.took <- report(nil, err)
		}
	}
}

func (p *pusher) push(addrs ...string) error {
	p.sets <- upstream.Endpoints(addrs...)
	return <-p.took
}

func (p *pusher) fail(err error) error {
	p.errs <- err
	return <-p.took
}

func addressesOf(s upstream.Status) (in, removed []string) {
	for _, e := range s.Endpoints {
		if e.Removed {
			removed = append(removed, e.Address)
		} else {
			in = append(in, e.Address)
		}
	}
	return in, removed
}

// TestSource follows a set through its life: waited for, changed, failing, kept, replaced by a static list.
func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newBackends(), newPusher()
		cfg := b.config()
		cfg.Source, cfg.Limits.AcquireTimeout = src, time.Minute
		u := start(t, cfg)
		first := make(chan string)
		go func() {
			l, err := u.Acquire(context.Background())
			if err != nil {
				first <- err.Error()
				return
			}
			defer l.Release()
			first <- l.Endpoint()
		}()
		synctest.Wait()
		if err := src.push("a:1", "b:1"); err != nil {
			t.Fatal(err)
		}
		if got := <-first; got != "a:1" && got != "b:1" {
			t.Fatalf("a caller that waited for the first set got %s", got)
		}
		used(t, u, 50)
		opened := b.opened["a:1"]
		if err := src.push("c:1", "a:1"); err != nil {
			t.Fatal(err)
		}
		used(t, u, 50)
		if b.opened["a:1"] != opened {
			t.Error("an endpoint that stayed was opened again")
		}
		failAndRecover(t, u, src)
		if err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints("a:1", "c:1")}); err != nil {
			t.Fatal(err)
		}
		if s := u.Status().Source; s.Name != "" || b.opened["a:1"] != opened {
			t.Errorf("%+v after a static list took its place; opened %d, want %d", s, b.opened["a:1"], opened)
		}
		log := b.log.String()
		for _, line := range []string{`msg="endpoints changed" upstream=api source=test added=c:1 removed=b:1 endpoints=2`,
			`msg="the source of endpoints fails, the last set is kept" upstream=api source=test endpoints=2 error="no such host"`, "works again"} {
			if strings.Count(log, line) != 1 {
				t.Errorf("the log has %q %d times, want once:\n%s", line, strings.Count(log, line), log)
			}
		}
	})
}

// failAndRecover makes a source fail in every way, after its last report of c:1 and a:1, and then work again.
func failAndRecover(t *testing.T, u *upstream.Upstream[*conn], src *pusher) {
	t.Helper()
	since := time.Now()
	for _, bad := range []func() error{
		func() error { return src.fail(errors.New("no such host")) },
		func() error { return src.push() },
		func() error { return src.push("a:1", "a:1") },
		func() error { return src.push("nonsense") },
	} {
		time.Sleep(time.Second)
		if err := bad(); err == nil {
			t.Error("a set that cannot be was taken")
		}
	}
	s := u.Status()
	if in, _ := addressesOf(s); !slices.Equal(in, []string{"c:1", "a:1"}) {
		t.Errorf("%q after failures, want the last set", in)
	}
	if src := s.Source; src.Name != "test" || src.Failed != 4 || src.Added != 3 || src.Removed != 1 || src.LastError == "" ||
		!src.FailingSince.Equal(since.Add(time.Second)) || !src.Changed.Equal(since) {
		t.Errorf("%+v", src)
	}
	if err := src.push("c:1", "a:1"); err != nil {
		t.Fatal(err)
	}
	if src := u.Status().Source; src.LastError != "" || !src.FailingSince.IsZero() || src.Updated.Equal(src.Changed) {
		t.Errorf("%+v after it works again", src)
	}
}

// TestSourceReplacesStaticList the static list is used until the source's first report.
func TestSourceReplacesStaticList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, src := newBackends(), newPusher()
		u := start(t, b.config("a:1", "b:1"))
		used(t, u, 20)
		before := b.opened["a:1"] + b.opened["b:1"]
		if err := u.Update(upstream.Settings{Source: src}); err != nil {
			t.Fatal(err)
		}
		used(t, u, 20)
		if err := src.fail(errors.New("down")); err == nil {
			t.Error("no error")
		}
		used(t, u, 20)
		if err := src.push("b:1", "a:1"); err != nil {
			t.Fatal(err)
		}
		used(t, u, 20)
		if now := b.opened["a:1"] + b.opened["b:1"]; now != before {
			t.Errorf("%d connections were opened anew", now-before)
		}
		other := newPusher()
		if err := u.Update(upstream.Settings{Source: other}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := other.push("c:1"); err != nil {
			t.Fatal(err)
		}
		if got := used(t, u, 5); got["c:1"] != 5 {
			t.Errorf("got %v, want c:1 of the new source", got)
		}
	})
}

// TestNoFirstSet: a caller that acquires before there is a set gets the reason.
func TestNoFirstSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newPusher()
		cfg := newBackends().config()
		cfg.Source, cfg.Limits.AcquireTimeout = src, 3*time.Second
		u := start(t, cfg)
		begin := time.Now()
		_, err := u.Acquire(t.Context())
		if !errors.Is(err, upstream.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		cause := errors.New("no such host")
		_ = src.fail(cause)
		begin = time.Now()
		if _, err := u.Acquire(t.Context()); !errors.Is(err, cause) || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if upstream.Exhausted(err) {
			t.Error("that is no full pool")
		}
	})
}

// TestFirstSetIsAwaited has clients wait for the first set, as many as may wait. New limits reach them.
func TestFirstSetIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newPusher()
		cfg := newBackends().config()
		cfg.Source, cfg.Limits = src, pool.Limits{MaxSize: 1, MaxWaiters: 1, AcquireTimeout: 3 * time.Second}
		u := start(t, cfg)
		leased := make(chan upstream.Lease[*conn])
		go func() { leased <- acquire(t, u) }()
		time.Sleep(2 * time.Second)
		if _, err := u.Acquire(t.Context()); !errors.Is(err, pool.ErrTooManyWaiters) || !upstream.Exhausted(err) {
			t.Error(err)
		}
		cfg.Limits.AcquireTimeout = time.Hour
		if err := u.Update(cfg.Settings); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := u.Status().Waiting; n != 1 {
			t.Errorf("%d wait", n)
		}
		if err := src.push("a:1"); err != nil {
			t.Error(err)
		}
		(<-leased).Release()
		u.Close()
	})
}

type panics struct{}

func (*panics) String() string { return "panics" }
func (*panics) Watch(context.Context, func([]upstream.Endpoint, error) error) {
	panic("of the source")
}

func TestSourcePanics(t *testing.T) {
	cfg := newBackends().config()
	cfg.Source = &panics{}
	u := start(t, cfg)
	if _, err := u.Acquire(t.Context()); err == nil || !strings.Contains(err.Error(), "of the source") {
		t.Errorf("got %v", err)
	}
}

// TestRemoved has leases of a removed endpoint drain, drain for a time, or be interrupted at once.
func TestRemoved(t *testing.T) {
	for _, test := range []struct {
		how   upstream.Removal
		limit time.Duration
		after time.Duration // when the lease is interrupted; 0 = never
	}{
		{upstream.DrainRemoved, 0, 0},
		{upstream.DrainRemoved, time.Minute, time.Minute},
		{upstream.CloseRemoved, 0, time.Nanosecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, src := newBackends(), newPusher()
			var interrupted []time.Duration
			begin := time.Now()
			cfg := b.config("a:1", "b:1")
			cfg.Source, cfg.OnRemoved, cfg.RemovedTimeout = src, test.how, test.limit
			cfg.Interrupt = func(c *conn, _ error) {
				if c.endpoint != "a:1" {
					t.Errorf("a lease of %s was interrupted", c.endpoint)
				}
				interrupted = append(interrupted, time.Since(begin))
			}
			u := start(t, cfg)
			held := map[string]upstream.Lease[*conn]{}
			for len(held) < 2 {
				l := acquire(t, u)
				if _, twice := held[l.Endpoint()]; twice {
					l.Release()
					continue
				}
				held[l.Endpoint()] = l
			}
			if err := src.push("b:1"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if _, removed := addressesOf(u.Status()); !slices.Equal(removed, []string{"a:1"}) {
				t.Errorf("removed: %q", removed)
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			want := []time.Duration{test.after}
			if test.after == 0 {
				want = nil
			} else if test.limit == 0 {
				want[0] = 0
			}
			if !slices.Equal(interrupted, want) {
				t.Errorf("%v %v: interrupted after %v, want %v", test.how, test.limit, interrupted, want)
			}
			closed := b.closed.Load()
			held["a:1"].Release()
			synctest.Wait()
			if b.closed.Load() != closed+1 {
				t.Error("the connection of a removed endpoint was not closed when it was released")
			}
			if _, removed := addressesOf(u.Status()); len(removed) > 0 {
				t.Errorf("removed: %q, although its lease was released", removed)
			}
			held["b:1"].Release()
		})
	}
}

// TestSourceUnderLoad pushes random sets, some with another weight or priority, while callers lease; one endpoint is in
// all of them. No caller may notice, and nothing may be left open.
func TestSourceUnderLoad(t *testing.T) {
	b, src := newBackends(), newPusher()
	cfg := b.config("a:1")
	cfg.Source, cfg.SlowStart, cfg.Health.Probe, cfg.RemovedTimeout = src, 50*time.Millisecond, b.probe, time.Hour
	cfg.Interrupt = func(*conn, error) {}
	u := start(t, cfg)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l, err := u.AcquireKey(context.Background(), fmt.Sprint(i))
				if err != nil {
					t.Error(err)
					return
				}
				l.Release()
			}
		})
	}
	for i := range 200 {
		set := []upstream.Endpoint{{Address: "a:1", Weight: 1 + rand.IntN(3)}}
		for _, addr := range []string{"b:1", "c:1", "d:1"} {
			if rand.IntN(2) == 0 {
				set = append(set, upstream.Endpoint{Address: addr, Weight: 1 + rand.IntN(3), Priority: rand.IntN(2)})
			}
		}
		src.sets <- set
		if err := <-src.took; err != nil {
			t.Error(err)
		}
		if i%10 == 0 {
			s := cfg.Settings
			s.Balance, s.Limits = upstream.Balance(i/10%4), pool.Limits{MinIdle: i % 3}
			if err := u.Update(s); err != nil {
				t.Error(err)
			}
		}
		u.Status()
	}
	close(stop)
	wg.Wait()
	if err := u.Drain(t.Context()); err != nil {
		t.Error(err)
	}
	b.allClosed(t)
}

// TestFreeze ends the Source and keeps its endpoints, also for callers that wait for the first
// report.
func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newPusher()
		cfg := newBackends().config()
		cfg.Source = src
		u := start(t, cfg)
		if err := src.push("a:1"); err != nil {
			t.Fatal(err)
		}
		u.Freeze()
		u.Freeze()
		synctest.Wait()
		select {
		case src.sets <- upstream.Endpoints("b:1"):
			t.Error("the source is still asked")
		default:
		}
		if got := used(t, u, 5); got["a:1"] != 5 {
			t.Errorf("got %v, want the last set", got)
		}
		waiting := start(t, upstream.Config[*conn]{Name: "w", Settings: upstream.Settings{Source: newPusher()}, Open: cfg.Open, Close: cfg.Close, Logger: cfg.Logger})
		failed := make(chan error)
		go func() {
			_, err := waiting.Acquire(t.Context())
			failed <- err
		}()
		synctest.Wait()
		waiting.Freeze()
		if err := <-failed; !errors.Is(err, upstream.ErrUnavailable) {
			t.Errorf("%v, want that there is none", err)
		}
	})
}
