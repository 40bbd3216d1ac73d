package tunnel_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/tunnel"
)

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".test"}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// mutual sets a tunnel up with certificates instead of a PSK.
func mutual(t testing.TB, server, client *authority, name, certificate string, peers ...string) options {
	return options{
		server: func(c *tunnel.ServerConfig) {
			c.PSK, c.Peers = nil, peers
			c.TLS = &tls.Config{
				Certificates: []tls.Certificate{server.issue(t, "far")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: server.pool,
			}
		},
		client: func(c *tunnel.ClientConfig) {
			c.PSK, c.Name = nil, name
			c.TLS = &tls.Config{Certificates: []tls.Certificate{client.issue(t, certificate)}, RootCAs: server.pool, ServerName: "far.test"}
		},
	}
}

func TestCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	for what, c := range map[string]struct {
		o    options
		peer string // "": denied
		log  string
	}{
		"name in the certificate":   {mutual(t, ca, ca, "branch", "branch"), "branch", ""},
		"DNS name":                  {mutual(t, ca, ca, "branch.test", "branch"), "branch.test", ""},
		"no name":                   {mutual(t, ca, ca, "", "branch"), "branch", ""},
		"a listed peer":             {mutual(t, ca, ca, "", "branch", "depot", "branch"), "branch", ""},
		"another name":              {mutual(t, ca, ca, "main", "branch"), "", "certificate says"},
		"a peer that is not listed": {mutual(t, ca, ca, "", "branch", "depot"), "", "not one of those"},
		"another CA":                {mutual(t, ca, other, "branch", "branch"), "", "certificate"},
	} {
		t.Run(what, func(t *testing.T) {
			target := echoServer(t)
			inner := c.o.server
			c.o.server = func(sc *tunnel.ServerConfig) { inner(sc); allow(target)(sc) }
			e := start(t, c.o)
			conn, err := e.client.Dial(soon(t), target)
			if c.peer == "" {
				if !errors.Is(err, tunnel.ErrNotConnected) {
					t.Errorf("%v", err)
				}
				eventually(t, "the server's log", func() bool { return e.serverLog.line("no session with a peer", c.log) != "" })
				eventually(t, "the client's log", func() bool { return e.clientLog.line("cannot connect", "tunnel=far") != "" })
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			exchange(t, conn, "hello")
			if got := e.server.Tunnel().Connected; len(got) != 1 || got[0] != c.peer {
				t.Errorf("peers %q, want %q", got, c.peer)
			}
			e.sockets.cut() // and with TLS the session goes on, too
			exchange(t, conn, "hello again")
		})
	}
}

func TestWrongPSK(t *testing.T) {
	e := start(t, options{client: func(c *tunnel.ClientConfig) { c.PSK = []byte("another key altogether") }})
	_, err := e.client.Open(soon(t), "upstream:x")
	if !errors.Is(err, tunnel.ErrNotConnected) || !strings.Contains(err.Error(), "denied") {
		t.Errorf("%v", err)
	}
	eventually(t, "the server's log", func() bool { return e.serverLog.line("no session with a peer", "reason=auth_failed", "PSK") != "" })
	if e.serverLog.line("another key") != "" || e.clientLog.line("another key") != "" {
		t.Error("a key is in the log")
	}
}

func TestUnauthenticatedIsRefused(t *testing.T) {
	for _, c := range []tunnel.ServerConfig{
		{},
		{TLS: &tls.Config{}},
		{TLS: &tls.Config{ClientAuth: tls.RequestClientCert}},
		{Config: tunnel.Config{PSK: []byte("short")}},
	} {
		if s, err := tunnel.NewServer(c); !errors.Is(err, tunnel.ErrConfig) {
			t.Errorf("%+v: %v, %v", c, s, err)
		}
	}
	for _, c := range []tunnel.ClientConfig{
		{},
		{Address: "nowhere"},
		{Address: "a:1", Sessions: 65},
		{Address: "a:1", Config: tunnel.Config{MaxStreams: -1}},
		{Address: "a:1", Config: tunnel.Config{Name: strings.Repeat("n", 256)}},
		{Address: "a:1", Config: tunnel.Config{ResumeWindow: time.Nanosecond}},
	} {
		if s, err := tunnel.NewClient(c); !errors.Is(err, tunnel.ErrConfig) {
			t.Errorf("%+v: %v, %v", c, s, err)
		}
	}
}
