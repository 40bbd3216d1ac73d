package extend_test

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// spring is the backend of protocol brook.
type spring struct{ *upstream.Upstream[net.Conn] }

var springs, trials atomic.Int32

func newSpring(s extend.Settings) (extend.Backend, error) {
	if s.Trial {
		trials.Add(1)
	} else {
		springs.Add(1)
	}
	u, err := tcpproxy.NewUpstream(s.Config.Name, tcpproxy.UpstreamOptions{Settings: s.Settings, Dial: s.Dial, Go: s.Start, Logger: s.Logger})
	return &spring{u}, err
}

func (s *spring) Update(next extend.Settings) error { return s.Upstream.Update(next.Settings) }

func (s *spring) Runs() any { return s }

func init() {
	extend.RegisterProtocol(extend.Protocol{
		Config: config.ListenerProtocol{
			Name: "brook", Section: &struct{}{}, Pool: config.Pool{MaxSize: 10, IdleTimeout: time.Minute},
		},
		Backend:  newSpring,
		Rebuilds: func(old, changed *config.Upstream, _ bool) bool { return old.Pool.MaxSize > changed.Pool.MaxSize },
		Prepare: func(l extend.Listener) (extend.Server, error) {
			from, err := extend.Runs[*spring](l, l.Upstream)
			if err != nil {
				return extend.Server{}, err
			}
			return extend.Serve(tcpproxy.Config{Listener: l.Common, Upstream: from.Upstream}, tcpproxy.New)
		},
	})
}

// TestBackendOfAProtocol: a protocol makes its upstreams itself, for a check too, and says which changes need another one.
func TestBackendOfAProtocol(t *testing.T) {
	echo := conntest.Serve(t, conntest.Echo)
	withSize := func(size string) *config.Config {
		return gatewaytest.Parse(t, `
listeners:
  - {name: b, protocol: brook, listen: "127.0.0.1:0", upstream: hill}
upstreams:
  hill: {endpoints: ["{echo}"], pool: {max_size: {size}}}
`, "{echo}", echo, "{size}", size)
	}
	if problems := gateway.Check(withSize("5")); problems != nil || trials.Load() != 1 || springs.Load() != 0 {
		t.Errorf("problems: %v; %d trials, %d backends", problems, trials.Load(), springs.Load())
	}
	gw := gatewaytest.Run(t, withSize("5"))
	for _, c := range []struct {
		size    string
		springs int32
	}{{"5", 1}, {"7", 1}, {"6", 2}} {
		if err := gw.Reload(withSize(c.size)); err != nil {
			t.Fatal(err)
		}
		if err := conntest.RoundTrip(gw.Addr("b"), "there and back"); err != nil {
			t.Error(err)
		}
		if springs.Load() != c.springs {
			t.Errorf("max_size %s: %d backends were made, want %d", c.size, springs.Load(), c.springs)
		}
	}
}
