package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

const tunnelPSK = "a key of these two gateways"

// cutter forwards the sockets between two gateways and can cut them.
type cutter struct {
	addr   string
	target string
	mu     sync.Mutex
	conns  []net.Conn
	wg     sync.WaitGroup
}

func startCutter(t testing.TB, target string) *cutter {
	t.Helper()
	l := conntest.Listen(t)
	c := &cutter{addr: l.Addr().String(), target: target}
	c.wg.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				_ = near.Close()
				continue
			}
			c.mu.Lock()
			c.conns = append(c.conns, near, far)
			c.mu.Unlock()
			c.wg.Go(func() { c.copy(near, far) })
			c.wg.Go(func() { c.copy(far, near) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) copy(dst, src net.Conn) {
	_, _ = io.Copy(dst, src)
	_ = dst.(*net.TCPConn).CloseWrite()
}

// cut resets every socket.
func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
	}
	c.conns = nil
}

// patient are settings of an upstream for a machine so busy that making a connection takes longer than the defaults allow: tests
// that use them ask that nothing is lost, not that it is fast.
const patient = "connect_timeout: 30s, pool: {acquire_timeout: 30s}"

// farConfig is a gateway whose peers may use the upstreams (name: endpoint) as the rules allow.
func farConfig(listen, allow string, upstreams map[string]string) string {
	var names, defs strings.Builder
	for name, endpoint := range upstreams {
		fmt.Fprintf(&names, "%s, ", name)
		fmt.Fprintf(&defs, "  %s: {endpoints: [\"%s\"]}\n", name, endpoint)
	}
	text := fmt.Sprintf("listeners:\n  - name: peers\n    protocol: tunnel\n    listen: %s\n    tunnel: {psk: %s, upstreams: [%s], allow: [%s], dial_timeout: 30s}\n",
		listen, tunnelPSK, strings.TrimSuffix(names.String(), ", "), allow)
	if len(upstreams) > 0 {
		text += "upstreams:\n" + defs.String()
	}
	return text
}

// nearConfig is a gateway that reaches a far one through the tunnel "far", with a tcp listener for an endpoint there.
func nearConfig(connect, listen, endpoint string) string {
	return fmt.Sprintf(`tunnels:
  far: {connect: "%s", as: near, psk: %s}
listeners:
  - {name: raw, protocol: tcp, listen: "%s", upstream: echo}
upstreams:
  echo: {endpoints: ["%s"], tunnel: far}
`, connect, tunnelPSK, listen, endpoint)
}

// pair is two gateways with a tunnel between them, and listeners of every protocol on the near one.
type pair struct {
	near, far                        *gateway
	db                               database
	raw, direct, web, sql, forbidden string // addresses
}

func startPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{db: newDatabase(t, pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM)), "tunnelled")}
	p.db.pgbenchInit(t)
	backend := startHTTP(t)
	echoAddr, _ := startEcho(t)
	peers := address(t)
	p.raw, p.direct, p.web, p.sql, p.forbidden = address(t), address(t), address(t), address(t), address(t)
	p.far = startGateway(t, farConfig(peers, `"127.0.0.1:*"`, map[string]string{"echo": echoAddr, "pg": p.db.server.Addr()}))
	pg := strings.Replace(p.db.pgConfig(t, p.sql, "transaction", "max_size: 4"),
		"endpoints: ["+p.db.server.Addr()+"]", "tunnel: far\n    endpoints: [\"upstream:pg\"]", 1)
	more := fmt.Sprintf(`listeners:
  - {name: web, protocol: http, listen: "%s", upstream: api}
  - {name: direct, protocol: tcp, listen: "%s", upstream: direct}
  - {name: forbidden, protocol: tcp, listen: "%s", upstream: forbidden}
upstreams:
  api: {endpoints: ["%s"], tunnel: far, health: {http: /, interval: 100ms}}
  direct: {endpoints: ["%s"], tunnel: far, health: {tcp: true, interval: 100ms}}
  forbidden: {endpoints: ["192.0.2.1:22"], tunnel: far}
`, p.web, p.direct, p.forbidden, backend.addr(), echoAddr)
	p.near = startGateway(t, join(nearConfigListeners(p.raw), more, pg)+
		fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s, sessions: 2}\n", peers, tunnelPSK))
	return p
}

// TestTunnel uses one tunnel as the upstream of listeners of every protocol.
func TestTunnel(t *testing.T) {
	p := startPair(t)
	t.Run("tcp", p.tcp)
	t.Run("http", p.http)
	t.Run("postgres", p.postgres)
	t.Run("refused", func(t *testing.T) {
		if err := exchange(p.forbidden, "x"); err == nil {
			t.Error("a target that is not allowed was reached")
		}
		for _, g := range []*gateway{p.near, p.far} {
			g.awaitLog("refused by the far side's policy", "192.0.2.1:22", "is not allowed")
		}
	})
	eventually(t, "there are two sessions", func() error { // one would be enough for clients
		if n := p.near.scrape().sum("headpond_tunnel_sessions", `tunnel="far"`, `side="connect"`); n != 2 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	m, f := p.near.scrape(), p.far.scrape()
	if m.sum("headpond_tunnel_opened_total") < 40 || f.sum("headpond_tunnel_refused_total", `tunnel="peers"`) < 1 ||
		m.sum("headpond_tunnel_received_bytes_total") < 5_000_000 {
		t.Errorf("near %v\nfar %v", m, f)
	}
	if code, body := p.far.get("/api/v1/status"); code != http.StatusOK || !strings.Contains(body, `"connected": [`) || !strings.Contains(body, `"near"`) {
		t.Errorf("%d %s", code, body)
	}
}

func (p *pair) tcp(t *testing.T) {
	var all sync.WaitGroup
	for i := range 40 {
		addr := []string{p.raw, p.direct}[i%2]
		all.Go(func() {
			if err := exchange(addr, strings.Repeat("half-closed ", 1+i*500)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

func (p *pair) http(t *testing.T) {
	client := httpClient(t)
	for range 20 {
		if code, body, err := get(client, "http://"+p.web+"/"); code != http.StatusOK || body != "ok\n" || err != nil {
			t.Fatalf("%d %q %v", code, body, err)
		}
	}
	if code, body, err := get(client, "http://"+p.web+"/bytes/5000000"); code != http.StatusOK || len(body) != 5_000_000 || err != nil {
		t.Errorf("%d, %d bytes, %v", code, len(body), err)
	}
	resp, err := client.Post("http://"+p.web+"/upload", "", io.LimitReader(zeros{}, 3_000_000))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "3000000" || err != nil {
		t.Errorf("%q %v", body, err)
	}
}

func (p *pair) postgres(t *testing.T) {
	c := connect(t, p.db.dsn(p.sql))
	var n int
	if err := c.QueryRow(context.Background(), "select count(*) from pgbench_accounts").Scan(&n); n != 100_000 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	out, code := run(t, patience, program(t, "pgbench"), "-n", "-S", "-M", "prepared", "-c", "16", "-t", "50", p.db.dsn(p.sql))
	if code != 0 || !strings.Contains(out, "processed: 800/800") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// nearConfigListeners is the part of nearConfig for join.
func nearConfigListeners(listen string) string {
	return fmt.Sprintf(`listeners:
  - {name: raw, protocol: tcp, listen: "%s", upstream: echo}
upstreams:
  echo: {endpoints: ["upstream:echo"], tunnel: far, %s}
`, listen, patient)
}

// TestTunnelReverse: the site behind NAT connects, and dials out for the gateway it connects to.
func TestTunnelReverse(t *testing.T) {
	backend := startHTTP(t)
	echoAddr, _ := startEcho(t)
	peers, web, raw, forbidden := address(t), address(t), address(t), address(t)
	main := startGateway(t, fmt.Sprintf(`listeners:
  - {name: peers, protocol: tunnel, listen: "%s", tunnel: {psk: %s, peers: [branch]}}
  - {name: web, protocol: http, listen: "%s", upstream: api}
  - {name: raw, protocol: tcp, listen: "%s", upstream: echo}
  - {name: forbidden, protocol: tcp, listen: "%s", upstream: forbidden}
tunnels:
  branch: {listener: peers, peer: branch}
upstreams:
  api: {endpoints: ["upstream:web"], tunnel: branch}
  echo: {endpoints: ["%s"], tunnel: branch}
  forbidden: {endpoints: ["127.0.0.1:1"], tunnel: branch}
`, peers, tunnelPSK, web, raw, forbidden, echoAddr))
	if err := exchange(raw, "x"); err == nil {
		t.Error("there is no peer yet")
	}
	main.awaitLog("no session of peer", "branch")
	cut := startCutter(t, peers)
	branch := startGateway(t, fmt.Sprintf(`tunnels:
  main: {connect: "%s", as: branch, psk: %s, upstreams: [web], allow: ["%s"]}
upstreams:
  web: {endpoints: ["%s"]}
`, cut.addr, tunnelPSK, echoAddr, backend.addr()))
	eventually(t, "the peer is there", func() error { return exchange(raw, "hello") })
	client := httpClient(t)
	for range 10 {
		if code, body, err := get(client, "http://"+web+"/"); code != http.StatusOK || body != "ok\n" || err != nil {
			t.Fatalf("%d %q %v", code, body, err)
		}
		cut.cut()
		if err := exchange(raw, strings.Repeat("again ", 10_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := exchange(forbidden, "x"); err == nil {
		t.Error("a target that is not allowed was reached")
	}
	for _, g := range []*gateway{main, branch} {
		g.awaitLog("refused by the far side's policy", "127.0.0.1:1")
	}
}

// TestTunnelResumes cuts the socket between the gateways during a transfer. Every byte arrives
// exactly once.
func TestTunnelResumes(t *testing.T) {
	const size, cuts = 32 << 20, 6
	echoAddr, _ := startEcho(t)
	peers, raw := address(t), address(t)
	startGateway(t, farConfig(peers, "", map[string]string{"echo": echoAddr}))
	cut := startCutter(t, peers)
	near := startGateway(t, nearConfig(cut.addr, raw, "upstream:echo"))
	c, err := net.Dial("tcp", raw)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := sha256.New()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.MultiWriter(c, want), io.LimitReader(rand.NewChaCha8([32]byte{7}), size))
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	got, total, done := sha256.New(), 0, 0
	for buf := make([]byte, 64<<10); ; {
		n, err := c.Read(buf)
		got.Write(buf[:n])
		if total += n; total > (done+1)*(size/(cuts+2)) && done < cuts {
			done++
			cut.cut()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", total, err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if total != size || string(got.Sum(nil)) != string(want.Sum(nil)) {
		t.Errorf("%d bytes of %d came back, or others than were sent", total, size)
	}
	m := near.scrape()
	if m.sum("headpond_tunnel_resumed_total") < 1 || m.sum("headpond_tunnel_sessions_total") != 1 || m.sum("headpond_tunnel_lost_total") != 0 {
		t.Errorf("resumed %v, sessions %v, lost %v", m.sum("headpond_tunnel_resumed_total"), m.sum("headpond_tunnel_sessions_total"), m.sum("headpond_tunnel_lost_total"))
	}
}

// TestTunnelWrongPSK: there is no session, and both logs say why.
func TestTunnelWrongPSK(t *testing.T) {
	peers, raw := address(t), address(t)
	far := startGateway(t, farConfig(peers, `"127.0.0.1:*"`, nil))
	near := startGateway(t, strings.Replace(nearConfig(peers, raw, "127.0.0.1:1"), tunnelPSK, "another key altogether", 1))
	far.awaitLog("no session with a peer", "auth_failed", "PSK")
	near.awaitLog("cannot connect", "tunnel=far", "denied")
	if err := exchange(raw, "x"); err == nil {
		t.Error("a connection without a session")
	}
	near.awaitLog("session failed", "not connected")
}

// TestTunnelMaxSessionsPerPeer: a peer that opens more sessions than allowed gets an error and continues with those it
// has.
func TestTunnelMaxSessionsPerPeer(t *testing.T) {
	echoAddr, _ := startEcho(t)
	peers, raw := address(t), address(t)
	far := startGateway(t, strings.Replace(farConfig(peers, `"127.0.0.1:*"`, nil), "tunnel: {", "tunnel: {max_sessions_per_peer: 1, ", 1))
	near := startGateway(t, strings.Replace(nearConfig(peers, raw, echoAddr), "as: near,", "as: near, sessions: 2,", 1))
	near.awaitLog("cannot connect", "tunnel=far", "sessions of this peer: 1, the most one may have")
	far.awaitLog("no session with a peer", "reason=rejected", "the most one may have")
	near.awaitLog("tunnel: session begun", "tunnel=far") // the one that is turned away may be the first to know
	if err := exchange(raw, "through the one there is"); err != nil {
		t.Error(err)
	}
	eventually(t, "one is turned away, and one is there", func() error {
		if m := far.scrape(); m.sum("headpond_tunnel_turned_away_total") < 1 || m.sum("headpond_tunnel_sessions") != 1 {
			return fmt.Errorf("turned away %v, sessions %v", m.sum("headpond_tunnel_turned_away_total"), m.sum("headpond_tunnel_sessions"))
		}
		return nil
	})
}

// TestTunnelDrain: at SIGTERM either gateway lets the streams finish.
func TestTunnelDrain(t *testing.T) {
	for _, who := range []string{"near", "far"} {
		t.Run(who, func(t *testing.T) {
			p := startPair(t)
			client := httpClient(t)
			if code, _, err := get(client, "http://"+p.web+"/"); code != http.StatusOK || err != nil { // its connection stays open and idle
				t.Fatal(code, err)
			}
			if out, code := psql(t, p.db.dsn(p.sql), "select 1"); code != 0 { // and so does this one
				t.Fatal(out)
			}
			c, err := net.Dial("tcp", p.raw)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			text := strings.Repeat("drained ", 100_000)
			if _, err := io.WriteString(c, text[:8]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			leaves := map[string]*gateway{"near": p.near, "far": p.far}[who]
			leaves.signal(syscall.SIGTERM)
			leaves.awaitLog("draining")
			go func() {
				_, _ = io.WriteString(c, text[8:])
				_ = c.(*net.TCPConn).CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || string(got) != text[8:] {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			client.CloseIdleConnections()
			if code := leaves.awaitEnd(t, patience); code != 0 { // nor was anything cut off
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestTunnelReload changes policy and tunnels under a running connection.
func TestTunnelReload(t *testing.T) {
	echoAddr, _ := startEcho(t)
	other, _ := startEcho(t)
	peers, raw := address(t), address(t)
	far := startGateway(t, farConfig(peers, "", map[string]string{"echo": echoAddr}))
	near := startGateway(t, nearConfig(peers, raw, "upstream:echo"))
	c, err := net.Dial("tcp", raw)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	still := func() {
		t.Helper()
		if _, err := io.WriteString(c, "still"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	still()
	near.write(nearConfig(peers, raw, other)) // not allowed
	near.signal(syscall.SIGHUP)
	near.awaitLog("reloaded", "upstream echo changed")
	if err := exchange(raw, "x"); err == nil {
		t.Error("the old endpoint is used, or the new one allowed")
	}
	far.write(farConfig(peers, `"`+other+`"`, map[string]string{"echo": echoAddr}))
	far.signal(syscall.SIGHUP)
	far.awaitLog("reloaded", "listener peers changed")
	if err := exchange(raw, "x"); err != nil {
		t.Error(err)
	}
	near.write(strings.Replace(nearConfig(peers, raw, other), "as: near", "as: renamed", 1)) // a new session
	near.signal(syscall.SIGHUP)
	near.awaitLog("reloaded", "tunnel far made")
	eventually(t, "the new session is used", func() error {
		if err := exchange(raw, "x"); err != nil {
			return err
		}
		if _, body := far.get("/api/v1/status"); !strings.Contains(body, `"renamed"`) {
			return errors.New("it is not there")
		}
		return nil
	})
	still()
}

// TestTunnelCertificates accepts peers with a certificate of the CA, under a listed name.
func TestTunnelCertificates(t *testing.T) {
	dir := sharedDir(t)
	for _, ca := range []string{"ca", "other"} {
		issue(t, dir, ca, "far", "branch", "depot")
	}
	echoAddr, _ := startEcho(t)
	peers := address(t)
	far := startGateway(t, fmt.Sprintf(`listeners:
  - name: peers
    protocol: tunnel
    listen: %s
    tls: {cert: %[2]s/ca-far.crt, key: %[2]s/ca-far.key, client_ca: %[2]s/ca.crt}
    tunnel: {peers: [branch], allow: ["%s"]}
`, peers, dir, echoAddr))
	near := func(ca, name, as string) (*gateway, string) {
		raw := address(t)
		return startGateway(t, fmt.Sprintf(`tunnels:
  far: {connect: "%s", tls: {ca: %[2]s/ca.crt, server_name: far, cert: %[2]s/%s-%s.crt, key: %[2]s/%[3]s-%[4]s.key}%s}
listeners:
  - {name: raw, protocol: tcp, listen: "%s", upstream: echo}
upstreams:
  echo: {endpoints: ["%s"], tunnel: far}
`, peers, dir, ca, name, as, raw, echoAddr)), raw
	}
	_, raw := near("ca", "branch", ", as: branch.example") // a name in the certificate that peers does not list
	far.awaitLog("no session with a peer", "branch.example", "not among the peers")
	if err := exchange(raw, "x"); err == nil {
		t.Error("a peer that is not listed")
	}
	_, raw = near("ca", "branch", "")
	eventually(t, "the peer is let in", func() error { return exchange(raw, "hello") })
	_, raw = near("ca", "depot", ", as: branch")
	far.awaitLog("no session with a peer", `branch`, "its certificate says", "depot")
	if err := exchange(raw, "x"); err == nil {
		t.Error("a peer under another's name")
	}
	g, raw := near("other", "branch", "")
	far.awaitLog("no session with a peer", "certificate", "unknown authority")
	g.awaitLog("cannot connect", "tunnel=far")
	if err := exchange(raw, "x"); err == nil {
		t.Error("a peer of another CA")
	}
}

// issue makes a CA and certificates for the names, as files ca.crt, ca-NAME.crt and ca-NAME.key.
func issue(t testing.TB, dir, ca string, names ...string) {
	t.Helper()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	authority := certs.New()
	root, _ := certs.PEM(authority.Certificate)
	write(ca+".crt", root)
	for _, name := range names {
		cert, key := certs.PEM(authority.Issue(name, name, name+".example"))
		write(ca+"-"+name+".crt", cert)
		write(ca+"-"+name+".key", key)
	}
}
