package integration

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
)

// The environment of a child process that serves as an API server, so that it can be stopped.
const (
	apiServerDir     = "HEADPOND_TEST_APISERVER_DIR"
	apiServerAddress = "HEADPOND_TEST_APISERVER_ADDRESS"
)

// serveAPI serves TLS: /readyz, which fails while the file "unready-" plus the address exists, and /watch, which begins
// with the address and never ends.
func serveAPI(dir, address string) {
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat(filepath.Join(dir, "unready-"+address)); err == nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	http.HandleFunc("/watch", func(w http.ResponseWriter, r *http.Request) {
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for r.Context().Err() == nil {
			_, _ = fmt.Fprintln(w, address)
			_ = http.NewResponseController(w).Flush()
			<-pace.C
		}
	})
	s := &http.Server{Addr: address, TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}} // HTTP/1.1
	fmt.Fprintln(os.Stderr, s.ListenAndServeTLS(filepath.Join(dir, "cert"), filepath.Join(dir, "key")))
}

// apiServer is a child process.
type apiServer struct {
	*process
	t       *testing.T
	dir     string
	address string
}

func startAPIServer(t *testing.T, dir string) *apiServer {
	t.Helper()
	s := &apiServer{t: t, dir: dir, address: address(t)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), apiServerDir+"="+dir, apiServerAddress+"="+s.address)
	s.process = start(t, cmd)
	return s
}

func (s *apiServer) signal(sig os.Signal) {
	s.t.Helper()
	if err := s.Cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// unready makes the server's readiness fail.
func (s *apiServer) unready() {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, "unready-"+s.address), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// watch is a stream of events from one server.
type watch struct {
	server string
	body   io.ReadCloser
	lines  *bufio.Scanner
}

// startWatch opens a watch over a connection of its own.
func startWatch(t *testing.T, address string, cfg *tls.Config) *watch {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}}
	resp, err := client.Get("https://" + address + "/watch")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	w := &watch{body: resp.Body, lines: bufio.NewScanner(resp.Body)}
	w.server = w.event(t)
	return w
}

// event returns the next event.
func (w *watch) event(t *testing.T) string {
	t.Helper()
	if !w.lines.Scan() {
		t.Fatalf("a watch of %s has ended: %v", w.server, w.lines.Err())
	}
	return w.lines.Text()
}

// awaitEnd reads to the end of the stream, which must not look like the end of a complete answer.
func (w *watch) awaitEnd(t *testing.T) {
	t.Helper()
	for w.lines.Scan() { // sent before the end
	}
	if err := w.lines.Err(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a watch of a server that hangs ended with %v, want a reset", err)
	}
}

// cluster is a gateway in front of two API servers.
type cluster struct {
	*gateway
	listen  string
	client  *tls.Config
	servers map[string]*apiServer
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	authority := certs.New()
	cert, key := certs.PEM(authority.Certificate)
	dir := sharedDir(t)
	for name, data := range map[string][]byte{"cert": cert, "key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, client := authority.Configs()
	a, b := startAPIServer(t, dir), startAPIServer(t, dir)
	c := &cluster{listen: address(t), client: client, servers: map[string]*apiServer{a.address: a, b.address: b}}
	c.gateway = startGateway(t, fmt.Sprintf(`listeners:
  - {name: kube, protocol: tcp, listen: %q, upstream: apiservers}
upstreams:
  apiservers:
    endpoints: [%q, %q]
    balance: round_robin
    health: {https: /readyz, ca: %q, expect: [200, 401], interval: 200ms, timeout: 5s, fall: 2, stagger: 500ms}
`, c.listen, a.address, b.address, filepath.Join(dir, "cert")))
	c.awaitHealthy(a, 1)
	c.awaitHealthy(b, 1)
	return c
}

func (c *cluster) awaitHealthy(s *apiServer, want float64) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("the health of %s is %v", s.address, want), func() error {
		if got := c.scrape().sum("headpond_upstream_endpoint_healthy", `endpoint="`+s.address+`"`); got != want {
			return fmt.Errorf("it is %v", got)
		}
		return nil
	})
}

// watches opens n watches and returns them by server.
func (c *cluster) watches(t *testing.T, n int) map[string][]*watch {
	t.Helper()
	all := map[string][]*watch{}
	for range n {
		w := startWatch(t, c.listen, c.client)
		all[w.server] = append(all[w.server], w)
	}
	return all
}

// TestHungAPIServer stops one of two servers. New connections and its streams move to the other server, whose own
// streams continue. After it continues it is used again. A server that is only not ready keeps its streams. When no
// server is ready, all are used.
func TestHungAPIServer(t *testing.T) {
	c := startCluster(t)
	before := c.watches(t, 12)
	if len(before) != 2 {
		t.Fatalf("watches of %d servers", len(before))
	}
	var hung, sound *apiServer
	for _, s := range c.servers {
		hung, sound = sound, s
	}
	hung.signal(syscall.SIGSTOP)
	for _, w := range before[hung.address] {
		w.awaitEnd(t)
	}
	if n := c.watches(t, 6)[sound.address]; len(n) != 6 {
		t.Errorf("%d of 6 new watches are of the server that works", len(n))
	}
	for _, w := range before[sound.address] {
		w.event(t)
	}
	eventually(t, "the sessions that were closed are counted", func() error {
		if n := c.scrape().errors("kube", "endpoint_out"); n != float64(len(before[hung.address])) {
			return fmt.Errorf("%v of %d", n, len(before[hung.address]))
		}
		return nil
	})
	c.awaitLog("endpoint unhealthy", hung.address, "no answer within")
	hung.signal(syscall.SIGCONT)
	c.awaitHealthy(hung, 1)
	again := c.watches(t, 6)
	if len(again) != 2 {
		t.Errorf("the server that is back has no watches")
	}

	hung.unready()
	c.awaitHealthy(hung, 0)
	if n := c.watches(t, 6)[sound.address]; len(n) != 6 {
		t.Errorf("%d of 6 new watches are of the server that is ready", len(n))
	}
	sound.unready()
	c.awaitHealthy(sound, 0)
	if all := c.watches(t, 6); len(all) != 2 {
		t.Errorf("with no server ready, %d are used", len(all))
	}
	for _, watches := range again {
		for _, w := range watches {
			w.event(t)
		}
	}
	if n := c.scrape().errors("kube", "endpoint_out"); n != float64(len(before[hung.address])) {
		t.Errorf("closed %v sessions of servers that answer", n-float64(len(before[hung.address])))
	}
}
