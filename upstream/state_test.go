package upstream_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestHealthState writes probes as a string, x failed and . passed, and the
// state after each, D down and U up.
func TestHealthState(t *testing.T) {
	for _, test := range []struct{ probes, states string }{
		{"...", "UUU"},
		{"x", "D"},
		{".xx.xxx", "UUUUUUD"},
		{"x.x..", "DDDDU"},
		{"x..xxx", "DDUUUD"},
	} {
		s := upstream.NewHealthState(2, 3)
		was, got := true, ""
		for _, p := range test.probes {
			up, changed := s.Observe(p == '.')
			if changed != (up != was) {
				t.Errorf("%s: changed is %v from %v to %v", test.probes, changed, was, up)
			}
			was = up
			if up {
				got += "U"
			} else {
				got += "D"
			}
		}
		if got != test.states {
			t.Errorf("%s: %s, want %s", test.probes, got, test.states)
		}
	}
}

func TestEjectionGrowsAndIsForgiven(t *testing.T) {
	now := time.Unix(0, 0)
	s := upstream.NewEjectState(upstream.Ejection{Failures: 3, Base: time.Second, Max: 5 * time.Second})
	fail := func(n int) (ejected bool) {
		for range n {
			ejected = s.Failure(now, 0)
		}
		return ejected
	}
	if fail(2) {
		t.Fatal("ejected after 2 failures")
	}
	s.Success()
	if fail(2) || !fail(1) {
		t.Fatal("want the ejection at the third failure after a success")
	}
	for _, d := range []time.Duration{1, 2, 4, 5, 5} {
		if got := s.Until().Sub(now); got != d*time.Second {
			t.Fatalf("ejected for %v, want %v", got, d*time.Second)
		}
		if fail(10) {
			t.Fatal("ejected again while out")
		}
		now = s.Until().Add(-1)
		if s.Readmit(now) {
			t.Fatal("re-admitted too early")
		}
		now = s.Until()
		if !s.Readmit(now) || s.Out() {
			t.Fatal("not re-admitted in time")
		}
		if !fail(1) {
			t.Fatal("one failure after the re-admission did not eject")
		}
	}
	now = s.Until()
	s.Readmit(now)
	s.Success()
	if fail(2) || !fail(1) || s.Until().Sub(now) != time.Second {
		t.Errorf("after a success it should take 3 failures and be out for the base time, not %v", s.Until().Sub(now))
	}
}

func TestEjectionJitterAndOff(t *testing.T) {
	now := time.Unix(0, 0)
	s := upstream.NewEjectState(upstream.Ejection{Failures: 1, Base: 10 * time.Second})
	if !s.Failure(now, 1) || s.Until().Sub(now) != 11*time.Second {
		t.Errorf("with the most jitter: %v, want 11s", s.Until().Sub(now))
	}
	off := upstream.NewEjectState(upstream.Ejection{Failures: -1})
	for range 100 {
		if off.Failure(now, 0) {
			t.Fatal("ejected although ejection is off")
		}
	}
}
