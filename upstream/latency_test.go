package upstream_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestLatency: the average follows a slower answer at once and a quicker one slowly, and is forgotten with time.
func TestLatency(t *testing.T) {
	now := time.Hour
	l := upstream.NewLatency()
	if idle, busy := l.Cost(0, now), l.Cost(1, now); idle > 1 || busy < 1<<30 {
		t.Errorf("without an answer the cost is %d idle and %d busy", idle, busy)
	}
	step := func(pause, took time.Duration, least, most int64) {
		t.Helper()
		now += pause
		l.Observe(took, now)
		if cost := l.Cost(0, now); cost < least || cost > most {
			t.Errorf("after an answer in %v the cost is %d µs, want %d to %d", took, cost, least, most)
		}
	}
	step(0, 10*time.Millisecond, 10_000, 10_000)
	step(time.Millisecond, 100*time.Millisecond, 100_000, 100_000)
	step(time.Second, 10*time.Millisecond, 90_000, 92_000) // e^-0.1 of 100 ms, and 10 ms for the rest
	step(10*time.Second, 10*time.Millisecond, 36_000, 41_000)
	if one, three := l.Cost(0, now), l.Cost(2, now); three < 3*one-3 || three > 3*one+3 {
		t.Errorf("the cost is %d without leases and %d with two", one, three)
	}
	if cost := l.Cost(0, now+10*time.Minute); cost > 1 {
		t.Errorf("after ten minutes it is %d µs", cost)
	}
	if cost := l.Cost(1<<40, now); cost <= 0 || cost > 2e11 {
		t.Errorf("with very many leases it is %d", cost)
	}
}

// answer leases n times and says how long each answer took.
func answer(t *testing.T, u *upstream.Upstream[*conn], n int, took map[string]time.Duration) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		l := acquire(t, u)
		got[l.Endpoint()]++
		l.Answered(took[l.Endpoint()], false)
		l.Release()
	}
	return got
}

// TestPeakEWMA: the quick endpoint gets nearly all work, until it becomes slow.
func TestPeakEWMA(t *testing.T) {
	cfg := newBackends().config("a:1", "b:1")
	cfg.Balance = upstream.PeakEWMA
	u := start(t, cfg)
	took := map[string]time.Duration{"a:1": time.Hour, "b:1": time.Millisecond}
	if got := answer(t, u, 1000, took); got["a:1"] > 1 {
		t.Errorf("the slow endpoint has %d of 1000 answers", got["a:1"])
	}
	took["b:1"] = 100 * time.Hour
	if got := answer(t, u, 100, took); got["b:1"] > 1 {
		t.Errorf("the endpoint that became slow has %d of 100 answers", got["b:1"])
	}
	l := acquire(t, u)
	if l.Answered(time.Nanosecond, true) {
		t.Error("an error counts as a failure without Ejection.Errors")
	}
	l.Release()
	if got := answer(t, u, 100, took); got["b:1"] > 0 {
		t.Errorf("%v after an error that came at once", got)
	}
}

// TestLatencyOfBadAnswers: an endpoint that fails quickly never seems quick, also when it has not been asked for long.
func TestLatencyOfBadAnswers(t *testing.T) {
	now := time.Hour
	l := upstream.NewLatency()
	l.Observe(10*time.Millisecond, now)
	now += time.Minute
	l.Failed(time.Millisecond, now)
	if cost := l.Cost(0, now); cost < 20_000 {
		t.Errorf("after an error the cost is %d µs", cost)
	}
	for range 10 {
		l.Failed(time.Millisecond, now)
	}
	worst := l.Cost(0, now)
	if worst < 5_000_000 || worst > 60_000_000 {
		t.Errorf("after many errors it is %d µs", worst)
	}
	for range 4 {
		l.Observe(10*time.Millisecond, now)
	}
	if cost := l.Cost(0, now); cost > 10_000 {
		t.Errorf("after good answers it is %d µs", cost)
	}
	fails := upstream.NewLatency()
	if fails.Failed(time.Millisecond, now); fails.Cost(0, now) < 1_000_000 {
		t.Errorf("an endpoint that has answered an error only costs %d µs", fails.Cost(0, now))
	}
}

// TestLatencyOfSilence: an endpoint that is asked and does not answer is forgotten slowly, and as slow as the longest wait.
func TestLatencyOfSilence(t *testing.T) {
	now := time.Hour
	l := upstream.NewLatency()
	l.Observe(10*time.Millisecond, now)
	now += time.Minute
	if cost := l.Cost(1, now); cost < 9000 || cost > 10_000 { // e^-0.75 of 10 ms, for two leases
		t.Errorf("the cost is %d µs while a lease waits", cost)
	}
	l.Hold(1)
	if cost := l.Cost(1, now); cost > 1000 {
		t.Errorf("it is %d µs while a lease has its answer and goes on", cost)
	}
	l.Hold(-1)
	if l.AtLeast(time.Second, now); l.Cost(0, now) < 999_999 {
		t.Errorf("it is %d µs after a second in vain", l.Cost(0, now))
	}
	if l.AtLeast(time.Millisecond, now); l.Cost(0, now) < 999_999 {
		t.Errorf("it is %d µs after a millisecond in vain", l.Cost(0, now))
	}
	fresh := upstream.NewLatency()
	fresh.Hold(1)
	if cost := fresh.Cost(1, now); cost > 2 {
		t.Errorf("an endpoint that was never measured costs %d µs while a lease has its answer", cost)
	}
}

// TestLatencyOfOneSilentLease: one lease without an answer, such as a stream or a long poll, does not keep others from its endpoint forever.
func TestLatencyOfOneSilentLease(t *testing.T) {
	now := time.Hour
	slow := upstream.NewLatency()
	slow.Observe(time.Second, now)
	if cost := slow.Cost(1, now+5*time.Minute); cost > 50_000 {
		t.Errorf("five minutes after a slow answer the cost is %d µs", cost)
	}
	bad := upstream.NewLatency()
	bad.Observe(10*time.Millisecond, now)
	for range 5 {
		bad.Failed(time.Millisecond, now)
	}
	if cost := bad.Cost(1, now+15*time.Minute); cost > 10_000 {
		t.Errorf("a quarter of an hour after five errors it is %d µs", cost)
	}
	unknown := upstream.NewLatency()
	if first, soon := unknown.Cost(1, now), unknown.Cost(1, now+9*time.Second); first < 1e11 || soon < 1e11 {
		t.Errorf("without an answer it is %d and %d µs", first, soon)
	}
	if minute, hour := unknown.Cost(1, now+time.Minute), unknown.Cost(1, now+time.Hour); minute < 900_000 || minute > 1_000_000 || hour > 10 {
		t.Errorf("it is %d µs after a minute and %d after an hour", minute, hour) // e^-0.75 of a second, for two leases
	}
	if cost := unknown.Cost(0, now); cost > 1 {
		t.Errorf("it is %d µs without leases", cost)
	}
}

// TestLatencyOfEarlyEnds: an endpoint that has never answered does not seem quick because its first client has left at once.
func TestLatencyOfEarlyEnds(t *testing.T) {
	now := time.Hour
	l := upstream.NewLatency()
	if l.AtLeast(time.Millisecond, now); l.Cost(1, now) < 500_000 {
		t.Errorf("the cost is %d µs", l.Cost(1, now))
	}
	l.Observe(10*time.Millisecond, now+time.Minute)
	if cost := l.Cost(0, now+time.Minute); cost > 15_000 {
		t.Errorf("after a good answer it is %d µs", cost)
	}
}

// TestLatencyOfManyRequests: of 100 requests a second, an endpoint that begins to fail or to hang gets hardly any.
func TestLatencyOfManyRequests(t *testing.T) {
	for name, bad := range map[string]struct {
		lasts time.Duration
		end   func(l *upstream.Latency, took, now time.Duration)
	}{
		"fails at once":              {time.Millisecond, (*upstream.Latency).Failed},
		"hangs until clients go":     {5 * time.Second, (*upstream.Latency).AtLeast},
		"hangs until the time is up": {time.Minute, (*upstream.Latency).AtLeast},
	} {
		t.Run(name, func(t *testing.T) {
			const pause, good, breaks = 10 * time.Millisecond, 10 * time.Millisecond, 10 * time.Second
			type request struct {
				to, ends time.Duration
				took     time.Duration
			}
			latencies := [2]*upstream.Latency{upstream.NewLatency(), upstream.NewLatency()}
			var loads [2]int64
			var under []request
			asked, most := 0, int64(0)
			for now := time.Second; now < 200*time.Second; now += pause {
				under = slices.DeleteFunc(under, func(r request) bool {
					if r.ends > now {
						return false
					}
					loads[r.to]--
					if l := latencies[r.to]; r.took == good {
						l.Observe(r.took, r.ends)
					} else {
						bad.end(l, r.took, r.ends)
					}
					return true
				})
				to := 0
				if a, b := latencies[0].Cost(loads[0], now), latencies[1].Cost(loads[1], now); b < a || a == b && now%(2*pause) == 0 {
					to = 1
				}
				took := good
				if to == 0 && now > breaks {
					took = bad.lasts
					asked++
				}
				loads[to]++
				most = max(most, loads[0])
				under = append(under, request{time.Duration(to), now + took, took})
			}
			if asked > 100 || most > 10 {
				t.Errorf("it gets %d of 19,000 requests, %d at a time", asked, most)
			}
		})
	}
}

// TestPeakEWMAOfStreams: a lease that has its answer and goes on does not keep others from its endpoint.
func TestPeakEWMAOfStreams(t *testing.T) {
	cfg := newBackends().config("a:1", "b:1")
	cfg.Balance = upstream.PeakEWMA
	u := start(t, cfg)
	stream := acquire(t, u)
	stream.Answered(time.Millisecond, false)
	other := acquire(t, u)
	if other.Endpoint() == stream.Endpoint() {
		t.Fatal("the endpoint without an answer is not asked")
	}
	other.Answered(time.Hour, false)
	other.Release()
	next := acquire(t, u)
	if next.Endpoint() != stream.Endpoint() {
		t.Error("the quick endpoint gets nothing while it streams")
	}
	next.Discard()
	stream.Discard()
	for _, e := range u.Status().Endpoints {
		if e.Leases != 0 {
			t.Errorf("%d leases of %s are left", e.Leases, e.Address)
		}
	}
}

// TestBadAnswersEject: answers count as failures by their status and their time, if that is asked for, and Update changes it.
func TestBadAnswersEject(t *testing.T) {
	cfg := newBackends().config("a:1", "b:1")
	cfg.Balance = upstream.First
	cfg.Ejection = upstream.Ejection{Failures: 3, Base: time.Hour, Max: time.Hour}
	u := start(t, cfg)
	end := func(took time.Duration, bad bool) {
		t.Helper()
		l := acquire(t, u)
		if measures := l.Measures(); l.Answered(took, bad) {
			l.Blame(errors.New("status 500"))
		} else if measures && bad {
			t.Error("an error is no failure")
		}
		l.Release()
	}
	out := func() bool { return u.Status().Endpoints[0].Ejected }
	for range 5 {
		end(time.Hour, true)
	}
	if out() {
		t.Fatal("answers count although Ejection does not say so")
	}
	cfg.Ejection.Errors, cfg.Ejection.Slow = true, time.Second
	if err := u.Update(cfg.Settings); err != nil {
		t.Fatal(err)
	}
	end(0, true)
	end(0, true)
	end(time.Second, false) // in time: the series ends
	end(0, true)
	end(2*time.Second, false)
	if out() {
		t.Fatal("ejected after two failures")
	}
	end(0, true)
	if s := u.Status().Endpoints[0]; !s.Ejected || s.LastError != "status 500" || s.Leases != 0 || s.Pool.Idle != 1 {
		t.Errorf("after three failures in a row: %+v", s)
	}
}

// TestUnanswered counts a wait that is longer than Slow, and any that has ended because the endpoint's time was over.
func TestUnanswered(t *testing.T) {
	for _, tc := range []struct {
		ejection   upstream.Ejection
		waited     time.Duration
		late, want bool
	}{
		{upstream.Ejection{}, time.Hour, true, false},
		{upstream.Ejection{Errors: true}, 0, true, true},
		{upstream.Ejection{Errors: true}, time.Hour, false, false},
		{upstream.Ejection{Slow: time.Minute}, time.Second, true, true},
		{upstream.Ejection{Slow: time.Minute}, time.Second, false, false},
		{upstream.Ejection{Slow: time.Minute}, time.Hour, false, true},
	} {
		cfg := newBackends().config("a:1")
		cfg.Ejection = tc.ejection
		l := acquire(t, start(t, cfg))
		if got := l.Unanswered(tc.waited, tc.late); got != tc.want {
			t.Errorf("%+v, %v, late %v: failed %v", tc.ejection, tc.waited, tc.late, got)
		}
		l.Discard()
	}
}

// TestBlameCountsOnce: whatever becomes of the lease, an answer that was a failure is one failure.
func TestBlameCountsOnce(t *testing.T) {
	cfg := newBackends().config("a:1")
	cfg.Ejection = upstream.Ejection{Failures: 100, Errors: true}
	u := start(t, cfg)
	for i, end := range []func(upstream.Lease[*conn]){
		upstream.Lease[*conn].Release, upstream.Lease[*conn].Discard, func(l upstream.Lease[*conn]) { l.OK(); l.Discard() },
		func(l upstream.Lease[*conn]) { l.Fail(errRefused) },
		func(l upstream.Lease[*conn]) {
			if !l.TryRelease() {
				l.Release()
			}
		},
	} {
		l := acquire(t, u)
		if !l.Answered(upstream.Unmeasured, true) {
			t.Fatal("an error is no failure")
		}
		l.Blame(errRefused)
		end(l)
		if n := u.Status().Endpoints[0].Failures; n != i+1 {
			t.Errorf("end %d: %d failures, want %d", i, n, i+1)
		}
	}
}

// TestMaxEjected: answers put out no more than a share of the endpoints, and never the last one, however many fail at a time. Connections that
// cannot be opened may put out all.
func TestMaxEjected(t *testing.T) {
	for _, tc := range []struct{ endpoints, percent, want int }{
		{1, 100, 0}, {2, 0, 1}, {2, 49, 0}, {3, 0, 1}, {5, 0, 2}, {5, 100, 4}, {10, 30, 3},
	} {
		var addresses []string
		for i := range tc.endpoints {
			addresses = append(addresses, fmt.Sprintf("a%d:1", i))
		}
		cfg := newBackends().config(addresses...)
		cfg.Balance = upstream.RoundRobin
		cfg.Ejection = upstream.Ejection{Failures: 2, Base: time.Hour, Max: time.Hour, Errors: true, MaxEjected: tc.percent}
		u := start(t, cfg)
		var leases []upstream.Lease[*conn]
		for range 5 * tc.endpoints {
			leases = append(leases, acquire(t, u))
		}
		var work sync.WaitGroup
		for _, l := range leases {
			work.Go(func() {
				l.Answered(0, true)
				l.Blame(errRefused)
				l.Release()
			})
		}
		work.Wait()
		out := func() (n int) {
			for _, e := range u.Status().Endpoints {
				if e.Ejected {
					n++
				}
			}
			return n
		}
		if n := out(); n != tc.want {
			t.Errorf("%d percent of %d endpoints: %d are out, want %d", tc.percent, tc.endpoints, n, tc.want)
		}
		for range tc.endpoints {
			acquire(t, u).Fail(errRefused)
		}
		if n := out(); n <= tc.want {
			t.Errorf("%d of %d endpoints are out after connections have failed", n, tc.endpoints)
		}
	}
}
