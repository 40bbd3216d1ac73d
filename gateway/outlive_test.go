package gateway_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/listener"
)

// outlive reloads with a configuration without an upstream, and without the upstream spare, which nothing uses: it is of another protocol.
// It returns when spare is closed. If the other one is still there, it is for those who use it.
func outlive(t *testing.T, g *gatewaytest.Gateway, cfg *config.Config) {
	t.Helper()
	if err := g.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "an unused upstream is closed", func() bool {
		return !slices.ContainsFunc(g.Snapshot().Retiring, func(r admin.Retiring) bool { return r.Name == "spare" })
	})
}

// allClosed waits until all that reloads have taken out of service is closed.
func allClosed(t *testing.T, g *gatewaytest.Gateway) {
	t.Helper()
	conntest.Eventually(t, "what nothing uses is closed", func() bool { return len(g.Snapshot().Retiring) == 0 })
}

// held is a server of HTTP that holds the first request to /reset, which then ends with a reset connection, and questions about /asks until
// release is closed. Its name and the path of the other requests are their answer.
type held struct {
	release chan struct{}
	mu      sync.Mutex
	got     []string // paths of requests
}

func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	first := !slices.Contains(h.got, r.URL.Path)
	h.got = append(h.got, r.URL.Path)
	h.mu.Unlock()
	if r.URL.Path == "/asks-auth" || r.URL.Path == "/reset" && first {
		<-h.release
	}
	if r.URL.Path == "/reset" && first {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = fmt.Fprint(w, "answered")
}

// requests returns how many requests for a path there were.
func (h *held) requests(path string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.got {
		if p == path {
			n++
		}
	}
	return n
}

const outlivedWeb = `
drain_timeout: 1m
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    http:
      routes:
        - {path: /body, body: {model: small}, upstream: {web}}
        - {path: /asks, forward_auth: {upstream: {auth}, path: /asks-auth, timeout: 5m}, upstream: {asked}}
        - {path: /copied, mirror: {upstream: {copies}, max_body_kib: 1}, upstream: {other}}
        - {path: /, upstream: {web}}
  - {name: spare, protocol: tcp, listen: "127.0.0.1:0", upstream: {spare}}
upstreams:
  {web}: {endpoints: ["{at}"]{more}}
  {auth}: {endpoints: ["{at}"]{more}}
  {asked}: {endpoints: ["{at}"]{more}}
  {copies}: {endpoints: ["{at}"]{more}}
  {other}: {endpoints: ["{at}"]{more}}
  {spare}: {endpoints: ["127.0.0.1:9"]}
`

// slowBody begins a request, waits until the gateway asks for its body, and returns a function that sends the body and wants answer.
func slowBody(t *testing.T, address, path, body string) (finish func()) {
	t.Helper()
	c := dial(t, address)
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", path, len(body)); err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewReader(c)
	if line, err := answers.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Fatal(line, err)
	}
	_, _ = answers.ReadString('\n')
	return func() {
		if _, err := fmt.Fprint(c, body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
			t.Errorf("%s: %d %s %v", path, resp.StatusCode, text, err)
		}
	}
}

// TestRequestsOutliveTheirUpstream: a reload replaces or removes the upstreams of requests under way, which need a connection of them long
// after: one is sent again, as its server has reset the connection; others wait for their body, of which the route or a copy depends, or for
// the answer of an authentication server.
func TestRequestsOutliveTheirUpstream(t *testing.T) {
	roles := []string{"web", "auth", "asked", "copies", "other"}
	names := func(suffix string) (pairs []string) {
		for _, r := range roles {
			pairs = append(pairs, "{"+r+"}", r+suffix)
		}
		return pairs
	}
	for what, after := range map[string][]string{
		"replaced": append(names(""), "{spare}", "spare2", "{more}", ", connect_timeout: 4s"),
		"removed":  append(names("2"), "{spare}", "spare2", "{more}", ""),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := &held{release: make(chan struct{})}
			server := httptest.NewServer(h)
			t.Cleanup(server.Close)
			release := sync.OnceFunc(func() { close(h.release) })
			t.Cleanup(release)
			at := []string{"{at}", server.Listener.Addr().String()}
			g := run(t, parse(t, outlivedWeb, slices.Concat(at, names(""), []string{"{spare}", "spare", "{more}", ""})...))
			answers := make(chan string, 2)
			for _, path := range []string{"/reset", "/asks"} {
				go func() {
					code, body, err := get(client(t), "http://"+g.Addr("web")+path)
					answers <- fmt.Sprint(path, " ", code, body, err)
				}()
			}
			conntest.Eventually(t, "requests are under way", func() bool { return h.requests("/reset") == 1 && h.requests("/asks-auth") == 1 })
			routed := slowBody(t, g.Addr("web"), "/body", `{"model":"small"}`)
			copied := slowBody(t, g.Addr("web"), "/copied", "the body")
			outlive(t, g, parse(t, outlivedWeb, slices.Concat(at, after)...))
			release()
			for range 2 {
				if got := <-answers; !strings.HasSuffix(got, "200answered<nil>") {
					t.Error(got)
				}
			}
			routed()
			copied()
			conntest.Eventually(t, "the copy has been sent", func() bool { return h.requests("/copied") == 2 })
			allClosed(t, g)
		})
	}
}

const outlivedStreams = `
drain_timeout: 1m
listeners:
  - {name: raw, protocol: {protocol}, listen: "127.0.0.1:0", upstream: {old}}
  - {name: named, protocol: tcp, listen: "127.0.0.1:0", tcp: {routes: [{sni: [x.example], upstream: {named}}]}}
  - {name: spare, protocol: http, listen: "127.0.0.1:0", upstream: {spare}}
upstreams:
  {old}: {endpoints: ["{at}"], connect_timeout: 5m, pool: {max_size: 1, acquire_timeout: 5m}}
  {named}: {endpoints: ["{echo}"], connect_timeout: 5m}
  {spare}: {endpoints: ["127.0.0.1:9"]}
`

// TestStreamsOutliveTheirUpstream: TCP and UDP sessions wait for a connection of an upstream that a reload removes, and get it long after;
// and so does a TCP session whose client has not sent its whole ClientHello.
func TestStreamsOutliveTheirUpstream(t *testing.T) {
	for protocol, at := range map[string]string{"tcp": echoServer(t), "udp": udpEcho(t, "")} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			pairs := []string{"{protocol}", protocol, "{at}", at, "{echo}", echoServer(t)}
			g := run(t, parse(t, outlivedStreams, append(pairs, "{old}", "old", "{named}", "named", "{spare}", "spare")...))
			open := func() net.Conn {
				c, err := net.Dial(protocol, g.Addr("raw"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			holder, waiter := open(), open()
			udpAsk(t, holder, "hello", "hello")
			if _, err := waiter.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			session := func(state listener.State) string {
				for _, s := range g.Sessions() {
					if s.Upstream == "old" && s.State == state {
						return s.ID
					}
				}
				return ""
			}
			conntest.Eventually(t, "a session waits", func() bool { return session(listener.StateWaiting) != "" })
			hello := clientHello(t)
			named := dial(t, g.Addr("named"))
			if _, err := named.Write(hello[:len(hello)/2]); err != nil {
				t.Fatal(err)
			}
			conntest.Eventually(t, "a session has begun", func() bool {
				return slices.ContainsFunc(g.Sessions(), func(s listener.Info) bool { return s.Listener == "named" && s.State == listener.StateStarting })
			})
			outlive(t, g, parse(t, outlivedStreams, append(pairs, "{old}", "new", "{named}", "new2", "{spare}", "new3")...))
			if !g.Kill(session(listener.StateActive)) {
				t.Fatal("no session holds the connection")
			}
			conntest.Want(t, waiter, "hello")
			exchangeRest(t, named, hello)
			_ = named.Close()
			g.Kill(session(listener.StateActive))
			allClosed(t, g)
		})
	}
}

// clientHello returns a client's first message for x.example.
func clientHello(t *testing.T) []byte {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	go func() { _ = tls.Client(a, &tls.Config{ServerName: "x.example"}).HandshakeContext(t.Context()) }() //nolint:gosec // only its hello is used
	hello := make([]byte, 4096)
	n, err := b.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	return hello[:n]
}

// exchangeRest sends the second half of a message and wants the whole back.
func exchangeRest(t *testing.T, c net.Conn, message []byte) {
	t.Helper()
	if _, err := c.Write(message[len(message)/2:]); err != nil {
		t.Fatal(err)
	}
	conntest.Want(t, c, string(message))
}

// TestSessionsOfARemovedUpstreamAreWatched: a session whose server no longer answers its check ends, also after a reload has removed its
// upstream.
func TestSessionsOfARemovedUpstreamAreWatched(t *testing.T) {
	const text = `
drain_timeout: 1m
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: {old}}
  - {name: spare, protocol: http, listen: "127.0.0.1:0", upstream: {spare}}
upstreams:
  {old}: {endpoints: ["{dying}", {address: "{echo}", priority: 1}], balance: first, health: {tcp: true, interval: 100ms, fall: 2, stagger: 1ms, on_unhealthy: drain}, drain_timeout: 1ms}
  {spare}: {endpoints: ["127.0.0.1:9"]}
`
	dying := conntest.Listen(t)
	defer func() { _ = dying.Close() }()
	go func() {
		for {
			c, err := dying.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }() // the gateway ends it
		}
	}()
	pairs := []string{"{dying}", dying.Addr().String(), "{echo}", echoServer(t)}
	g := run(t, parse(t, text, append(pairs, "{old}", "old", "{spare}", "spare")...))
	c := dial(t, g.Addr("raw"))
	echo(t, c, "before")
	outlive(t, g, parse(t, text, append(pairs, "{old}", "new", "{spare}", "new2")...))
	echo(t, c, "after")
	_ = dying.Close()
	_ = conntest.WantGone(t, c)
	allClosed(t, g)
}

// slowPassword is a connection whose client types its password until release is closed.
type slowPassword struct {
	net.Conn
	asked, release chan struct{}
	once           sync.Once
}

func (c *slowPassword) Write(p []byte) (int, error) {
	if p[0] == 'p' {
		c.once.Do(func() {
			close(c.asked)
			<-c.release
		})
	}
	return c.Conn.Write(p)
}

// TestLoginsOutliveTheirUpstream: a PostgreSQL client that has begun to log in when a reload removes its upstream can use it.
func TestLoginsOutliveTheirUpstream(t *testing.T) {
	const text = `
drain_timeout: 1m
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: {old}, postgres: {users_file: "{dir}/users"}}
  - {name: spare, protocol: http, listen: "127.0.0.1:0", upstream: {spare}}
upstreams:
  {old}: {endpoints: ["sqlite:{dir}/{old}.db"]}
  {spare}: {endpoints: ["127.0.0.1:9"]}
`
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "users"), []byte("\"me\" \"secret\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := run(t, parse(t, text, "{dir}", dir, "{old}", "old", "{spare}", "spare"))
	cfg, err := pgx.ParseConfig("postgres://me:secret@" + g.Addr("db") + "/app?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	slow := &slowPassword{asked: make(chan struct{}), release: make(chan struct{})}
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		slow.Conn = c
		return slow, err
	}
	result := make(chan error, 1)
	go func() {
		conn, err := pgx.ConnectConfig(t.Context(), cfg)
		if err == nil {
			_, err = conn.Exec(t.Context(), "create table t (a int)")
			_ = conn.Close(context.Background())
		}
		result <- err
	}()
	<-slow.asked
	outlive(t, g, parse(t, text, "{dir}", dir, "{old}", "new", "{spare}", "new2"))
	close(slow.release)
	if err := <-result; err != nil {
		t.Error(err)
	}
	allClosed(t, g)
}
