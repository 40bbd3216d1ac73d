package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/upstream"
)

// nameServer is a DNS server that has one name.
type nameServer struct {
	addr string
	zone atomic.Pointer[[]string] // addresses; nil: it fails
}

func newNameServer(t *testing.T) *nameServer {
	t.Helper()
	s := &nameServer{}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = packets.LocalAddr().String()
	started := make(chan struct{})
	server := &dns.Server{PacketConn: packets, Handler: s, NotifyStartedFunc: func() { close(started) }}
	over := make(chan error, 1)
	go func() { over <- server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = server.Shutdown(); <-over })
	return s
}

func (s *nameServer) has(addrs ...string) { s.zone.Store(&addrs) }

func (s *nameServer) ServeDNS(w dns.ResponseWriter, req *dns.Msg) {
	resp := new(dns.Msg).SetReply(req)
	resp.RecursionAvailable = true
	if zone := s.zone.Load(); zone == nil {
		resp.Rcode = dns.RcodeServerFailure
	} else if req.Question[0].Qtype == dns.TypeA {
		for _, addr := range *zone {
			resp.Answer = append(resp.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: req.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(addr),
			})
		}
	}
	_ = w.WriteMsg(resp)
}

// hosts are HTTP servers on one port of several addresses of this machine.
func hosts(t *testing.T, addrs ...string) (port string) {
	t.Helper()
	_, port, _ = net.SplitHostPort(conntest.FreeAddress(t))
	for _, addr := range addrs {
		l, err := net.Listen("tcp", net.JoinHostPort(addr, port))
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, addr) })}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
	}
	return port
}

// status waits until the first upstream's reads as wanted.
func status(t *testing.T, gw *gatewaytest.Gateway, what string, want func(upstream.Status) bool) upstream.Status {
	t.Helper()
	var s upstream.Status
	conntest.Eventually(t, what, func() bool {
		s = gw.Snapshot().Upstreams[0].Status
		return want(s)
	})
	return s
}

// inUse lists the endpoints that were not removed.
func inUse(s upstream.Status) string {
	var addrs []string
	for _, e := range s.Endpoints {
		if !e.Removed {
			host, _, _ := net.SplitHostPort(e.Address)
			addrs = append(addrs, host)
		}
	}
	return strings.Join(addrs, " ")
}

const discoverText = `
drain_timeout: 10s
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web}
upstreams:
  web: {{source}}
`

// load sends requests until stop is closed; one that fails fails the test.
func load(t *testing.T, gw *gateway.Gateway, stop <-chan struct{}) (wait func() int64) {
	t.Helper()
	var wg sync.WaitGroup
	var served atomic.Int64
	for range 4 {
		c := client(t)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				code, body, err := get(c, "http://"+gw.Addr("web")+"/")
				if err != nil || code != http.StatusOK {
					t.Errorf("%d %q %v", code, body, err)
					return
				}
				served.Add(1)
			}
		})
	}
	return func() int64 { wg.Wait(); return served.Load() }
}

// TestDNSUnderLoad changes the addresses of a name while requests are served; none may fail. Then the name stops
// resolving.
func TestDNSUnderLoad(t *testing.T) {
	all := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	ns, port := newNameServer(t), hosts(t, all...)
	ns.has(all[0])
	gw := run(t, parse(t, discoverText, "{{source}}", fmt.Sprintf(
		`{discover: {dns: {name: "web.test.:%s", type: a, servers: ["%s"], min_ttl: 10ms}}, slow_start: 100ms}`, port, ns.addr)))
	stop := make(chan struct{})
	wait := load(t, gw.Gateway, stop)
	for i := range 40 {
		set := []string{all[i%3]}
		if i%2 == 0 {
			set = append(set, all[(i+1)%3])
		}
		ns.has(set...)
		status(t, gw, "a new set", func(s upstream.Status) bool {
			got := strings.Fields(inUse(s))
			return len(got) == len(set) && strings.Contains(strings.Join(got, " "), set[0])
		})
	}
	ns.zone.Store(nil)
	kept := inUse(status(t, gw, "failing", func(s upstream.Status) bool { return s.Source.LastError != "" }))
	close(stop)
	if n := wait(); n == 0 {
		t.Error("nothing was served")
	}
	if code, body, err := get(client(t), "http://"+gw.Addr("web")+"/"); code != http.StatusOK || !strings.Contains(kept, body) {
		t.Errorf("with a name that does not resolve: %d %q %v", code, body, err)
	}
	ns.has(all[2])
	status(t, gw, "works again", func(s upstream.Status) bool { return s.Source.LastError == "" && inUse(s) == all[2] })
}

// TestDNSHealthCheck asks addresses by the name that was resolved.
func TestDNSHealthCheck(t *testing.T) {
	ns, asked := newNameServer(t), make(chan string, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Host:
		default:
		}
	}))
	t.Cleanup(s.Close)
	host, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	ns.has(host)
	run(t, parse(t, discoverText, "{{source}}", fmt.Sprintf(`{discover: {dns: {name: "web.test.:%s", type: a, servers: ["%s"]}}, health: {http: /}}`, port, ns.addr)))
	if got := <-asked; got != "web.test:"+port {
		t.Errorf("the health check asked for %s", got)
	}
}

// TestFileUnderLoad replaces a file in every way there is.
func TestFileUnderLoad(t *testing.T) {
	all := []string{"127.0.0.1", "127.0.0.2"}
	port, dir := hosts(t, all...), t.TempDir()
	path := filepath.Join(dir, "set.yaml")
	write := func(path string, addrs ...string) {
		t.Helper()
		text := "endpoints:\n"
		for _, addr := range addrs {
			text += fmt.Sprintf("- {address: \"%s:%s\", zone: a}\n", addr, port)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	write(path, all[0])
	gw := run(t, parse(t, discoverText, "{{source}}", fmt.Sprintf("{discover: {file: {path: %q, interval: 10ms}}}", path)))
	stop := make(chan struct{})
	wait := load(t, gw.Gateway, stop)
	is := func(want string) {
		t.Helper()
		status(t, gw, want, func(s upstream.Status) bool { return inUse(s) == want })
	}
	is(all[0])
	write(path, all...) // in place
	is("127.0.0.1 127.0.0.2")
	write(filepath.Join(dir, "next"), all[1])
	must(os.Rename(filepath.Join(dir, "next"), path)) // by another file
	is(all[1])
	for i, set := range [][]string{{all[0]}, {all[0], all[1]}, {all[1]}} { // as kubelet does for a ConfigMap
		version := filepath.Join(dir, fmt.Sprintf("..v%d", i))
		must(os.Mkdir(version, 0o700))
		write(filepath.Join(version, "set.yaml"), set...)
		must(os.Symlink(version, filepath.Join(dir, "..tmp")))
		must(os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
		if i == 0 {
			must(os.Symlink(filepath.Join("..data", "set.yaml"), filepath.Join(dir, "link")))
			must(os.Rename(filepath.Join(dir, "link"), path))
		}
		is(strings.Join(set, " "))
	}
	must(os.Remove(path))
	status(t, gw, "no file", func(s upstream.Status) bool { return s.Source.LastError != "" && inUse(s) == all[1] })
	must(os.WriteFile(path, []byte("endpoints:\n- {address: \"127.0.0.1:1\", wait: 3}\n"), 0o600))
	status(t, gw, "a bad file", func(s upstream.Status) bool {
		return strings.Contains(s.Source.LastError, path+":2:28: unknown key \"wait\"") && inUse(s) == all[1]
	})
	write(path, all[0])
	is(all[0])
	close(stop)
	if n := wait(); n == 0 {
		t.Error("nothing was served")
	}
}

// TestReloadToDNS keeps the connections when a list becomes a name with the same addresses, and the other way round.
func TestReloadToDNS(t *testing.T) {
	ns, port := newNameServer(t), hosts(t, "127.0.0.1")
	ns.has("127.0.0.1")
	list := fmt.Sprintf(`{endpoints: ["127.0.0.1:%s"]}`, port)
	name := fmt.Sprintf(`{discover: {dns: {name: "web.test.:%s", type: a, servers: ["%s"], min_ttl: 10ms}}}`, port, ns.addr)
	gw := run(t, parse(t, discoverText, "{{source}}", list))
	c := client(t)
	for _, source := range []string{list, name, name, list} {
		if err := gw.Reload(parse(t, discoverText, "{{source}}", source)); err != nil {
			t.Fatal(err)
		}
		if source == name {
			status(t, gw, "resolved", func(s upstream.Status) bool { return !s.Source.Updated.IsZero() })
		}
		if code, body, err := get(c, "http://"+gw.Addr("web")+"/"); code != http.StatusOK {
			t.Fatalf("%d %q %v", code, body, err)
		}
	}
	s := gw.Snapshot().Upstreams[0].Status
	if e := s.Endpoints; len(e) != 1 || e[0].Pool.Opened != 1 || s.Source.Removed != 0 {
		t.Errorf("%+v %+v, want one connection for everything", e, s.Source)
	}
}

// TestRemovedIsClosed interrupts a session of an endpoint that is gone, and no other.
func TestRemovedIsClosed(t *testing.T) {
	dir, first, second := t.TempDir(), echoServer(t), echoServer(t)
	path := filepath.Join(dir, "set")
	write := func(addrs ...string) {
		if err := os.WriteFile(path, []byte(`["`+strings.Join(addrs, `", "`)+`"]`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(first, second)
	gw := run(t, parse(t, `
listeners: [{name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo}]
upstreams: {echo: {discover: {file: {path: "{path}", interval: 10ms}}, balance: round_robin, on_removed: close}}
`, "{path}", path))
	status(t, gw, "read", func(s upstream.Status) bool { return len(s.Endpoints) == 2 })
	conns := []net.Conn{dial(t, gw.Addr("raw")), dial(t, gw.Addr("raw"))}
	for _, c := range conns {
		echo(t, c, "hello")
	}
	write(second)
	status(t, gw, "removed", func(s upstream.Status) bool { return len(s.Endpoints) == 1 && s.Endpoints[0].Pool.InUse == 1 })
	gone := 0
	for _, c := range conns {
		_ = c.SetDeadline(time.Now().Add(conntest.Patience))
		if _, err := io.WriteString(c, "ping"); err == nil {
			_, err = io.ReadFull(c, make([]byte, 4))
			if err == nil {
				continue
			}
		}
		gone++
	}
	if gone != 1 {
		t.Errorf("%d sessions are gone, want the session of the removed endpoint", gone)
	}
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	_ = conns[0].Close()
	_ = conns[1].Close()
	if err := gw.Drain(ctx); err != nil {
		t.Error(err)
	}
}
