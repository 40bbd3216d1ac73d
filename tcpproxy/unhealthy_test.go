package tcpproxy_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestSlowServerKeepsSessions: a session that gets something from a server that answers no check in time goes on. When nothing comes any
// more, it is reset.
func TestSlowServerKeepsSessions(t *testing.T) {
	slow := conntest.Serve(t, conntest.Echo)
	var hangs atomic.Bool
	var checks atomic.Int32
	o := tcpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Health: upstream.Health{
		Interval: 10 * time.Millisecond, Timeout: 500 * time.Millisecond, Fall: 2, OnUnhealthy: upstream.CloseUnhealthy, Stagger: 1,
		Probe: func(ctx context.Context, endpoint string) error {
			if endpoint == slow && hangs.Load() {
				checks.Add(1)
				<-ctx.Done()
			}
			return ctx.Err()
		},
	}}}
	_, addr := start(t, []string{slow, conntest.Serve(t, conntest.Echo)}, o, nil)
	c := conntest.Dial(t, addr)
	conntest.Exchange(t, c, "hello")
	hangs.Store(true)
	pace := time.NewTicker(20 * time.Millisecond)
	defer pace.Stop()
	for checks.Load() < 5 { // three more than it takes to be out
		conntest.Exchange(t, c, "still")
		<-pace.C
	}
	if err := conntest.WantGone(t, c); !wasReset(err) {
		t.Errorf("once nothing comes: %v, want a reset", err)
	}
}
