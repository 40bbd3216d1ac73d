package tcpproxy_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestWarmFollowsArrivals: before a server that takes long to connect to, more connections are kept ready while clients arrive, and each
// still serves one client. When nobody arrives any more, fewer are kept.
func TestWarmFollowsArrivals(t *testing.T) {
	backend := conntest.Serve(t, conntest.Echo)
	var up *upstream.Upstream[net.Conn]
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 1, MaxLifetime: 200 * time.Millisecond, CheckInterval: 20 * time.Millisecond}},
		Dial: func(ctx context.Context, endpoint string) (net.Conn, error) {
			fiber.Sleep(50 * time.Millisecond)
			return enginetest.Dial(ctx, endpoint)
		},
	}, func(c *tcpproxy.Config) { up = c.Upstream })
	stats := func() pool.Stats { return up.Status().Endpoints[0].Pool }
	s := stats()
	for ; s.WarmTarget < 3 || s.Idle < 3; s = stats() {
		c := conntest.Dial(t, addr)
		conntest.Exchange(t, c, "hello")
		c.Close()
	}
	peak := s.WarmTarget
	conntest.Eventually(t, "the target falls, and with it the number of connections", func() bool {
		s := stats()
		return s.WarmTarget < peak && s.Idle < peak
	})
	if s := stats(); s.Reused > 0 || s.MaxWarm != 32 {
		t.Errorf("%+v", s)
	}
}

func TestWarmLimits(t *testing.T) {
	for in, want := range map[pool.Limits]int{
		{}:                          0,
		{MinIdle: 1}:                32,
		{MinIdle: 9}:                36,
		{MinIdle: 9, MaxWarm: 9}:    9,
		{MinIdle: 9, MaxIdle: 20}:   20,
		{MinIdle: 2, MaxSize: 5}:    5,
		{MinIdle: 20_000}:           20_000,
		{MaxWarm: 7}:                7,
		{MinIdle: 5, MaxSize: 1000}: 32,
	} {
		l := tcpproxy.WarmLimits(in)
		if err := l.Verify(); err != nil || l.MaxWarm != want {
			t.Errorf("%+v: MaxWarm %d, %v; want %d", in, l.MaxWarm, err, want)
		}
	}
}
