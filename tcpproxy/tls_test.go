package tcpproxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// certificates returns TLS settings of a server and of a client that trusts it.
func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates}, &tls.Config{RootCAs: roots, ServerName: "example.com"}
}

func TestTLSFromClients(t *testing.T) {
	server, client := certificates(t)
	backend := serve(t, "127.0.0.1:0", echo)
	p, addr := start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	c := tls.Client(dial(t, addr), client)
	ask(t, c, "secret")
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the half-close: %q, %v", b, err)
	}
	plain := dial(t, addr)
	io.WriteString(plain, "this is no ClientHello, as anybody can see")
	io.Copy(io.Discard, plain)
	p.Close()
	if n := p.Stats().Errors[listener.ReasonTLS]; n != 1 {
		t.Errorf("errors: %v, want one tls", p.Stats().Errors)
	}
}

func TestTLSToUpstream(t *testing.T) {
	server, client := certificates(t)
	backend := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		tc := tls.Server(c, server)
		io.Copy(tc, tc)
		tc.CloseWrite()
	})
	p, addr := start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = client })
	ask(t, dial(t, addr), "in clear here, not there")
	p.Close()

	stranger := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "example.com"}
	p, addr = start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = stranger })
	wantGone(t, dial(t, addr))
	if n := p.Stats().Errors[listener.ReasonUpstreamUnavailable]; n != 1 {
		t.Errorf("errors: %v, want one upstream_unavailable", p.Stats().Errors)
	}
}

// TestUpstreamSessionsAreResumed: only the first connection to an endpoint has a full handshake.
func TestUpstreamSessionsAreResumed(t *testing.T) {
	server, client := certificates(t)
	resumed := make(chan bool, 3)
	backend := serve(t, "127.0.0.1:0", func(c *net.TCPConn) {
		tc := tls.Server(c, server)
		if tc.Handshake() == nil {
			resumed <- tc.ConnectionState().DidResume
		}
		io.Copy(tc, tc)
		tc.CloseWrite()
	})
	_, addr := start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = client })
	for i := range 3 {
		ask(t, dial(t, addr), "hello")
		if got := <-resumed; got != (i > 0) {
			t.Errorf("connection %d: resumed is %v", i, got)
		}
	}
}

// TestIdleTLSSessionHoldsNoBuffer: what an idle session takes is that of TLS, not room for a stream.
func TestIdleTLSSessionHoldsNoBuffer(t *testing.T) {
	const sessions = 64
	server, client := certificates(t)
	backend := serve(t, "127.0.0.1:0", echo)
	_, addr := start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // pools give up what they hold at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	open := func() {
		c := tls.Client(dial(t, addr), client)
		ask(t, c, "hello")
	}
	open() // what the first one takes, others share
	before := heap()
	for range sessions {
		open()
	}
	each := (int64(heap()) - int64(before)) / sessions
	t.Logf("%d bytes each", each)
	if each > 32<<10 {
		t.Errorf("an idle session takes %d bytes of heap, with the client's end; a buffer of a stream has %d", each, 32<<10)
	}
}

// TestTLSInPiecesOfAllSizes: what goes through the small buffer and what through the large one stays in order.
func TestTLSInPiecesOfAllSizes(t *testing.T) {
	server, client := certificates(t)
	backend := serve(t, "127.0.0.1:0", echo)
	_, addr := start(t, []string{backend.addr}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	c := tls.Client(dial(t, addr), client)
	for _, n := range []int{1, 1023, 1024, 1025, 16 << 10, 2, 100_000, 1024, 3} {
		piece := make([]byte, n)
		for i := range piece {
			piece[i] = byte('a' + (i+n)%26)
		}
		ask(t, c, string(piece))
	}
}
