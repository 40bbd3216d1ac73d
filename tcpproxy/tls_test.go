package tcpproxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

func TestTLSFromClients(t *testing.T) {
	server, client := certs.New().Configs()
	backend := conntest.Serve(t, conntest.Echo)
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	c := tls.Client(conntest.Dial(t, addr), client)
	conntest.Exchange(t, c, "secret")
	c.CloseWrite()
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("after the half-close: %q, %v", b, err)
	}
	plain := conntest.Dial(t, addr)
	io.WriteString(plain, "this is no ClientHello, as anybody can see")
	io.Copy(io.Discard, plain)
	p.Close()
	if n := p.Stats().Errors[listener.ReasonTLS]; n != 1 {
		t.Errorf("errors: %v, want one tls", p.Stats().Errors)
	}
}

// TestKillDuringHandshake: a client that never ends its handshake can be ended, and is counted as killed.
func TestKillDuringHandshake(t *testing.T) {
	server, _ := certs.New().Configs()
	p, addr := start(t, []string{conntest.Serve(t, conntest.Echo)}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	c := conntest.Dial(t, addr)
	var id listener.ID
	conntest.Eventually(t, "the session is listed", func() bool {
		all := p.Sessions()
		if len(all) == 1 && all[0].Upstream != "" { // the session is attached
			id, _, _ = listener.ParseID(all[0].ID)
			if all[0].State != listener.StateStarting {
				t.Errorf("%+v", all[0])
			}
		}
		return id != 0
	})
	if p.Kill(id, 1) || !p.Kill(id, 0) || p.Kill(id, 0) {
		t.Error("want one session without streams, to be ended once")
	}
	conntest.WantGone(t, c)
	conntest.Eventually(t, "the session is over", func() bool { return len(p.Sessions()) == 0 })
	if e := p.Stats().Errors; e[listener.ReasonKilled] != 1 || e[listener.ReasonTLS] != 0 {
		t.Errorf("errors: %v, want one killed", e)
	}
}

func TestTLSToUpstream(t *testing.T) {
	server, client := certs.New().Configs()
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		tc := tls.Server(c, server)
		io.Copy(tc, tc)
		tc.CloseWrite()
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = client })
	conntest.Exchange(t, conntest.Dial(t, addr), "in clear here, not there")
	p.Close()

	stranger := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "localhost"}
	p, addr = start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = stranger })
	conntest.WantRefused(t, addr)
	if n := p.Stats().Errors[listener.ReasonUpstreamUnavailable]; n != 1 {
		t.Errorf("errors: %v, want one upstream_unavailable", p.Stats().Errors)
	}
}

// TestUpstreamSessionsAreResumed: only the first connection to an endpoint has a full handshake.
func TestUpstreamSessionsAreResumed(t *testing.T) {
	server, client := certs.New().Configs()
	resumed := make(chan bool, 3)
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		tc := tls.Server(c, server)
		if tc.Handshake() == nil {
			resumed <- tc.ConnectionState().DidResume
		}
		io.Copy(tc, tc)
		tc.CloseWrite()
	})
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.UpstreamTLS = client })
	for i := range 3 {
		conntest.Exchange(t, conntest.Dial(t, addr), "hello")
		if got := <-resumed; got != (i > 0) {
			t.Errorf("connection %d: resumed is %v", i, got)
		}
	}
}

// TestIdleTLSSessionHoldsNoBuffer: an idle session takes the memory of TLS, not buffers for a stream.
func TestIdleTLSSessionHoldsNoBuffer(t *testing.T) {
	const sessions = 64
	server, client := certs.New().Configs()
	backend := conntest.Serve(t, conntest.Echo)
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // pools free their memory at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	open := func() {
		c := tls.Client(conntest.Dial(t, addr), client)
		conntest.Exchange(t, c, "hello")
	}
	open() // the first one's memory is shared by others
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

// TestTLSInPiecesOfAllSizes: data through the small buffer and the large one stays in order.
func TestTLSInPiecesOfAllSizes(t *testing.T) {
	server, client := certs.New().Configs()
	backend := conntest.Serve(t, conntest.Echo)
	_, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) { c.TLS = server })
	c := tls.Client(conntest.Dial(t, addr), client)
	for _, n := range []int{1, 1023, 1024, 1025, 16 << 10, 2, 100_000, 1024, 3} {
		piece := make([]byte, n)
		for i := range piece {
			piece[i] = byte('a' + (i+n)%26)
		}
		conntest.Exchange(t, c, string(piece))
	}
}
