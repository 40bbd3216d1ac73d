//go:build kube

package integration

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// The overload of TestKubeOverload: the server runs for a small part of each period.
const (
	overloadWatches = 200
	overloadPeriod  = 200 * time.Millisecond
	overloadStep    = 3 * time.Second
	overloadLasts   = 15 * time.Second
)

// slowDown lets a server run for a part of each period only, for a while.
func (s *kubeServer) slowDown(part, lasts time.Duration) {
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		s.signal(syscall.SIGSTOP)
		wait(overloadPeriod - part)
		s.signal(syscall.SIGCONT)
		wait(part)
	}
}

// TestKubeOverload overloads one of three servers, which has a third of 200 watches. It gets no new connections, and the gateway closes none
// of its watches: the other servers stay in, and no event is missing. When it hangs, its watches go to the others.
func TestKubeOverload(t *testing.T) {
	c := startKube(t)
	listen := address(t)
	g, _ := c.beforeWith(listen, "timeout: 1s", plain)
	l := c.startLoad(listen, c.servers[0].address(), overloadWatches)
	slow := c.servers[1]
	healthy := func(s *kubeServer) float64 {
		return g.scrape().sum("headpond_upstream_endpoint_healthy", fmt.Sprintf("endpoint=%q", s.address()))
	}
	eventually(t, "all watches have begun", func() error {
		if n := l.begun.Load(); n < overloadWatches {
			return fmt.Errorf("%d of %d", n, overloadWatches)
		}
		return nil
	})
	began := l.begun.Load()
	t.Logf("%d watches have begun, at %v", began, time.Now())
	part := overloadPeriod / 10
	for ; healthy(slow) == 1; part = max(part/2, time.Millisecond) {
		slow.slowDown(part, overloadStep)
	}
	slow.slowDown(part, overloadLasts)
	t.Logf("overloaded until %v, at the end it ran for %v of %v", time.Now(), part, overloadPeriod)
	g.awaitLog("endpoint unhealthy", slow.address(), "no answer within")
	t.Logf("%d watches have ended: API servers end those that they cannot keep up with", l.begun.Load()-began)
	if n := g.scrape().errors("kube", "endpoint_out"); n > 0 {
		t.Errorf("closed %v sessions of a server that is slow", n)
	}
	for _, s := range []*kubeServer{c.servers[0], c.servers[2]} {
		if healthy(s) != 1 {
			t.Errorf("%s is out, too", s.address())
		}
	}
	eventually(t, "it is in again", func() error {
		if healthy(slow) != 1 {
			return fmt.Errorf("it is out")
		}
		return nil
	})
	slow.signal(syscall.SIGSTOP)
	wait(faultLasts)
	slow.signal(syscall.SIGCONT)
	l.end()
	if n := l.missing.Load(); n > 0 {
		t.Errorf("%d events are missing", n)
	}
	if g.scrape().errors("kube", "endpoint_out") == 0 {
		t.Error("closed no session of a server that hangs")
	}
	_, phases := l.failures()
	t.Logf("engine %s, %d watches: %d requests, failed: %q, worst %v, longest silent watch %v", os.Getenv("HEADPOND_ENGINE"), overloadWatches,
		l.requests.Load(), phases, l.worst.Round(10*time.Millisecond), l.silent.Round(10*time.Millisecond))
}
