package httpproxy_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// serveBoth is a server of HTTP/2 and, unless only, HTTP/1.1 over TLS. Its HTTP/2 has no extended CONNECT.
func serveBoth(t *testing.T, only bool) (addr string, trust *tls.Config) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.URL.Path != "/ws" {
			_, _ = io.WriteString(w, r.Proto)
			return
		}
		c, br, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: chat\r\n"+
			"Sec-WebSocket-Accept: "+acceptOf(r.Header.Get("Sec-WebSocket-Key"))+"\r\n\r\ngreeting ")
		echo(c, br.Reader)
	}))
	s.EnableHTTP2 = true
	s.TLS, trust = certificates(t)
	s.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if only && !slices.Contains(hello.SupportedProtos, "h2") {
			return nil, errors.New("only HTTP/2")
		}
		return nil, nil //nolint:nilnil // as it is documented
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), trust
}

// TestUpgradeOverHTTP1: a server of HTTP/2 that takes no upgrades gets them in HTTP/1.1, if it may choose the version. Its other requests stay
// in HTTP/2.
func TestUpgradeOverHTTP1(t *testing.T) {
	addr, trust := serveBoth(t, false)
	p := startProxy(t, routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolAuto, TLS: trust}, addr)))
	for range 2 {
		if _, body := get(t, p.url); body != "HTTP/2.0" {
			t.Errorf("an ordinary request comes in %s", body)
		}
		c, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, s := range []socket{upgradeH1(t, c), dialH2(t, p.addr).connect(1)} {
			wantText(t, s, "greeting ")
			_, _ = io.WriteString(s, "message")
			wantText(t, s, "message")
			if err := s.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(s); err != nil || len(b) > 0 {
				t.Errorf("%q, %v", b, err)
			}
		}
		refused := append([]string(nil), connectRequest...)
		refused[7] = "/other" // its connection is no place for other requests
		h := dialH2(t, p.addr)
		if h.ask(1, false, refused...); h.outcome(1) != "200 HTTP/1.1" {
			t.Error("a refused upgrade does not come in HTTP/1.1")
		}
	}
	if e := p.Stats().Errors; len(e) > 0 {
		t.Errorf("errors: %v", e)
	}
}

// TestNoUpgradeOverHTTP2: a server of HTTP/2 alone that takes no upgrades gets none. It is not to blame for that. What may be answered without
// an upgrade is.
func TestNoUpgradeOverHTTP2(t *testing.T) {
	addr, trust := serveBoth(t, true)
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH2, httpproxy.ProtocolAuto} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol, TLS: trust}, addr)
		p := startProxy(t, routeTo(u))
		h := dialH2(t, p.addr)
		for id := uint32(1); id < 20; id += 2 {
			if h.ask(id, false, connectRequest...); id > 1 {
				_ = h.outcome(id)
				continue
			}
			if got := h.outcome(id); !strings.HasPrefix(got, "502") || !strings.Contains(got, "takes no WebSockets and other upgrades over HTTP/2") {
				t.Errorf("%s: %q", protocol, got)
			}
		}
		c, br := dialRaw(t, p.addr)
		if resp, body := roundTrip(t, c, br, upgradeRequest); resp.StatusCode != http.StatusBadGateway || !strings.Contains(body, "takes no WebSockets") {
			t.Errorf("%s: %s %s", protocol, resp.Status, body)
		}
		c, br = dialRaw(t, p.addr)
		if _, body := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"); body != "HTTP/2.0" {
			t.Errorf("%s: an offer: %s", protocol, body)
		}
		for _, e := range u.Status().Endpoints {
			if e.Failures > 0 || e.Ejected {
				t.Errorf("%s: the server is to blame: %+v", protocol, e)
			}
		}
	}
}

// TestConnectRefusedByTheServer: another answer passes on as an ordinary one.
func TestConnectRefusedByTheServer(t *testing.T) {
	addr := serveFrames(t, func(s *frames) {
		for {
			head, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			s.fields(head.StreamID, false, ":status", "403", "content-type", "text/plain")
			_ = s.WriteData(head.StreamID, true, []byte("no"))
		}
	}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1})
	p := h2cTo(t, addr)
	h := dialH2(t, p.addr)
	for id := uint32(1); id < 9; id += 2 {
		h.ask(id, false, connectRequest...)
		if got := h.outcome(id); got != "403 no" {
			t.Errorf("%q", got)
		}
	}
	if got := sendRaw(t, p.addr, upgradeRequest); len(got) != 1 || got[0] != 403 {
		t.Errorf("statuses are %v", got)
	}
}
