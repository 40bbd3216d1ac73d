package gateway_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// keptAlive reports whether a connection to a port of this machine has a keep-alive timer.
func keptAlive(t *testing.T, port int) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		// sl local remote state queues timer:when …
		f := strings.Fields(line)
		if len(f) > 5 && strings.HasSuffix(f[2], fmt.Sprintf(":%04X", port)) && f[3] == "01" && strings.HasPrefix(f[5], "02:") {
			return true
		}
	}
	return false
}

// TestPooledConnectionsAreKeptAlive also to a server on this machine: its address may be translated to that of one that vanishes silently.
func TestPooledConnectionsAreKeptAlive(t *testing.T) {
	for _, c := range []struct{ listener, upstream string }{
		{"protocol: postgres, postgres: {databases: {\"*\": u}}", ", postgres: {user: app}"}, {"protocol: http", ""},
	} {
		l := conntest.Listen(t)
		accepted := make(chan net.Conn, 100)
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					close(accepted)
					return
				}
				accepted <- conn // and say nothing
			}
		}()
		g := run(t, parse(t, `
drain_timeout: 1ms
listeners:
  - {name: l, listen: "127.0.0.1:0", upstream: u, `+c.listener+`}
upstreams:
  u: {endpoints: ["`+l.Addr().String()+`"], connect_timeout: 5m, pool: {min_idle: 1}`+c.upstream+`}
`))
		conns := []net.Conn{<-accepted}
		for !keptAlive(t, l.Addr().(*net.TCPAddr).Port) {
		}
		g.Close()
		_ = l.Close()
		for conn := range accepted {
			conns = append(conns, conn)
		}
		for _, conn := range slices.Backward(conns) {
			_ = conn.Close()
		}
	}
}
