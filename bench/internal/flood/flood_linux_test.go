package flood_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/headpond/headpond/bench/internal/flood"
)

func TestFloodReachesItsTargetAndEnds(t *testing.T) {
	for _, kind := range []flood.Kind{flood.Reset, flood.Leave} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for range 20 {
				c, err := l.Accept()
				if err != nil {
					t.Error(err)
					break
				}
				_ = c.Close()
			}
			cancel()
		}()
		n, err := flood.Run(ctx, flood.Config{Target: netip.MustParseAddrPort(l.Addr().String()), Kind: kind, Rate: 2000, For: flood.MaxLength})
		if err != nil || n < 20 {
			t.Errorf("%d connections, %v; want 20 or more", n, err)
		}
		_ = l.Close()
	}
}

func TestFloodsAreBounded(t *testing.T) {
	here := netip.MustParseAddrPort("127.0.0.1:9")
	for _, c := range []flood.Config{
		{Target: netip.MustParseAddrPort("192.0.2.1:9"), Rate: 1, For: time.Second},
		{Target: netip.MustParseAddrPort("[::1]:9"), Rate: 1, For: time.Second},
		{Target: here, For: time.Second},
		{Target: here, Rate: flood.MaxRate + 1, For: time.Second},
		{Target: here, Rate: 1, For: flood.MaxLength + 1},
		{Target: here, Rate: 1},
	} {
		if n, err := flood.Run(t.Context(), c); n != 0 || !errors.Is(err, flood.ErrConfig) {
			t.Errorf("%+v: %d connections, %v; want ErrConfig", c, n, err)
		}
	}
}
