//go:build linux && (amd64 || arm64)

package fiber_test

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/fiber"
)

// Connections within one machine are not paced, whatever address the listener has, and a congestion control that
// somebody chose is not changed.
func TestLoopbackIsNotPaced(t *testing.T) {
	byDefault, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		t.Fatal(err)
	}
	for paces, want := range map[bool]string{true: "reno", false: strings.TrimSpace(string(byDefault))} {
		before := fiber.Paces(paces)
		defer fiber.Paces(before)
		loops(t, func(t *testing.T, e *fiber.Engine) {
			for listen, dial := range map[string]string{"127.0.0.1:0": "127.0.0.1", "0.0.0.0:0": "127.0.0.1", "[::]:0": "::1", "[::1]:0": "::1"} {
				if dial == "::1" && !hasIPv6() {
					continue
				}
				l, err := e.Listen("tcp", listen)
				if err != nil {
					t.Fatal(err)
				}
				_, port, _ := net.SplitHostPort(l.Addr().String())
				c, err := e.DialContext(t.Context(), "tcp", net.JoinHostPort(dial, port))
				if err != nil {
					t.Fatal(err)
				}
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				for end, conn := range map[string]net.Conn{"dialled": c, "accepted": s} {
					if got, err := conn.(*fiber.Conn).Congestion(); got != want || err != nil {
						t.Errorf("%s, %s: %q, %v; want %q", listen, end, got, err, want)
					}
				}
				_, _, _ = c.Close(), s.Close(), l.Close()
			}
		})
	}
}
