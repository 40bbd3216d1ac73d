package http3_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/gateway/config"
	_ "github.com/headpond/headpond/http3"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/gatewaytest"
)

// world is a gateway with an HTTP/3 listener before a server.
type world struct {
	t         testing.TB
	gw        *gatewaytest.Gateway
	authority *certs.Authority
	pairs     []string // for the configuration
	client    *tls.Config
	started   chan string // paths of requests that the server has begun to answer
	next      chan string // what the server sends next, at /events
	gone      chan string // paths of requests whose client has left the server
}

const standard = `
engine: {engine}
drain_timeout: 5s
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: app, tls: {cert: {cert}, key: {key}}, http: {http3: true}}
upstreams:
  app: {endpoints: ["{server}"], protocol: {version}, connect_timeout: 1m, pool: {acquire_timeout: 1m}}
`

// run starts the gateway with a configuration. Some pairs may replace the usual ones.
func run(t testing.TB, text string, pairs ...string) *world {
	t.Helper()
	w := &world{t: t, authority: certs.New(), started: make(chan string, 2000), next: make(chan string), gone: make(chan string, 10)}
	server := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	_, w.client = w.authority.Configs()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	w.certificate(cert, key, "localhost", "127.0.0.1")
	w.pairs = append(slices.Clip(pairs), "{engine}", "auto", "{version}", "h1", "{server}", server.Listener.Addr().String(), "{cert}", cert, "{key}", key)
	w.gw = gatewaytest.Run(t, w.parse(text))
	return w
}

func (w *world) parse(text string) *config.Config {
	w.t.Helper()
	return gatewaytest.Parse(w.t, text, w.pairs...)
}

// certificate writes a new one for these hosts to files.
func (w *world) certificate(cert, key string, hosts ...string) {
	w.t.Helper()
	c, k := certs.PEM(w.authority.Issue(hosts[0], hosts...))
	for file, text := range map[string][]byte{cert: c, key: k} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

// serve is the server.
func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	w.started <- r.URL.Path
	switch r.URL.Path {
	case "/sum":
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		rw.Header().Set("Trailer", "Sum")
		rw.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(rw, "%d %v %s", n, err, r.Header.Get("Content-Length"))
		rw.Header().Set("Sum", hex.EncodeToString(sum.Sum(nil))+r.Trailer.Get("Check"))
	case "/large":
		rw.Header().Set("Content-Length", r.Header.Get("Size"))
		_, _ = io.Copy(rw, io.LimitReader(pattern{}, size(r.Header.Get("Size"))))
	case "/events":
		rw.Header().Set("Content-Type", "text/event-stream")
		for {
			_ = http.NewResponseController(rw).Flush()
			select {
			case s := <-w.next:
				_, _ = io.WriteString(rw, s)
			case <-r.Context().Done():
				w.gone <- r.URL.Path
				return
			}
		}
	case "/echo":
		rw.Header().Set("Content-Type", "application/grpc")
		_ = http.NewResponseController(rw).Flush()
		for b := make([]byte, 1000); ; {
			n, err := r.Body.Read(b)
			_, _ = rw.Write(b[:n])
			_ = http.NewResponseController(rw).Flush()
			if err != nil {
				break
			}
		}
		rw.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	case "/wait":
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
		w.gone <- r.URL.Path
	case "/early":
		rw.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(rw, "no")
	case "/page": // asks for itself until that comes by HTTP/3
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, page)
	case "/cert":
		_, _ = io.WriteString(rw, r.Header.Get("X-Forwarded-Client-Cert"))
	case "/broken":
		_, _ = io.WriteString(rw, "a part")
		_ = http.NewResponseController(rw).Flush()
		panic(http.ErrAbortHandler)
	case "/elsewhere":
		rw.Header().Set("Alt-Svc", `h3="elsewhere.example:443"`)
	case "/hints":
		rw.Header().Set("Link", "</a.css>; rel=preload")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Del("Link")
		_, _ = io.WriteString(rw, "ok")
	case "/hints/wait":
		w.hintAndWait(rw, r)
	default:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		rw.Header()["Content-Type"] = nil
		_, _ = fmt.Fprintf(rw, "%s %s %s %s %s %s", r.Method, r.Proto, r.Host, r.URL.RequestURI(), r.Header.Get("X-Forwarded-Proto"), body)
	}
}

// hintAndWait sends an interim answer that is too long to be buffered for a client without room.
func (w *world) hintAndWait(rw http.ResponseWriter, r *http.Request) {
	rw.Header().Set("Link", strings.Repeat("</a.css>; rel=preload, ", 200)+"</a.css>; rel=preload")
	rw.WriteHeader(http.StatusEarlyHints)
	<-r.Context().Done()
	w.gone <- r.URL.Path
}

const page = `<p id=p>by nothing<script>
(async () => {
	for (let i = 0; i < 100; i++) {
		await (await fetch("/?" + i)).text();
		const e = performance.getEntriesByType("resource").at(-1);
		document.getElementById("p").textContent = "by " + e.nextHopProtocol;
		if (e.nextHopProtocol == "h3") return;
		await new Promise(r => setTimeout(r, 100));
	}
})();
</script>`

func size(text string) (n int64) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

// pattern is an endless text.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) { return copy(p, patternBlock[:]), nil }

// patternBlock is copied: the race detector looks at each byte that a loop writes.
var patternBlock = func() (b [32 << 10]byte) {
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}()

// transport returns a client of HTTP/3 with a connection of its own, for URLs with any port.
func (w *world) transport() *quichttp3.Transport {
	tr := &quichttp3.Transport{TLSClientConfig: w.client, QUICConfig: &quic.Config{}}
	w.t.Cleanup(func() { _ = tr.Close() })
	return tr
}

func (w *world) url(path string) string { return "https://" + w.gw.Addr("web") + path }

// get returns the body of an answer and the answer.
func get(t testing.TB, tr http.RoundTripper, url string) (string, *http.Response) {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return do(t, tr, r)
}

func do(t testing.TB, tr http.RoundTripper, r *http.Request) (string, *http.Response) {
	t.Helper()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), resp
}

// overTCP returns a client of HTTP/1.1 and 2.
func (w *world) overTCP() *http.Transport {
	tr := &http.Transport{TLSClientConfig: w.client.Clone(), ForceAttemptHTTP2: true}
	w.t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// port returns the port of an address.
func port(t testing.TB, address string) string {
	t.Helper()
	_, p, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func request(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// answers checks that a new client is served.
func (w *world) answers(tr http.RoundTripper, url string) *http.Response {
	w.t.Helper()
	body, resp := get(w.t, tr, url)
	if !strings.HasPrefix(body, "GET ") {
		w.t.Errorf("%q", body)
	}
	return resp
}
