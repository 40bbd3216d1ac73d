package httpproxy_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/certs"
)

// tellsCert answers with the client's certificate as it got it.
func tellsCert(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "%q%q", r.Header["X-Forwarded-Client-Cert"], append(r.Header["X_forwarded_client_cert"], r.Header["X-Forwarded-Client_cert"]...))
}

// clientWith returns a client of a protocol over TLS with a certificate, whose connections are not shared.
func clientWith(t *testing.T, proto string, settings *tls.Config, pairs ...tls.Certificate) *http.Client {
	t.Helper()
	c := settings.Clone()
	c.Certificates = pairs
	tr := &http.Transport{TLSClientConfig: c, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(proto == "HTTP/1.1")
	tr.Protocols.SetHTTP2(proto == "HTTP/2.0")
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// asks sends a request with a header of the client's own, and returns the answer; "" = there was none.
func asks(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"X-Forwarded-Client-Cert": {"Hash=forged"}, "X_forwarded_client_cert": {"Hash=forged"}, "X-Forwarded-Client_cert": {"Hash=forged"}}
	resp, err := client.Do(req)
	if err != nil {
		return ""
	}
	resp.Body.Close()
	_, body := doWith(t, client, req)
	return body
}

// TestClientCertificates: who may connect, and what the server gets, on both protocols, with resumed sessions, and after a
// change of the authority.
func TestClientCertificates(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, tellsCert))
	ca, other := certs.New(), certs.New()
	ann, eve := ca.Issue("ann, with \"quotes\"\r\nX-Admin: yes", "ann.example", "b=c;d"), other.Issue("eve")
	hash := func(c tls.Certificate) string {
		sum := sha256.Sum256(c.Certificate[0])
		return "Hash=" + hex.EncodeToString(sum[:])
	}
	want := fmt.Sprintf("%q%q", []string{hash(ann) + `;Subject="CN=ann%5C, with %5C%22quotes%5C%22%0D%0AX-Admin: yes";DNS=ann.example;DNS=b%3Dc%3Bd`}, []string(nil))
	const none = "[][]"
	for name, tc := range map[string]struct {
		auth                tls.ClientAuthType
		with, without, evil string
	}{
		"require": {tls.RequireAndVerifyClientCert, want, "", ""},
		"request": {tls.VerifyClientCertIfGiven, want, none, ""},
		"neither": {tls.NoClientCert, none, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			server, client := ca.Configs()
			if server.ClientAuth = tc.auth; tc.auth != tls.NoClientCert {
				server.ClientCAs = ca.Pool
			}
			cfg := httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Upstream: up}}}
			p := startProxy(t, cfg)
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
				for range 2 { // the second time the session is resumed
					if got := asks(t, clientWith(t, proto, client, ann), p.url); got != tc.with {
						t.Errorf("%s: with a certificate: %s, want %s", proto, got, tc.with)
					}
				}
				client.ClientSessionCache = nil
				if got := asks(t, clientWith(t, proto, client), p.url); got != tc.without {
					t.Errorf("%s: without a certificate: %s, want %s", proto, got, tc.without)
				}
				sendsAnyway := client.Clone()
				sendsAnyway.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &eve, nil }
				if got := asks(t, clientWith(t, proto, sendsAnyway), p.url); got != tc.evil {
					t.Errorf("%s: with another authority's certificate: %s, want %s", proto, got, tc.evil)
				}
			}
		})
	}
}

// TestClientCertificatesAfterUpdate: a session that a client could resume does not outlive its authority.
func TestClientCertificatesAfterUpdate(t *testing.T) {
	up := newUpstream(t, serveHTTP(t, tellsCert))
	ca, other := certs.New(), certs.New()
	ann, eve := ca.Issue("ann"), other.Issue("eve")
	server, client := ca.Configs()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool
	client.ClientSessionCache = tls.NewLRUClientSessionCache(4)
	cfg := httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Upstream: up}}}
	p := startProxy(t, cfg)
	for range 2 {
		if got := asks(t, clientWith(t, "HTTP/1.1", client, ann), p.url); !strings.Contains(got, `CN=ann`) {
			t.Fatal(got)
		}
	}
	changed := server.Clone()
	changed.ClientCAs = other.Pool
	cfg.TLS, cfg.Listener.Logger = changed, slog.New(slog.DiscardHandler)
	if err := p.Update(cfg); err != nil {
		t.Fatal(err)
	}
	if got := asks(t, clientWith(t, "HTTP/1.1", client, ann), p.url); got != "" {
		t.Errorf("with the old authority: %s", got)
	}
	client.ClientSessionCache = nil
	if got := asks(t, clientWith(t, "HTTP/1.1", client, eve), p.url); !strings.Contains(got, `CN=eve`) {
		t.Errorf("with the new one: %s", got)
	}
}

// TestClientCertificateOfAProxysClient: a trusted proxy's header about its client's certificate passes.
func TestClientCertificateOfAProxysClient(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	routes := []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, tellsCert))}}
	p := startProxy(t, httpproxy.Config{TrustedProxies: trusted, Routes: routes})
	ca := certs.New()
	server, client := ca.Configs()
	server.ClientAuth, server.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool
	secure := startProxy(t, httpproxy.Config{TLS: server, TrustedProxies: trusted, Routes: routes})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		const want = `["Hash=forged"][]`
		if got := asks(t, clientFor(t, proto), p.url); got != want {
			t.Errorf("%s: %s", proto, got)
		}
		if got := asks(t, clientWith(t, proto, client, ca.Issue("the proxy's own")), secure.url); got != want {
			t.Errorf("%s, with a certificate of the proxy: %s", proto, got)
		}
		req, err := http.NewRequest(http.MethodGet, secure.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, got := doWith(t, clientWith(t, proto, client, ca.Issue("the proxy's own")), req); got != "[][]" {
			t.Errorf("%s, of a client without one: %s", proto, got)
		}
	}
}

// TestCertificateOfManyNames: names that do not all fit the header are left out together.
func TestCertificateOfManyNames(t *testing.T) {
	ca := certs.New()
	var names []string
	for i := range 40 {
		names = append(names, fmt.Sprintf("n%d.example", i))
	}
	for n, most := range map[int]bool{32: true, 33: false} {
		got := httpproxy.DescribeCert(ca.Issue("ann", names[:n]...).Leaf)
		if strings.Contains(got, "Subject=") != most || strings.Count(got, "DNS=") != n*map[bool]int{true: 1}[most] {
			t.Errorf("%d names: %s", n, got)
		}
	}
	if got := httpproxy.DescribeCert(ca.Issue("ann", strings.Repeat("long.", 1000)+"example").Leaf); strings.Contains(got, ";") {
		t.Errorf("a long name: %s", got)
	}
}
