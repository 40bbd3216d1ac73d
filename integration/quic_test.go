package integration

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/internal/certs"
)

// quicServer is a web server that speaks HTTP/3: / returns its name, /sum the SHA-256 of the body, /events one line at
// once and one for each value sent to next.
type quicServer struct {
	name, addr string
	next       chan int
	stop       func()
}

func startQUIC(t *testing.T, name string, certificate tls.Certificate) *quicServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &quicServer{name: name, addr: conn.LocalAddr().String(), next: make(chan int)}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) })
	mux.HandleFunc("/sum", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		if _, err := io.Copy(sum, r.Body); err != nil {
			t.Logf("%s read the body: %v", name, err)
		}
		_, _ = fmt.Fprintf(w, "%x", sum.Sum(nil))
	})
	mux.HandleFunc("/events", func(w http.ResponseWriter, r *http.Request) {
		for i := 0; ; {
			if _, err := fmt.Fprintf(w, "%d\n", i); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case i = <-s.next:
			case <-r.Context().Done():
				return
			}
		}
	})
	server := &http3.Server{Handler: mux, TLSConfig: http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(conn)
	}()
	s.stop = func() {
		_ = server.Close()
		_ = conn.Close()
		<-served
	}
	t.Cleanup(s.stop)
	return s
}

// quicClient is an HTTP/3 client with one QUIC connection, which it can move to another socket.
type quicClient struct {
	t    *testing.T
	conn *quic.Conn
	http *http3.ClientConn
}

func dialQUIC(t *testing.T, addr string, tlsConfig *tls.Config) (*quicClient, error) {
	t.Helper()
	udp, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := socket(t).Dial(ctx, udp, http3.ConfigureTLSConfig(tlsConfig), nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
	return &quicClient{t: t, conn: conn, http: (&http3.Transport{}).NewClientConn(conn)}, nil
}

func socket(t *testing.T) *quic.Transport {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	transport := &quic.Transport{Conn: conn}
	t.Cleanup(func() {
		_ = transport.Close()
		_ = conn.Close()
	})
	return transport
}

// do returns the body of the answer, which it reads to its end.
func (c *quicClient) do(method, path string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "https://quic.test"+path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.http.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

func (c *quicClient) must(method, path string, body []byte) string {
	c.t.Helper()
	answer, err := c.do(method, path, body)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer
}

// upload sends n bytes and compares the checksum that the server returns.
func (c *quicClient) upload(n int) {
	c.t.Helper()
	body := make([]byte, n)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(body)
	if got, want := c.must("POST", "/sum", body), fmt.Sprintf("%x", sha256.Sum256(body)); got != want {
		c.t.Errorf("the server received a body with the sum %s, sent %s", got, want)
	}
}

// move makes the client continue from another port, as behind a NAT that has forgotten it or on another network.
func (c *quicClient) move() {
	c.t.Helper()
	path, err := c.conn.AddPath(socket(c.t))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		c.t.Fatalf("probing the new path: %v", err)
	}
	if err := path.Switch(); err != nil {
		c.t.Fatal(err)
	}
}

func quicConfig(listen string, endpoints ...*quicServer) string {
	var addrs []string
	for _, e := range endpoints {
		addrs = append(addrs, e.addr)
	}
	return fmt.Sprintf(`
listeners:
  - {name: quic, protocol: udp, listen: %q, upstream: web}
upstreams:
  web: {endpoints: [%s], balance: ring_hash}
`, listen, strings.Join(addrs, ", "))
}

// TestQUIC: HTTP/3 passes through: requests, large bodies both ways, and a stream that lives through a reload. A client
// whose address changes keeps its connection to the only endpoint.
func TestQUIC(t *testing.T) {
	ca := certs.New()
	_, clientTLS := ca.Configs()
	clientTLS.ServerName = "quic.test"
	a := startQUIC(t, "a", ca.Issue("a", "quic.test"))
	listen := address(t)
	g := startGateway(t, quicConfig(listen, a))
	c, err := dialQUIC(t, listen, clientTLS)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if got := c.must("GET", "/", nil); got != "a" {
			t.Fatalf("answered by %q", got)
		}
	}
	c.upload(4 << 20)

	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://quic.test/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.http.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	expect := func(i int) {
		t.Helper()
		if !lines.Scan() || lines.Text() != fmt.Sprint(i) {
			t.Fatalf("event %q, want %d: %v", lines.Text(), i, lines.Err())
		}
	}
	expect(0)
	g.reload(quicConfig(listen, a)+"# reloaded\n", "applied")
	a.next <- 1
	expect(1)
	c.move()
	a.next <- 2
	expect(2)
	c.upload(1 << 20)
	g.reload(quicConfig(listen, a), "applied")
	a.next <- 3
	expect(3)
}

// TestQUICServerStops: clients that connect again reach another server, and a client's sessions all have the same one.
func TestQUICServerStops(t *testing.T) {
	ca := certs.New()
	_, clientTLS := ca.Configs()
	clientTLS.ServerName = "quic.test"
	servers := map[string]*quicServer{}
	for _, name := range []string{"a", "b"} {
		servers[name] = startQUIC(t, name, ca.Issue(name, "quic.test"))
	}
	listen := address(t)
	startGateway(t, quicConfig(listen, servers["a"], servers["b"]))
	var first string
	for i := range 10 {
		c, err := dialQUIC(t, listen, clientTLS)
		if err != nil {
			t.Fatal(err)
		}
		if name := c.must("GET", "/", nil); i > 0 && name != first {
			t.Fatalf("a session at %s, then one at %s", first, name)
		} else {
			first = name
		}
	}
	servers[first].stop()
	for range 10 {
		c, err := dialQUIC(t, listen, clientTLS)
		if err != nil {
			t.Fatalf("after %s had stopped: %v", first, err)
		}
		if name := c.must("GET", "/", nil); name == first {
			t.Fatalf("answered by %s, which has stopped", name)
		}
	}
}
