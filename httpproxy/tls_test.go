package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/tlstest"
)

// certificates returns a server's configuration and that of its clients.
func certificates(testing.TB) (server, client *tls.Config) { return certs.New().Configs() }

// TestKeyUpdateDuringADuplexExchange: a client that reads nothing of its answer, sends a body and asks for new keys
// meanwhile waits alone; all others are served.
func TestKeyUpdateDuringADuplexExchange(t *testing.T) {
	stuck := make(chan struct{})
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		for piece := make([]byte, 1<<20); ; {
			_ = rc.SetWriteDeadline(time.Now().Add(400 * time.Millisecond))
			if _, err := w.Write(piece); err != nil {
				close(stuck)
				_, _ = io.Copy(io.Discard, r.Body)
				return
			}
		}
	})
	server, client := certificates(t)
	client.MinVersion, client.NextProtos = tls.VersionTLS13, []string{"http/1.1"}
	var keyLog bytes.Buffer
	client.KeyLogWriter = &keyLog
	up := newUpstream(t, backend)
	p := startProxy(t, httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Upstream: up}}})
	plain := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up}}})

	raw, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(patience))
	c := tls.Client(raw, client)
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc"); err != nil {
		t.Fatal(err)
	}
	seal := tlstest.NewSealer(t, keyLog.String(), "CLIENT")
	seal.Next = 1
	<-stuck
	if _, err := raw.Write(append(seal.Record(tlstest.Handshake, tlstest.KeyUpdate), "no record"...)); err != nil {
		t.Fatal(err)
	}
	for range 8 { // on every loop
		other, br := dialRaw(t, plain.addr)
		if resp, _ := roundTrip(t, other, br, getRoot); resp.StatusCode != 200 {
			t.Error(resp.Status)
		}
	}
}

// TestUploadOverTLS on either side, in pieces, both framings, and the connection used again.
func TestUploadOverTLS(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	server, client := certificates(t)
	client.NextProtos = []string{"http/1.1"}
	secure := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	secure.TLS = server.Clone()
	secure.StartTLS()
	t.Cleanup(secure.Close)
	toSecure := newUpstreamWith(t, httpproxy.UpstreamOptions{TLS: client.Clone()}, secure.Listener.Addr().String())
	for name, cfg := range map[string]httpproxy.Config{
		"client": {TLS: server, Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, echo))}}},
		"server": {Routes: []httpproxy.Route{{Upstream: toSecure}}},
		"both":   {TLS: server, Routes: []httpproxy.Route{{Upstream: toSecure}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, cfg)
			c, br := dialRaw(t, p.addr)
			if cfg.TLS != nil {
				c = tls.Client(c, client)
				br = bufio.NewReader(c)
			}
			for _, parts := range [][2]string{
				{"Content-Length: 6\r\n\r\nabcdef", ""},
				{"Content-Length: 6\r\n\r\nabc", "def"},
				{"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "3\r\ndef\r\n0\r\n\r\n"},
			} {
				if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\n"+parts[0]); err != nil {
					t.Fatal(err)
				}
				if resp, body := roundTrip(t, c, br, parts[1]); body != "abcdef" {
					t.Errorf("%q: %s %q", parts, resp.Status, body)
				}
			}
			eventually(t, "no lease is out", func() bool { return cfg.Routes[0].Upstream.Status().Endpoints[0].Leases == 0 })
		})
	}
}

// TestTLSClientGoneCancelsTheServer: also a client that sends close_notify, which leaves bytes before the end of its
// socket.
func TestTLSClientGoneCancelsTheServer(t *testing.T) {
	asked, closed := make(chan struct{}, 2), make(chan struct{}, 2)
	backend := serveRaw(t, func(c net.Conn) {
		br := bufio.NewReader(c)
		if readRequest(br) == nil {
			asked <- struct{}{}
			if _, err := br.ReadByte(); err == io.EOF {
				closed <- struct{}{}
			}
		}
	})
	server, client := certificates(t)
	p := startProxy(t, httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}}})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client.MinVersion, client.MaxVersion = version, version
		raw, _ := dialRaw(t, p.addr)
		c := tls.Client(raw, client)
		if _, err := io.WriteString(c, getRoot); err != nil {
			t.Fatal(err)
		}
		<-asked
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatalf("TLS %x: the server's connection is still open", version)
		}
	}
}
