package http3_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// events opens a stream of events and returns what reads the next one.
func (w *world) events(tr http.RoundTripper) (next func(event string), end func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/events"), nil)
	resp, err := tr.RoundTrip(r)
	if err != nil {
		w.t.Fatal(err)
	}
	next = func(event string) {
		w.t.Helper()
		w.next <- event
		b := make([]byte, len(event))
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != event {
			w.t.Errorf("%q, %v", b, err)
		}
	}
	return next, func() {
		cancel()
		resp.Body.Close()
		<-w.gone
	}
}

// TestWaitingRequestsHoldLittle: a request that has waited for its answer for a second holds no buffers.
func TestWaitingRequestsHoldLittle(t *testing.T) {
	w := run(t, standard)
	const n = 50
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	tr := w.transport()
	failed := make(chan error, n)
	for range n {
		go func() {
			r, _ := http.NewRequestWithContext(ctx, http.MethodPost, w.url("/wait"), strings.NewReader("a question"))
			resp, err := tr.RoundTrip(r)
			if err == nil {
				resp.Body.Close()
			}
			failed <- err
		}()
	}
	for range n {
		<-w.started
	}
	conntest.Eventually(t, "little is held", func() bool { return w.gw.Snapshot().Listeners[0].Buffered < n<<12 })
	leave()
	for range n {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		<-w.gone
	}
	conntest.Eventually(t, "nothing is held", func() bool { return w.gw.Snapshot().Listeners[0].Buffered == 0 })
}

// sessions returns the register's entries for HTTP/3: those of the connections, and those of their requests.
func (w *world) sessions() (conns, requests []listener.Info) {
	for _, s := range w.gw.Sessions() {
		if strings.Contains(s.ID, ".") {
			requests = append(requests, s)
		} else {
			conns = append(conns, s)
		}
	}
	return conns, requests
}

func TestAnnouncement(t *testing.T) {
	w := run(t, standard)
	want := `h3=":` + port(t, w.gw.Addr("web")) + `"; ma=86400`
	for _, path := range []string{"/", "/..%2f"} {
		if _, resp := get(t, w.overTCP(), w.url(path)); resp.ProtoMajor != 2 || len(resp.Header["Alt-Svc"]) != 1 || resp.Header.Get("Alt-Svc") != want {
			t.Errorf("%s: %s %v, want %s", path, resp.Proto, resp.Header, want)
		}
	}
	for _, tr := range []http.RoundTripper{w.overTCP(), w.transport()} { // the server's own is for clients of the server
		if _, resp := get(t, tr, w.url("/elsewhere")); strings.Contains(resp.Header.Get("Alt-Svc"), "elsewhere") {
			t.Errorf("%s: %v", resp.Proto, resp.Header)
		}
	}
	for keys, want := range map[string]string{
		"http3: {announce: 1h, announce_port: 443}": `h3=":443"; ma=3600`,
		"http3: {announce: never}":                  "",
		"http3: false":                              "",
		"http3: true, routes: [{upstream: app, response_headers: {remove: [Alt-Svc]}}]":    "",
		`http3: true, routes: [{upstream: app, response_headers: {set: {Alt-Svc: mine}}}]`: "mine",
	} {
		if err := w.gw.Reload(w.parse(strings.ReplaceAll(standard, "http3: true", keys))); err != nil {
			t.Fatal(err)
		}
		if _, resp := get(t, w.overTCP(), w.url("/")); strings.Join(resp.Header["Alt-Svc"], " and ") != want {
			t.Errorf("%s: %v, want %s", keys, resp.Header, want)
		}
	}
}

func TestReloadUnderOpenStreams(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		tr := w.transport()
		next, end := w.events(tr)
		next("data: before\n\n")
		moved := strings.ReplaceAll(standard, "http3: true", "http3: true, routes: [{path: /, upstream: app}, {path: /gone, respond: {status: 410}}]")
		if err := w.gw.Reload(w.parse(moved)); err != nil {
			t.Fatal(err)
		}
		next("data: after\n\n")
		if _, resp := get(t, tr, w.url("/gone")); resp.StatusCode != http.StatusGone { // the new routes, on the old connection
			t.Error(resp.Status)
		}
		if conns, _ := w.sessions(); len(conns) != 1 {
			t.Errorf("sessions %v", conns)
		}
		end()
	})
}

// TestKeyComesAndGoes: without the key nothing listens, clients are told to leave, and their requests end well.
func TestKeyComesAndGoes(t *testing.T) {
	address := conntest.FreeAddress(t)
	with := strings.ReplaceAll(standard, "127.0.0.1:0", address)
	without := strings.ReplaceAll(with, "http3: true", "http3: false")
	w := run(t, with)
	for range 2 {
		tr := w.transport()
		next, end := w.events(tr)
		next("data: 1\n\n")
		if err := w.gw.Reload(w.parse(without)); err != nil {
			t.Fatal(err)
		}
		next("data: 2\n\n")
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/"), nil)
		if resp, err := w.transport().RoundTrip(r); err == nil {
			resp.Body.Close()
			t.Error("a new client is served")
		}
		cancel()
		if body, _ := get(t, w.overTCP(), w.url("/")); !strings.HasPrefix(body, "GET ") {
			t.Errorf("by TCP: %q", body)
		}
		end()
		conntest.Eventually(t, "the old client's connection is over, and the socket closed", func() bool {
			c, err := net.ListenPacket("udp", address)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
		if err := w.gw.Reload(w.parse(with)); err != nil {
			t.Fatal(err)
		}
		if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
			t.Errorf("again by QUIC: %q", body)
		}
	}
}

// TestKeyGoesAndRequestsStay: requests that drain_timeout does not see the end of are cut off, and the key can come back.
func TestKeyGoesAndRequestsStay(t *testing.T) {
	with := strings.NewReplacer("127.0.0.1:0", conntest.FreeAddress(t), "drain_timeout: 5s", "drain_timeout: 100ms").Replace(standard)
	w := run(t, with)
	r, _ := http.NewRequest(http.MethodGet, w.url("/events"), nil)
	resp, err := w.transport().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := w.gw.Reload(w.parse(strings.ReplaceAll(with, "http3: true", "http3: false"))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer looks whole")
	}
	<-w.gone
	conntest.Eventually(t, "the key is back", func() bool { return w.gw.Reload(w.parse(with)) == nil })
	if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
		t.Errorf("%q", body)
	}
}

// TestRenamedListener: another listener takes the address over, and no client is refused meanwhile.
func TestRenamedListener(t *testing.T) {
	address := conntest.FreeAddress(t)
	named := func(name string) string {
		return strings.NewReplacer("127.0.0.1:0", address, "name: web", "name: "+name).Replace(standard)
	}
	w := run(t, named("web"))
	old := w.transport()
	next, end := w.events(old)
	if err := w.gw.Reload(w.parse(named("other"))); err != nil {
		t.Fatal(err)
	}
	next("data: 1\n\n")
	for range 10 {
		if body, _ := get(t, w.transport(), "https://"+address+"/"); !strings.HasPrefix(body, "GET ") {
			t.Errorf("%q", body)
		}
	}
	next("data: 2\n\n")
	end()
}

// TestDrain: GOAWAY comes, requests under way end well, new ones need another connection, and nothing is left.
func TestDrain(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		conn, err := quic.DialAddr(context.Background(), w.gw.Addr("web"), w.tls(), &quic.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.CloseWithError(0, "") }()
		client := (&quichttp3.Transport{}).NewClientConn(conn)
		r, _ := http.NewRequest(http.MethodGet, w.url("/events"), nil)
		resp, err := client.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		w.next <- "data: 1\n\n"
		w.gw.Stop()
		b := make([]byte, len("data: 1\n\n"))
		if _, err := io.ReadFull(resp.Body, b); err != nil {
			t.Error(err)
		}
		conntest.Eventually(t, "a new request is refused", func() bool {
			again, _ := http.NewRequest(http.MethodGet, w.url("/"), nil)
			resp, err := client.RoundTrip(again)
			if err == nil {
				resp.Body.Close()
			}
			return err != nil
		})
		w.next <- "data: 2\n\n"
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "data: 2\n\n" {
			t.Errorf("%q, %v", b, err)
		}
		resp.Body.Close()
		<-w.gone
		if err := <-w.gw.Result; err != nil {
			t.Error(err)
		}
	})
}

// tls returns the client's settings for QUIC.
func (w *world) tls() *tls.Config {
	t := w.client.Clone()
	t.NextProtos, t.ServerName = []string{quichttp3.NextProtoH3}, "localhost"
	return t
}

func TestDrainCutsOff(t *testing.T) {
	w := run(t, strings.ReplaceAll(standard, "drain_timeout: 5s", "drain_timeout: 100ms"))
	r, _ := http.NewRequest(http.MethodGet, w.url("/events"), nil)
	resp, err := w.transport().RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	w.gw.Stop()
	if err := <-w.gw.Result; !errors.Is(err, gateway.ErrCutOff) {
		t.Errorf("result %v", err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer looks whole")
	}
}

func TestRegisterAndKill(t *testing.T) {
	everywhere(t, func(t *testing.T, w *world) {
		tr := w.transport()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.url("/events?secret"), nil)
		r.Header.Set("User-Agent", "tester/3")
		resp, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		conns, requests := w.sessions()
		if len(conns) != 1 || len(requests) != 1 {
			t.Fatalf("connections %v, requests %v", conns, requests)
		}
		c, q := conns[0], requests[0]
		if c.Listener != "web" || c.Streams != 1 || c.State != listener.StateActive || !strings.HasPrefix(c.Client, "127.0.0.1:") || c.BytesIn < 1200 || c.BytesOut < 1200 {
			t.Errorf("connection %+v", c)
		}
		if q.Method != "GET" || q.Path != "/events" || q.Application != "tester/3" || q.Upstream != "app" || q.Endpoint == "" || q.State != listener.StateActive {
			t.Errorf("request %+v", q)
		}
		if !w.gw.Kill(q.ID) {
			t.Error("the request is not there")
		}
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the killed answer looks whole")
		}
		<-w.gone
		if body, _ := get(t, tr, w.url("/")); !strings.HasPrefix(body, "GET ") {
			t.Errorf("after it: %q", body)
		}
		if conns, requests = w.sessions(); len(conns) != 1 || len(requests) != 0 || conns[0].State != listener.StateIdle {
			t.Errorf("connections %v, requests %v", conns, requests)
		}
		if !w.gw.Kill(conns[0].ID) {
			t.Error("the connection is not there")
		}
		conntest.Eventually(t, "the connection is over", func() bool { conns, _ := w.sessions(); return len(conns) == 0 })
	})
}

// TestLimits: connections of all protocols count together.
func TestLimits(t *testing.T) {
	w := run(t, strings.ReplaceAll(standard, "upstream: app, tls", "upstream: app, max_conns: 1, max_queue: 0, tls"))
	if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
		t.Errorf("%q", body)
	}
	r, _ := http.NewRequest(http.MethodGet, w.url("/"), nil)
	resp, err := w.transport().RoundTrip(r)
	if err == nil {
		resp.Body.Close()
	}
	if e, ok := errors.AsType[*quichttp3.Error](err); !ok || e.ErrorCode != quichttp3.ErrCodeExcessiveLoad {
		t.Errorf("error %v", err)
	}
}

// TestOtherCertificate: a reload changes the certificate for handshakes by QUIC too, and a wrong one changes nothing.
func TestOtherCertificate(t *testing.T) {
	w := run(t, standard)
	cert, key := w.pairs[len(w.pairs)-3], w.pairs[len(w.pairs)-1]
	broken := w.parse(standard)
	if err := os.WriteFile(cert, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := w.gw.Reload(broken); err == nil {
		t.Error("a broken certificate is accepted")
	}
	if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
		t.Errorf("%q", body)
	}
	old := w.transport()
	next, end := w.events(old)
	w.certificate(cert, key, "renewed.example", "127.0.0.1")
	if err := w.gw.Reload(w.parse(standard)); err != nil {
		t.Fatal(err)
	}
	var shown *x509.Certificate
	conn, err := quic.DialAddr(context.Background(), w.gw.Addr("web"), w.tlsFor("renewed.example"), &quic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	shown = conn.ConnectionState().TLS.PeerCertificates[0]
	_ = conn.CloseWithError(0, "")
	if shown.Subject.CommonName != "renewed.example" {
		t.Errorf("certificate of %s", shown.Subject)
	}
	next("data: 1\n\n")
	end()
}

func (w *world) tlsFor(name string) *tls.Config {
	t := w.tls()
	t.ServerName = name
	return t
}

// TestClientCertificate: clients without one are refused, and the server gets to know whose it is.
func TestClientCertificate(t *testing.T) {
	authority := certs.New()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pem, _ := certs.PEM(authority.Certificate)
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	w := run(t, strings.ReplaceAll(standard, "key: {key}}", "key: {key}, client_ca: {ca}}"), "{ca}", ca)
	r, _ := http.NewRequest(http.MethodGet, w.url("/cert"), nil)
	resp, err := w.transport().RoundTrip(r)
	if err == nil {
		resp.Body.Close()
		t.Error("a client without a certificate is served")
	}
	w.client.Certificates = []tls.Certificate{authority.Issue("ann")}
	if body, _ := get(t, w.transport(), w.url("/cert")); !strings.Contains(body, `Subject="CN=ann"`) {
		t.Errorf("the server has got %q", body)
	}
}

// TestProblems: what a check says of the key.
func TestProblems(t *testing.T) {
	w := run(t, standard)
	for keys, want := range map[string]string{
		`listen: "127.0.0.1:0", http: {http3: true}`:                                                                                       "http3: the listener has no \"tls\"",
		`listen: "unix:/tmp/never.sock", tls: {cert: {cert}, key: {key}}, http: {http3: true}`:                                             "give the listener an address host:port",
		`listen: "127.0.0.1:1", accept_proxy: true, trusted_proxies: ["10.0.0.0/8"], tls: {cert: {cert}, key: {key}}, http: {http3: true}`: "no PROXY headers in QUIC",
		`listen: "127.0.0.1:1", tls: {cert: {cert}, key: {key}}, http: {http3: {announce_port: 70000}}`:                                    "announce_port",
		`listen: "127.0.0.1:1", tls: {cert: {cert}, key: {key}}, http: {http3: maybe}`:                                                     "http3",
	} {
		text := "listeners: [{name: web, protocol: http, upstream: app, " + keys + "}]\nupstreams: {app: {endpoints: [\"127.0.0.1:2\"]}}"
		_, problems := config.Parse("test.yaml", []byte(strings.NewReplacer(w.pairs...).Replace(text)))
		if err := problems.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", keys, err, want)
		}
	}
	both := `
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:1234", upstream: app, tls: {cert: {cert}, key: {key}}, http: {http3: true}}
  - {name: dns, protocol: udp, listen: "127.0.0.1:1234", upstream: names}
upstreams: {app: {endpoints: ["127.0.0.1:2"]}, names: {endpoints: ["127.0.0.1:3"]}}`
	_, problems := config.Parse("test.yaml", []byte(strings.NewReplacer(w.pairs...).Replace(both)))
	if err := problems.Err(); err == nil || !strings.Contains(err.Error(), `is already the address of listener "web", by UDP`) {
		t.Errorf("two at one address: %v", err)
	}
}

// TestPortInUse: the error names the listener and the UDP port, at the start and in a reload, which then changes nothing.
func TestPortInUse(t *testing.T) {
	without := strings.ReplaceAll(standard, "http3: true", "http3: false")
	w := run(t, without)
	taken, err := net.ListenPacket("udp", w.gw.Addr("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = w.gw.Reload(w.parse(standard))
	if !errors.Is(err, gateway.ErrListen) || !strings.Contains(err.Error(), `listener "web"`) || !strings.Contains(err.Error(), "UDP "+w.gw.Addr("web")) || !strings.Contains(err.Error(), "ss -lunp") {
		t.Errorf("reload: %v", err)
	}
	if body, resp := get(t, w.overTCP(), w.url("/")); !strings.HasPrefix(body, "GET ") || resp.Header.Get("Alt-Svc") != "" {
		t.Errorf("%q %v", body, resp.Header)
	}
	_ = taken.Close()
	if err := w.gw.Reload(w.parse(standard)); err != nil {
		t.Error(err)
	}
	if body, _ := get(t, w.transport(), w.url("/")); !strings.HasPrefix(body, "GET ") {
		t.Errorf("%q", body)
	}
}
