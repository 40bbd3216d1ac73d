package upstream_test

import (
	"context"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// used acquires and releases n leases and returns how many each endpoint gave.
func used(t *testing.T, u *upstream.Upstream[*conn], n int) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for range n {
		l := acquire(t, u)
		counts[l.Endpoint()]++
		l.Release()
	}
	return counts
}

func TestActiveHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.RoundRobin
		cfg.Health = upstream.Health{Probe: b.probe, Interval: time.Second, Rise: 2, Fall: 3}
		u := start(t, cfg)
		synctest.Wait()
		b.set(b.sick, "a:1", true)
		time.Sleep(2 * time.Second) // two probes at most
		if n := used(t, u, 10)["a:1"]; n != 5 {
			t.Errorf("before the fall: %d of 10 leases from a:1, want 5", n)
		}
		time.Sleep(3 * time.Second)
		if n := used(t, u, 10)["a:1"]; n != 0 {
			t.Errorf("after the fall: %d leases from a:1", n)
		}
		if e := u.Status().Endpoints[0]; e.Healthy || e.LastError != "sick" {
			t.Errorf("status: %+v", e)
		}
		time.Sleep(time.Minute)
		b.set(b.sick, "a:1", false)
		time.Sleep(4 * time.Second)
		if n := used(t, u, 10)["a:1"]; n != 5 {
			t.Errorf("after the rise: %d of 10 leases from a:1, want 5", n)
		}
		if n, m := b.logged(`"endpoint unhealthy"`), b.logged(`"endpoint healthy"`); n != 1 || m != 1 {
			t.Errorf("logged unhealthy %d and healthy %d times, want once each", n, m)
		}
		u.Close()
	})
}

func TestFailOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		b.sick["a:1"], b.sick["b:1"] = true, true
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.RoundRobin
		cfg.Health = upstream.Health{Probe: b.probe}
		u := start(t, cfg)
		synctest.Wait() // the first probes have decided
		if st := u.Status(); !st.FailOpen {
			t.Errorf("status: %+v, want FailOpen", st)
		}
		if got := used(t, u, 10); got["a:1"] != 5 || got["b:1"] != 5 {
			t.Errorf("with every endpoint out: %v, want 5 each", got)
		}
		b.set(b.sick, "b:1", false)
		time.Sleep(10 * time.Second)
		if got := used(t, u, 10); got["b:1"] != 10 || u.Status().FailOpen {
			t.Errorf("with b:1 in: %v", got)
		}
		if n := b.logged("every endpoint is out"); n != 1 {
			t.Errorf("logged %d times, want once", n)
		}
		u.Close()
	})
}

func TestEjectionInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.First
		cfg.Ejection = upstream.Ejection{Failures: 2, Base: 10 * time.Second}
		u := start(t, cfg)
		acquire(t, u).Fail(errRefused)
		acquire(t, u).Release() // ends the series
		acquire(t, u).Fail(errRefused)
		l := acquire(t, u)
		l.OK() // as well
		l.Discard()
		for range 2 {
			if l := acquire(t, u); l.Endpoint() != "a:1" {
				t.Fatal("ejected too early")
			} else {
				l.Fail(errRefused)
			}
		}
		if got := used(t, u, 3); got["b:1"] != 3 {
			t.Errorf("after the ejection: %v, want b:1", got)
		}
		e := u.Status().Endpoints[0]
		if !e.Ejected || !e.Healthy || e.LastError != errRefused.Error() || time.Until(e.EjectedUntil) < 10*time.Second {
			t.Errorf("status: %+v", e)
		}
		time.Sleep(11 * time.Second)
		if got := used(t, u, 3); got["a:1"] != 3 {
			t.Errorf("after its time: %v, want a:1", got)
		}
		if n, m := b.logged(`"endpoint ejected"`), b.logged(`"endpoint re-admitted"`); n != 1 || m != 1 {
			t.Errorf("logged ejected %d and re-admitted %d times, want once each", n, m)
		}
		u.Close()
	})
}

// TestOpenEndsFailedOpens: an endpoint that could not be reached is not shown as failing once a connection opens. One that
// failed in use is, until a use succeeds.
func TestOpenEndsFailedOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1")
		cfg.Ejection.Failures = -1
		cfg.Limits = pool.Limits{MaxSize: 10, AcquireTimeout: time.Second}
		u := start(t, cfg)
		failures := func(want bool) {
			t.Helper()
			if e := u.Status().Endpoints[0]; e.Failures > 0 != want {
				t.Errorf("%d failures: %s", e.Failures, e.LastError)
			}
		}
		b.set(b.down, "a:1", true)
		if _, err := u.Acquire(t.Context()); err == nil {
			t.Fatal("no error")
		}
		failures(true)
		b.set(b.down, "a:1", false)
		time.Sleep(5 * time.Second)
		held := acquire(t, u)
		failures(false)
		acquire(t, u).Fail(errRefused)
		failures(true)
		other := acquire(t, u)
		failures(true)
		other.Release()
		failures(false)
		held.Release()
	})
}

// TestSuccessWhileOut: the only endpoint is used although it is out, and successes then and
// afterwards count: it is not out again after one failure.
func TestSuccessWhileOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := newBackends().config("a:1")
		cfg.Ejection = upstream.Ejection{Failures: 2, Base: 10 * time.Second}
		u := start(t, cfg)
		for range 2 {
			acquire(t, u).Fail(errRefused)
		}
		used(t, u, 1) // while it is out
		time.Sleep(12 * time.Second)
		used(t, u, 1) // and when it is in again
		if e := u.Status().Endpoints[0]; e.Ejected || e.Failures != 0 {
			t.Errorf("after a success: %+v", e)
		}
		acquire(t, u).Fail(errRefused)
		if e := u.Status().Endpoints[0]; e.Ejected {
			t.Errorf("out after one failure: %+v", e)
		}
		u.Close()
	})
}

// TestOpenEndsEjection: an endpoint that could not be connected to is in again with the first connection that opens, however
// long its ejection would last. An endpoint that failed in use is not: that it can be connected to says nothing about it.
func TestOpenEndsEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1")
		cfg.Ejection = upstream.Ejection{Failures: 2, Base: time.Second, Max: time.Hour}
		cfg.Limits = pool.Limits{MaxSize: 10}
		u := start(t, cfg)
		out := func(want bool, when string) {
			t.Helper()
			if s := u.Status(); s.FailOpen != want || s.Endpoints[0].Ejected != want {
				t.Errorf("%s: all are out: %v, ejected: %v", when, s.FailOpen, s.Endpoints[0].Ejected)
			}
		}
		b.set(b.down, "a:1", true)
		for tries := 0; time.Until(u.Status().Endpoints[0].EjectedUntil) < time.Minute; tries++ {
			if tries == 1000 {
				t.Fatal("after 1000 failures the ejection still ends within a minute")
			}
			if _, err := u.Acquire(t.Context()); err == nil {
				t.Fatal("no error")
			}
			time.Sleep(10 * time.Second)
		}
		time.Sleep(2 * time.Second) // an ejection lasts for Base at least
		out(true, "without a server")
		b.set(b.down, "a:1", false)
		held := []upstream.Lease[*conn]{acquire(t, u)}
		out(false, "after a connection")
		if n := b.logged(`"endpoint re-admitted"`); n != 1 {
			t.Errorf("logged re-admitted %d times, want once", n)
		}
		b.set(b.down, "a:1", true)
		if _, err := u.Acquire(t.Context()); err == nil {
			t.Fatal("no error")
		}
		b.set(b.down, "a:1", false)
		held = append(held, acquire(t, u))
		out(true, "at once after the next failure: one that lets only some connections in does not come and go with each")
		time.Sleep(2 * time.Second)
		held = append(held, acquire(t, u))
		out(false, "after another connection")
		acquire(t, u).Fail(errRefused)
		time.Sleep(2 * time.Second)
		held = append(held, acquire(t, u))
		out(true, "after a failure in use and a connection")
		for _, l := range held {
			l.Release()
		}
		u.Close()
	})
}

// TestRefusedConnectionsEject has an endpoint that refuses: clients do not
// notice, and after some it is not asked any more.
func TestRefusedConnectionsEject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		b.down["a:1"] = true
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.First
		cfg.Limits = pool.Limits{AcquireTimeout: time.Minute}
		cfg.Ejection = upstream.Ejection{Failures: 3, Base: time.Hour}
		u := start(t, cfg)
		for range 20 {
			if got := used(t, u, 1); got["b:1"] != 1 {
				t.Fatalf("got %v", got)
			}
			time.Sleep(time.Second)
		}
		if e := u.Status().Endpoints[0]; !e.Ejected || e.Pool.OpenFailed != 3 {
			t.Errorf("ejected %v after %d refusals, want 3", e.Ejected, e.Pool.OpenFailed)
		}
		u.Close()
	})
}

// TestSilentEndpoint has an endpoint that answers nothing: callers get a
// connection elsewhere after the open time-out, and soon at once.
func TestSilentEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.First
		cfg.Limits = pool.Limits{OpenTimeout: 2 * time.Second}
		cfg.Ejection = upstream.Ejection{Failures: 2, Base: time.Hour}
		cfg.Open = func(ctx context.Context, addr string) (*conn, error) {
			if addr == "a:1" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return b.open(ctx, addr)
		}
		u := start(t, cfg)
		began := time.Now()
		if got := used(t, u, 1); got["b:1"] != 1 || time.Since(began) != 2*time.Second {
			t.Errorf("got %v after %v, want b:1 after the open time-out", got, time.Since(began))
		}
		time.Sleep(time.Minute)
		used(t, u, 1)
		began = time.Now()
		if got := used(t, u, 5); got["b:1"] != 5 || time.Since(began) != 0 {
			t.Errorf("got %v after %v, want b:1 at once", got, time.Since(began))
		}
		u.Close()
	})
}

// TestShortageEjectsNobody: when this process is out of file descriptors, the
// endpoints are not to blame.
func TestShortageEjectsNobody(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		fail := &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", errno)}
		probes := make(chan struct{})
		cfg := newBackends().config("a:1")
		cfg.Open = func(context.Context, string) (*conn, error) { return nil, fail }
		cfg.Health = upstream.Health{Interval: time.Millisecond, Probe: func(ctx context.Context, _ string) error {
			select {
			case probes <- struct{}{}:
			case <-ctx.Done():
			}
			return fail
		}}
		cfg.Ejection = upstream.Ejection{Failures: 1, Base: time.Hour}
		u := start(t, cfg)
		if _, err := u.Acquire(context.Background()); !errors.Is(err, errno) {
			t.Errorf("Acquire: %v, want %v", err, errno)
		}
		<-probes
		<-probes // the first has been judged
		e := u.Status().Endpoints[0]
		if !e.Healthy || e.Ejected || e.Failures != 0 || e.LastError != fail.Error() {
			t.Errorf("%v: endpoint %+v", errno, e)
		}
	}
}

// TestReadmissionIsTriedFirst: when an endpoint's time is over it is the upstream that finds out whether it answers
// again, not the clients that happen to come then.
func TestReadmissionIsTriedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		var silent atomic.Bool
		var tries atomic.Int64
		silent.Store(true)
		cfg := b.config("a:1", "b:1")
		cfg.Balance = upstream.First
		cfg.Limits = pool.Limits{OpenTimeout: 2 * time.Second}
		cfg.Ejection = upstream.Ejection{Failures: 1, Base: 10 * time.Second, Max: 30 * time.Second}
		cfg.Open = func(ctx context.Context, addr string) (*conn, error) {
			if addr == "a:1" && silent.Load() {
				tries.Add(1)
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return b.open(ctx, addr)
		}
		u := start(t, cfg)
		used(t, u, 1) // finds out
		for i := range 300 {
			began := time.Now()
			if got := used(t, u, 1); got["b:1"] != 1 || time.Since(began) != 0 {
				t.Fatalf("second %d: got %v after %v, want b:1 at once", i, got, time.Since(began))
			}
			time.Sleep(time.Second)
		}
		if n := tries.Load(); n < 8 || n > 12 { // after 10, 20 and then every 30 seconds, and up to a tenth
			t.Errorf("tried %d times in five minutes", n)
		}
		silent.Store(false)
		time.Sleep(time.Minute)
		if got := used(t, u, 3); got["a:1"] != 3 {
			t.Errorf("when it answers again: %v, want a:1", got)
		}
		if n := b.logged(`"endpoint re-admitted"`); n != 1 {
			t.Errorf("logged re-admitted %d times, want once", n)
		}
		u.Close()
		if opened := b.opened["a:1"] + b.opened["b:1"]; int(b.closed.Load()) != opened {
			t.Errorf("%d opened, %d closed", opened, b.closed.Load())
		}
	})
}

// TestCloseEndsTheTrial: nothing waits for an endpoint of a closed upstream.
func TestCloseEndsTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		cfg := b.config("a:1")
		cfg.Ejection = upstream.Ejection{Failures: 1, Base: time.Second}
		trials := 0
		cfg.Open = func(ctx context.Context, _ string) (*conn, error) {
			trials++
			if trials == 1 {
				return nil, errRefused
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		u := start(t, cfg)
		if _, err := u.Acquire(t.Context()); err == nil {
			t.Fatal("a connection out of nowhere")
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		began := time.Now()
		u.Close()
		synctest.Wait()
		if trials < 2 || time.Since(began) != 0 {
			t.Errorf("%d trials, over after %v", trials, time.Since(began))
		}
		if n := b.logged("stays ejected"); n != 0 {
			t.Errorf("the end of the upstream is logged as %d failures", n)
		}
	})
}

// TestFailUnheard: a failure does not count if the endpoint has answered another user since.
func TestFailUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackends()
		u := start(t, b.config("a:1"))
		defer u.Close()
		failures := func(heard, since time.Duration) int {
			t.Helper()
			now := time.Now()
			for _, end := range []func(upstream.Lease[*conn]){
				func(l upstream.Lease[*conn]) { l.Heard(now.Add(heard)); l.Discard() },
				func(l upstream.Lease[*conn]) { l.FailUnheard(errRefused, now.Add(since)) },
			} {
				l, err := u.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				end(l)
			}
			return u.Status().Endpoints[0].Failures
		}
		if n := failures(time.Second, 0); n != 0 {
			t.Errorf("%d failures although the endpoint has answered since", n)
		}
		if n := failures(0, time.Second); n != 1 {
			t.Errorf("%d failures after a silence, want 1", n)
		}
	})
}
