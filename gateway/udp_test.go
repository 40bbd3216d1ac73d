package gateway_test

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
)

const udpText = `engine: {engine}
drain_timeout: 10s
listeners:
  - {name: {name}, protocol: udp, listen: "{address}", upstream: {upstream}}
  - {name: stream, protocol: tcp, listen: "{address}", upstream: other}
upstreams:
  {upstream}: {endpoints: ["{server}"]}
  other: {endpoints: ["127.0.0.1:9"]}
`

// udpEcho sends each datagram back, with a name in front.
func udpEcho(t *testing.T, name string) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for b := make([]byte, 2000); ; {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(name), b[:n]...), from)
		}
	}()
	t.Cleanup(func() { _ = c.Close(); <-ended })
	return c.LocalAddr().String()
}

// udpAsk sends a datagram and waits for the answer.
func udpAsk(t *testing.T, c net.Conn, text, want string) {
	t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
	b := make([]byte, 2000)
	if n, err := c.Read(b); err != nil || string(b[:n]) != want {
		t.Fatalf("%q, %v; want %q", b[:n], err, want)
	}
}

func udpDial(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// freePort returns an address of which neither the TCP nor the UDP port is in use.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		address := conntest.FreeAddress(t)
		c, err := net.ListenPacket("udp", address)
		if err == nil {
			_ = c.Close()
			return address
		}
	}
}

// TestUDP: a udp listener, beside a tcp listener with the same address, is reloaded, renamed and drained; its sessions
// stay where they are.
func TestUDP(t *testing.T) {
	one, two := udpEcho(t, "one "), udpEcho(t, "two ")
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) {
			address := freePort(t)
			with := func(name, upstream, server string) *config.Config {
				return parse(t, udpText, "{engine}", engine, "{address}", address, "{name}", name, "{upstream}", upstream, "{server}", server)
			}
			g := run(t, with("dns", "a", one))
			first := udpDial(t, address)
			udpAsk(t, first, "x", "one x")
			for step, cfg := range []*config.Config{with("dns", "b", two), with("names", "b", two), with("names", "c", one), with("names", "b", two)} {
				if err := g.Reload(cfg); err != nil {
					t.Fatalf("reload %d: %v", step, err)
				}
				udpAsk(t, first, fmt.Sprint(step), fmt.Sprint("one ", step))
			}
			udpAsk(t, udpDial(t, address), "y", "two y")
			if s := g.Snapshot(); s.Listeners[0].Address != address || s.Listeners[0].Name != "names" {
				t.Errorf("%+v", s.Listeners[0])
			}
		})
	}
}

// TestUDPIsShown: the admin pages have the datagrams, the sessions and their endpoints.
func TestUDPIsShown(t *testing.T) {
	g := run(t, parse(t, udpText, "{engine}", "auto", "{address}", freePort(t), "{name}", "dns", "{upstream}", "a", "{server}", udpEcho(t, "")))
	c := udpDial(t, g.Addr("dns"))
	udpAsk(t, c, "x", "x")
	if all := g.Sessions(); len(all) != 1 || all[0].Client != c.LocalAddr().String() || all[0].Upstream != "a" || all[0].Protocol != "udp" {
		t.Errorf("%+v", all)
	}
	handler, err := admin.New(admin.Config{Snapshot: g.Snapshot})
	if err != nil {
		t.Fatal(err)
	}
	for path, wants := range map[string][]string{
		"/metrics":       {`headpond_udp_received_total{listener="dns"} 1`, `headpond_listener_connections_active{listener="dns",protocol="udp"} 1`},
		"/api/v1/status": {`"title": "UDP datagrams"`, `"forwarded": 1`},
	} {
		page := httptest.NewRecorder()
		handler.ServeHTTP(page, httptest.NewRequest(http.MethodGet, path, nil))
		for _, want := range wants {
			if !strings.Contains(page.Body.String(), want) {
				t.Errorf("%s lacks %s:\n%s", path, want, page.Body)
			}
		}
	}
}

// TestUDPAddressInUse: the error names the command that shows UDP sockets.
func TestUDPAddressInUse(t *testing.T) {
	address := udpEcho(t, "")
	_, err := gateway.New(parse(t, udpText, "{engine}", "auto", "{address}", address, "{name}", "dns", "{upstream}", "a", "{server}", "127.0.0.1:9"), gateway.Options{})
	if err == nil || !strings.Contains(err.Error(), `listener "dns"`) || !strings.Contains(err.Error(), "ss -lunp") {
		t.Error(err)
	}
}

// TestUDPConfiguration: what only connections have is refused where it is written.
func TestUDPConfiguration(t *testing.T) {
	const text = "listeners:\n  - {name: d, protocol: udp, listen: %s, upstream: u}\nupstreams:\n  u: {endpoints: [\"%s\"]%s}\n"
	for _, c := range []struct{ listen, endpoint, more, want string }{
		{`"unix:/run/d"`, "127.0.0.1:53", "", `u.yaml:2:38: listener "d": listen: "unix:/run/d": a udp listener has an address host:port`},
		{`":53", tls: {cert: a, key: b}`, "127.0.0.1:53", "", `u.yaml:2:50: listener "d": tls: datagrams have no TLS`},
		{`":53", accept_proxy: true`, "127.0.0.1:53", "", `u.yaml:2:59: listener "d": accept_proxy: there are no PROXY headers`},
		{`":53", keep_alive: {idle: 1m}`, "127.0.0.1:53", "", `u.yaml:2:57: listener "d": keep_alive: datagrams have no connection`},
		{`":53", udp: {answer: 1}`, "127.0.0.1:53", "", `unknown key "answer"; did you mean "answers"?`},
		{`":53", udp: {answers: 70000}`, "127.0.0.1:53", "", `out of range; want 0 to 65536`},
		{`":53"`, "unix:/run/d", "", `u.yaml:4:19: upstream "u": endpoint "unix:/run/d": a UDP endpoint must be host:port`},
		{`":53"`, "127.0.0.1:53", ", tls: {}", `upstream "u": tls: datagrams have no TLS`},
		{`":53"`, "127.0.0.1:53", ", keep_alive: {idle: 1m}", `upstream "u": keep_alive: datagrams have no connection`},
		{`":53"`, "127.0.0.1:53", "", `endpoint "127.0.0.1:53" of upstream "u" is this listener itself`},
	} {
		_, problems := config.Parse("u.yaml", fmt.Appendf(nil, text, c.listen, c.endpoint, c.more))
		if !strings.Contains(problems.String(), c.want) {
			t.Errorf("%s\nwant %s", problems, c.want)
		}
	}
}
