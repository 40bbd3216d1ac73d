package tcpproxy_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestIdleSessionsHoldNoStack: a session with nothing to copy has no fiber. It copies what comes later, also bulk, and ends like any
// other.
func TestIdleSessionsHoldNoStack(t *testing.T) {
	hello := helloOf(t, "a.test")
	for name, first := range map[string]string{"TLS": string(hello), "no TLS": "hello"} {
		t.Run(name, func(t *testing.T) {
			p, addr := start(t, []string{conntest.Serve(t, conntest.Echo), conntest.Serve(t, conntest.Echo)}, tcpproxy.UpstreamOptions{}, nil)
			before := enginetest.Fibers() // one of them accepts
			idle := func() {
				t.Helper()
				conntest.Eventually(t, "no fiber is left", func() bool {
					fiber.Sleep(time.Millisecond)
					return enginetest.Fibers() <= max(before, 1)
				})
			}
			c := conntest.Dial(t, addr)
			for range 2 { // two pieces: after the first one the session may still go to another endpoint
				conntest.Exchange(t, c, first)
			}
			for range 3 {
				idle()
				conntest.Exchange(t, c, "more")
			}
			bulk := bytes.Repeat([]byte("bulk"), 1<<20)
			go func() { _, _ = c.Write(bulk) }()
			got := make([]byte, len(bulk))
			if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, bulk) {
				t.Fatalf("bulk: %v", err)
			}
			conntest.Exchange(t, c, "and on")
			_ = c.CloseWrite()
			if n, err := c.Read(got); err != io.EOF {
				t.Errorf("%d bytes, %v; want the end", n, err)
			}
			conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
			if s, total := p.Stats(), uint64(len(bulk)+2*len(first)+3*len("more")+len("and on")); s.BytesIn != total || s.BytesOut != total || len(s.Errors) > 0 {
				t.Errorf("%d bytes in, %d out, errors %v; want %d both ways, and none", s.BytesIn, s.BytesOut, s.Errors, total)
			}
		})
	}
}
