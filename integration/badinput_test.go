package integration

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// badInput is a fault and its expected reports.
type badInput struct {
	name string
	// do causes the fault and checks the error that the client gets in its protocol.
	do func(t *testing.T)
	// reason is the counter of headpond_listener_errors_total that must increase.
	reason string
	// log are words that one line of the log must contain.
	log []string
}

// check causes each fault and then checks the gateway's log, counters and resources. A bystander's
// requests must continue without errors.
func check(t *testing.T, g *gateway, listener string, bystander *load, cases []badInput) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			defer func(outer testing.TB) { g.t = outer }(g.t)
			g.t = t // the test that fails when a condition is not met
			before, counted := g.footprint(), g.scrape().errors(listener, c.reason)
			c.do(t)
			eventually(t, "the counter "+c.reason+" goes up", func() error {
				if now := g.scrape().errors(listener, c.reason); now <= counted {
					return fmt.Errorf("it is %v", now)
				}
				return nil
			})
			g.awaitLog(c.log...)
			g.awaitFootprint(before.plus(bystanderSlack))
			if bystander != nil {
				bystander.awaitMore(t, 5)
			}
		})
	}
	if bystander == nil {
		return
	}
	bystander.end()
	if n := bystander.failed.Load(); n > 0 {
		t.Errorf("%d of %d requests of another client failed: %v", n, n+bystander.ok.Load(), bystander.lastError())
	}
}

// bystanderPause is between two requests of a bystander. It is there to notice trouble, not to keep the machine busy.
const bystanderPause = 20 * time.Millisecond

// startBystander starts a client that makes one request after the other, and must notice nothing of the faults.
func startBystander(t *testing.T, op func(ctx context.Context) error) *load {
	t.Helper()
	return startLoad(t, 1, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bystanderPause):
			return op(ctx)
		}
	})
}

// bystanderSlack is what the bystander's own session may use during a scrape.
var bystanderSlack = footprint{descriptors: 4, goroutines: 6, fibers: 4, sessions: 2, waiting: 1}

func (f footprint) plus(more footprint) footprint {
	return footprint{
		descriptors: f.descriptors + more.descriptors, goroutines: f.goroutines + more.goroutines, fibers: f.fibers + more.fibers,
		sessions: f.sessions + more.sessions, waiting: f.waiting + more.waiting,
	}
}

// repeat is how often a fault is caused, so that a leak of one resource each shows.
const repeat = 20

func times(do func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) {
		for range repeat {
			do(t)
		}
	}
}
