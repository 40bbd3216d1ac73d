package upstream_test

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/upstream"
)

// holders hold leases that end when they are interrupted.
type holders struct {
	mu    sync.Mutex
	out   map[*conn]upstream.Lease[*conn]
	ended map[string][]time.Time   // when, by endpoint
	talks map[string]bool          // endpoints from which something is received
	late  map[string]time.Duration // how late endpoints answer their checks
}

// heard is Config.Heard.
func (p *holders) heard(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.talks[c.endpoint]
}

// talk sets whether something is received from an endpoint.
func (p *holders) talk(endpoint string, talks bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.talks[endpoint] = talks
}

// delay sets how late an endpoint answers its checks.
func (p *holders) delay(endpoint string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late[endpoint] = d
}

// answer waits for an endpoint's answer to a check.
func (p *holders) answer(ctx context.Context, endpoint string) {
	p.mu.Lock()
	d := p.late[endpoint]
	p.mu.Unlock()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (p *holders) interrupt(c *conn, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.out[c]
	if !ok || !errors.Is(why, upstream.ErrUnhealthy) {
		panic("interrupted without a reason, or after its end")
	}
	delete(p.out, c)
	p.ended[c.endpoint] = append(p.ended[c.endpoint], time.Now())
	l.Discard()
}

// hold takes n leases of each of two endpoints.
func (p *holders) hold(t *testing.T, u *upstream.Upstream[*conn], n int) {
	for range 2 * n {
		l := acquire(t, u)
		p.mu.Lock()
		p.out[l.Value()] = l
		p.mu.Unlock()
	}
}

func (p *holders) count(endpoint string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ended[endpoint])
}

// one returns a lease of an endpoint.
func (p *holders) one(endpoint string) upstream.Lease[*conn] {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c, l := range p.out {
		if c.endpoint == endpoint {
			return l
		}
	}
	panic("there is none")
}

// here returns the number of leases of an endpoint.
func (p *holders) here(endpoint string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.out {
		if c.endpoint == endpoint {
			n++
		}
	}
	return n
}

func (p *holders) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.out {
		l.Discard()
	}
}

// twoHeld is an upstream of a:1 and b:1 with twenty leases each. An endpoint in sick fails its
// checks, one in silent does not answer them.
func twoHeld(t *testing.T, h upstream.Health, test func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		silent := map[string]bool{}
		p := &holders{out: map[*conn]upstream.Lease[*conn]{}, ended: map[string][]time.Time{}, talks: map[string]bool{}, late: map[string]time.Duration{}}
		cfg := b.config("a:1", "b:1")
		cfg.Balance, cfg.Interrupt, cfg.Heard, cfg.Health = upstream.RoundRobin, p.interrupt, p.heard, h
		cfg.Limits.MaxSize = 1000
		cfg.Health.Interval, cfg.Health.Timeout, cfg.Health.Fall, cfg.Health.Rise = time.Second, time.Second, cmp.Or(h.Fall, 3), 2
		cfg.Health.Probe = func(ctx context.Context, addr string) error {
			b.mu.Lock()
			hangs := silent[addr]
			b.mu.Unlock()
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			p.answer(ctx, addr)
			return b.probe(ctx, addr)
		}
		u := start(t, cfg)
		synctest.Wait()
		p.hold(t, u, 20)
		test(t, u, b, silent, p)
		u.Close()
		p.release()
	})
}

var closing = upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Stagger: 4 * time.Second}

// TestSilentEndpointIsEmptied: all leases end, spread over the time for that, and none of the other endpoint's. One that it
// gets later ends too.
func TestSilentEndpointIsEmptied(t *testing.T) {
	twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		b.set(silent, "a:1", true)
		time.Sleep(30 * time.Second)
		if n, other := p.count("a:1"), p.count("b:1"); n != 20 || other != 0 {
			t.Fatalf("interrupted %d and %d leases, want 20 and 0", n, other)
		}
		ended := p.ended["a:1"]
		if took := ended[19].Sub(ended[0]); took != 19*200*time.Millisecond {
			t.Errorf("that took %v", took)
		}
		b.set(b.down, "b:1", true)
		b.set(silent, "a:1", true)
		l, err := u.Acquire(t.Context())
		if err != nil || l.Endpoint() != "a:1" {
			t.Fatalf("%v, %v", l, err)
		}
		p.mu.Lock()
		p.out[l.Value()] = l
		p.mu.Unlock()
		time.Sleep(2 * time.Second)
		if n := p.count("a:1"); n != 21 {
			t.Errorf("interrupted %d leases, want 21", n)
		}
	})
}

// TestRemovedEndpointIsEmptied: leases that stay at a drained endpoint end when it falls silent, and so do the rest of those of an endpoint that
// is removed while they end, as an API server is that hangs and does not renew its entry.
func TestRemovedEndpointIsEmptied(t *testing.T) {
	for name, pause := range map[string]time.Duration{"drained before": 0, "drained meanwhile": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
				if pause > 0 {
					b.set(silent, "a:1", true)
					for p.count("a:1") == 0 {
						time.Sleep(100 * time.Millisecond)
					}
				}
				if err := u.ChangeEndpoint(upstream.Change{Action: upstream.DrainEndpoint, Endpoint: upstream.Endpoint{Address: "a:1"}}); err != nil {
					t.Fatal(err)
				}
				if n := p.count("a:1"); n > 10 {
					t.Fatalf("interrupted %d leases before", n)
				}
				time.Sleep(pause)
				b.set(silent, "a:1", true)
				time.Sleep(30 * time.Second)
				if n, other := p.count("a:1"), p.count("b:1"); n != 20 || other != 0 {
					t.Errorf("interrupted %d and %d leases, want 20 and 0", n, other)
				}
			})
		})
	}
}

// TestRemovedEndpointFailsQuietly: an endpoint that a rollout has removed refuses its checks while its sessions go on, which is no warning; a
// silent one, whose leases are interrupted, still gets one.
func TestRemovedEndpointFailsQuietly(t *testing.T) {
	twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		s := upstream.Settings{Endpoints: upstream.Endpoints("b:1"), Balance: upstream.RoundRobin, Health: closing}
		s.Health.Interval, s.Health.Timeout, s.Health.Fall, s.Health.Rise = time.Second, time.Second, 3, 2
		s.Health.Probe = func(ctx context.Context, addr string) error {
			b.mu.Lock()
			hangs := silent[addr]
			b.mu.Unlock()
			if hangs {
				<-ctx.Done()
				return ctx.Err()
			}
			return b.probe(ctx, addr)
		}
		if err := u.Update(s); err != nil {
			t.Fatal(err)
		}
		b.set(b.sick, "a:1", true)
		time.Sleep(30 * time.Second)
		if n, warned := p.count("a:1"), b.logged("level=WARN"); n != 0 || warned != 0 {
			t.Errorf("interrupted %d leases of an endpoint that answers, %d warnings", n, warned)
		}
		b.set(silent, "a:1", true)
		time.Sleep(60 * time.Second)
		if n, warned := p.count("a:1"), b.logged("leases of an unhealthy endpoint were interrupted"); n != 20 || warned != 1 {
			t.Errorf("interrupted %d leases of an endpoint that is silent, %d warnings", n, warned)
		}
	})
}

// TestReturningEndpointIsCheckedOnce: however often an endpoint leaves and returns while leases of it last, it gets the checks of one endpoint,
// also when it has left for good. When it falls silent, all leases end, the oldest too.
func TestReturningEndpointIsCheckedOnce(t *testing.T) {
	for name, back := range map[string]bool{"and is back": true, "and is gone": false} {
		t.Run(name, func(t *testing.T) {
			var checks atomic.Int64
			twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
				h := closing
				h.Interval, h.Timeout, h.Fall, h.Rise = time.Second, time.Second, 3, 2
				h.Probe = func(ctx context.Context, addr string) error {
					if addr == "a:1" {
						checks.Add(1)
					}
					b.mu.Lock()
					hangs := silent[addr]
					b.mu.Unlock()
					if hangs {
						<-ctx.Done()
					}
					return ctx.Err()
				}
				set := func(addrs ...string) {
					t.Helper()
					s := upstream.Settings{Endpoints: upstream.Endpoints(addrs...), Balance: upstream.RoundRobin, Health: h}
					s.Limits.MaxSize = 1000
					if err := u.Update(s); err != nil {
						t.Fatal(err)
					}
				}
				old := p.one("a:1")
				for range 20 {
					set("b:1")
					time.Sleep(time.Second)
					set("a:1", "b:1")
					time.Sleep(time.Second)
					p.hold(t, u, 1)
				}
				if !back {
					set("b:1")
					set("a:1", "b:1") // the last one never has a lease
					set("b:1")
				}
				checks.Store(0)
				time.Sleep(10 * time.Second)
				if n := checks.Load(); n < 5 || n > 15 {
					t.Errorf("%d checks in ten seconds", n)
				}
				here := p.here("a:1")
				b.set(silent, "a:1", true)
				for range 200 {
					old.Heard(time.Now()) // so it is only slow
					time.Sleep(100 * time.Millisecond)
				}
				if n := p.count("a:1"); n != 0 {
					t.Errorf("interrupted %d leases of a slow endpoint", n)
				}
				time.Sleep(30 * time.Second)
				if n, other := p.count("a:1"), p.count("b:1"); here < 20 || n != here || other != 0 {
					t.Errorf("interrupted %d of %d leases, and %d of the other endpoint", n, here, other)
				}
			})
		})
	}
}

// TestSlowEndpointIsNotEmptied: an endpoint that answers too late, or that answers no check while its users receive
// something, is out and keeps its leases. When it hangs afterwards it loses them.
func TestSlowEndpointIsNotEmptied(t *testing.T) {
	for name, slow := range map[string]func(*holders, bool){
		"late answers": func(p *holders, on bool) {
			p.delay("a:1", 0)
			if on {
				p.delay("a:1", 1900*time.Millisecond)
			}
		},
		"answers for others": func(p *holders, on bool) {
			p.talk("a:1", on)
			p.delay("a:1", time.Hour)
		},
	} {
		t.Run(name, func(t *testing.T) {
			twoHeld(t, upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Fall: 2}, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
				slow(p, true)
				time.Sleep(10 * time.Minute)
				if u.Status().Endpoints[0].Healthy || p.count("a:1") != 0 {
					t.Fatalf("interrupted %d leases of a slow endpoint; it is in: %v", p.count("a:1"), u.Status().Endpoints[0].Healthy)
				}
				b.set(silent, "a:1", true)
				slow(p, false)
				time.Sleep(20 * time.Second)
				if n, other := p.count("a:1"), p.count("b:1"); n != 20 || other != 0 {
					t.Errorf("interrupted %d and %d leases, want 20 and 0", n, other)
				}
			})
		})
	}
}

// TestSlowEndpointHasTime: an endpoint that was slow keeps its leases for some silent checks; another one does not.
func TestSlowEndpointHasTime(t *testing.T) {
	twoHeld(t, upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Fall: 2}, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		p.delay("a:1", 1500*time.Millisecond)
		time.Sleep(10 * time.Second)
		b.set(silent, "a:1", true)
		time.Sleep(6 * time.Second)
		if n := p.count("a:1"); n != 0 {
			t.Errorf("interrupted %d leases of an endpoint that was slow a moment ago", n)
		}
		b.set(silent, "a:1", false)
		p.delay("a:1", 0)
		time.Sleep(2 * time.Minute)
		b.set(silent, "a:1", true)
		time.Sleep(8 * time.Second)
		if n := p.count("a:1"); n != 20 {
			t.Errorf("interrupted %d leases of an endpoint that was quick for two minutes, want 20", n)
		}
	})
}

// TestSecondSilentEndpointHasTime: an endpoint that falls silent after another one was emptied may only be overloaded by the other's users. One
// that was silent before has no more time.
func TestSecondSilentEndpointHasTime(t *testing.T) {
	for name, at := range map[string]struct {
		again time.Duration // when b:1 falls silent, after a:1
		early int           // leases that it has lost soon after
		gone  bool          // a:1 has left the set by then
	}{"together": {0, 20, false}, "after": {6 * time.Second, 0, false}, "after, and the first has left": {6 * time.Second, 0, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBackends()
				silent := map[string]bool{}
				p := &holders{out: map[*conn]upstream.Lease[*conn]{}, ended: map[string][]time.Time{}}
				cfg := b.config("a:1", "b:1", "c:1")
				cfg.Balance, cfg.Interrupt, cfg.Limits.MaxSize = upstream.RoundRobin, p.interrupt, 1000
				cfg.Health = upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Interval: time.Second, Timeout: time.Second, Fall: 2, Rise: 2}
				cfg.Health.Probe = func(ctx context.Context, addr string) error {
					b.mu.Lock()
					hangs := silent[addr]
					b.mu.Unlock()
					if hangs {
						<-ctx.Done()
					}
					return ctx.Err()
				}
				u := start(t, cfg)
				synctest.Wait()
				p.hold(t, u, 30)
				b.set(silent, "a:1", true)
				time.Sleep(at.again)
				if at.gone {
					s := cfg.Settings
					s.Endpoints = upstream.Endpoints("b:1", "c:1")
					if err := u.Update(s); err != nil {
						t.Fatal(err)
					}
				}
				b.set(silent, "b:1", true)
				time.Sleep(6 * time.Second)
				if n, second := p.count("a:1"), p.count("b:1"); n != 20 || second != at.early {
					t.Errorf("interrupted %d and %d leases, want 20 and %d", n, second, at.early)
				}
				time.Sleep(6 * time.Second)
				if second, third := p.count("b:1"), p.count("c:1"); second != 20 || third != 0 {
					t.Errorf("interrupted %d and %d leases in the end, want 20 and 0", second, third)
				}
				u.Close()
				p.release()
			})
		})
	}
}

// TestPolicyChangesWhileSlow: a server that was slow while another policy applied keeps its leases when it becomes CloseUnhealthy.
func TestPolicyChangesWhileSlow(t *testing.T) {
	twoHeld(t, upstream.Health{Fall: 3}, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		b.set(silent, "a:1", true)
		time.Sleep(time.Minute)
		p.delay("a:1", 1500*time.Millisecond)
		h := upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Interval: time.Second, Timeout: time.Second, Fall: 3, Rise: 2}
		h.Probe = func(ctx context.Context, addr string) error {
			p.answer(ctx, addr)
			return b.probe(ctx, addr)
		}
		if err := u.Update(upstream.Settings{Endpoints: upstream.Endpoints("a:1", "b:1"), Balance: upstream.RoundRobin, Health: h}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if n := p.count("a:1"); n != 0 {
			t.Errorf("interrupted %d leases of a slow endpoint", n)
		}
	})
}

// TestStageOfAnUnansweredCheck: the error names the stage of a check that has not ended.
func TestStageOfAnUnansweredCheck(t *testing.T) {
	addr := conntest.Listen(t).Addr().String() // the kernel accepts, and nobody answers
	for want, probe := range map[string]upstream.Probe{
		"no answer within 1s: in the TLS handshake":          upstream.HTTPSProbe("/readyz", nil),
		"no answer within 1s: to the request of GET /readyz": upstream.HTTPProbe("/readyz"),
	} {
		cfg := newBackends().config(addr)
		cfg.Health = upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Interval: time.Millisecond, Timeout: time.Second, Probe: probe}
		cfg.Interrupt = func(*conn, error) {}
		u := start(t, cfg)
		last := ""
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("the last error is %q", last)
			}
		})
		conntest.Eventually(t, want, func() bool {
			last = u.Status().Endpoints[0].LastError
			return last == want
		})
	}
}

// TestEvictionEndsWithTheSilence: leases that are not interrupted yet stay when something is received from the
// endpoint.
func TestEvictionEndsWithTheSilence(t *testing.T) {
	h := closing
	h.Stagger = 10 * time.Second
	twoHeld(t, h, func(t *testing.T, _ *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		b.set(silent, "a:1", true)
		for p.count("a:1") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		p.talk("a:1", true)
		time.Sleep(10 * time.Minute)
		if n := p.count("a:1"); n >= 20 {
			t.Errorf("interrupted %d of 20", n)
		}
	})
}

// TestFailingEndpointIsNotEmptied: it answers.
func TestFailingEndpointIsNotEmptied(t *testing.T) {
	twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, _ map[string]bool, p *holders) {
		b.set(b.sick, "a:1", true)
		time.Sleep(time.Minute)
		if u.Status().Endpoints[0].Healthy || p.count("a:1") != 0 {
			t.Errorf("interrupted %d leases of an endpoint that answers", p.count("a:1"))
		}
	})
}

// TestLastEndpointIsNotEmptied: with both silent at the same moment nothing ends, and a recovery of one empties the other.
func TestLastEndpointIsNotEmptied(t *testing.T) {
	twoHeld(t, closing, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		b.set(silent, "a:1", true)
		b.set(silent, "b:1", true)
		time.Sleep(time.Minute)
		if !u.Status().FailOpen || p.count("a:1")+p.count("b:1") != 0 {
			t.Fatalf("interrupted %d and %d leases, want none", p.count("a:1"), p.count("b:1"))
		}
		b.set(silent, "b:1", false)
		time.Sleep(time.Minute)
		if n, other := p.count("a:1"), p.count("b:1"); n != 20 || other != 0 {
			t.Errorf("interrupted %d and %d leases, want 20 and 0", n, other)
		}
	})
}

// TestRecoveryEndsEviction: leases that are not interrupted yet stay.
func TestRecoveryEndsEviction(t *testing.T) {
	h := closing
	h.Stagger = time.Minute
	twoHeld(t, h, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
		b.set(silent, "a:1", true)
		for p.count("a:1") == 0 {
			time.Sleep(100 * time.Millisecond)
		}
		b.set(silent, "a:1", false)
		time.Sleep(10 * time.Minute)
		if n := p.count("a:1"); n >= 20 || !u.Status().Endpoints[0].Healthy {
			t.Errorf("interrupted %d of 20", n)
		}
	})
}

// TestUnhealthyEndpointIsDrained after its time, also one that answers.
func TestUnhealthyEndpointIsDrained(t *testing.T) {
	h := upstream.Health{OnUnhealthy: upstream.DrainUnhealthy, UnhealthyTimeout: time.Minute}
	twoHeld(t, h, func(t *testing.T, _ *upstream.Upstream[*conn], b *backends, _ map[string]bool, p *holders) {
		b.set(b.sick, "a:1", true)
		time.Sleep(time.Minute)
		if n := p.count("a:1"); n != 0 {
			t.Errorf("interrupted %d leases too early", n)
		}
		time.Sleep(10 * time.Second)
		if n := p.count("a:1"); n != 20 {
			t.Errorf("interrupted %d leases, want 20", n)
		}
	})
}

// TestSilenceIsShort: with the settings that are documented for API servers, the last lease of an endpoint that hangs ends in time, whenever
// between two checks it begins to hang.
func TestSilenceIsShort(t *testing.T) {
	const (
		wait    = 1100 * time.Millisecond // for the next check, at most
		again   = 275 * time.Millisecond  // for the second one
		longest = wait + time.Second + again + time.Second + upstream.DefaultStagger
	)
	for phase := range 20 {
		twoHeld(t, upstream.Health{OnUnhealthy: upstream.CloseUnhealthy, Fall: 2}, func(t *testing.T, _ *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
			time.Sleep(10*time.Second + time.Duration(phase)*50*time.Millisecond)
			began := time.Now()
			b.set(silent, "a:1", true)
			for p.count("a:1") < 20 && time.Since(began) < time.Minute {
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(began); took > longest || p.count("b:1") > 0 {
				t.Errorf("the last of %d leases ended after %v, want at most %v; %d of the other endpoint", p.count("a:1"), took, longest, p.count("b:1"))
			}
		})
	}
}

// TestSilentEndpointFailsNoCaller: those that wait for a connection to an endpoint that has vanished, sessions of which it still has, get one
// of another endpoint when it is taken out, whatever happens to the sessions. Where no other endpoint is known to work, they wait on.
func TestSilentEndpointFailsNoCaller(t *testing.T) {
	for _, others := range []bool{true, false} {
		twoHeld(t, upstream.Health{OnUnhealthy: upstream.KeepUnhealthy}, func(t *testing.T, u *upstream.Upstream[*conn], b *backends, silent map[string]bool, p *holders) {
			b.set(silent, "a:1", true)
			b.set(silent, "b:1", !others)
			b.set(b.hanging, "a:1", true)
			b.set(b.hanging, "b:1", !others)
			var waiting sync.WaitGroup
			for range 4 { // round robin: two come to a:1
				waiting.Go(func() {
					const patience = 8 * time.Second // more than three checks take
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					defer cancel()
					began := time.Now()
					l, err := u.Acquire(ctx)
					took := time.Since(began)
					switch {
					case others && (err != nil || l.Endpoint() != "b:1"):
						t.Errorf("after %v: %v", took, err)
					case !others && (err == nil || took < patience):
						t.Errorf("without another endpoint, after %v: %v", took, err)
					}
					if err == nil {
						l.Release()
					}
				})
			}
			waiting.Wait()
		})
	}
}
