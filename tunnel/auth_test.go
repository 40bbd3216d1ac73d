package tunnel_test

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tunnel"
)

// mutual sets a tunnel up with certificates instead of a PSK.
func mutual(t testing.TB, server, client *certs.Authority, name, certificate string, peers ...string) options {
	return options{
		server: func(c *tunnel.ServerConfig) {
			c.PSK = nil
			for _, name := range peers {
				c.Peers = append(c.Peers, tunnel.Peer{Name: name})
			}
			c.TLS = &tls.Config{
				Certificates: []tls.Certificate{server.Issue("far", "far.test")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: server.Pool,
			}
		},
		client: func(c *tunnel.ClientConfig) {
			c.PSK, c.Name = nil, name
			c.TLS = &tls.Config{Certificates: []tls.Certificate{client.Issue(certificate, certificate+".test")}, RootCAs: server.Pool, ServerName: "far.test"}
		},
	}
}

func TestCertificates(t *testing.T) {
	ca, other := certs.New(), certs.New()
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
		"a peer that is not listed": {mutual(t, ca, ca, "", "branch", "depot"), "", "not among the peers"},
		"another CA":                {mutual(t, ca, other, "branch", "branch"), "", "certificate"},
	} {
		t.Run(what, func(t *testing.T) {
			target := conntest.Serve(t, conntest.Echo)
			inner := c.o.server
			c.o.server = func(sc *tunnel.ServerConfig) { inner(sc); allow(target)(sc) }
			e := start(t, c.o)
			conn, err := e.client.Dial(soon(t), target)
			if c.peer == "" {
				if !errors.Is(err, tunnel.ErrNotConnected) {
					t.Errorf("%v", err)
				}
				conntest.Eventually(t, "the server's log", func() bool { return e.serverLog.Line("no session with a peer", c.log) != "" })
				conntest.Eventually(t, "the client's log", func() bool { return e.clientLog.Line("cannot connect", "tunnel=far") != "" })
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conntest.Exchange(t, conn, "hello")
			if got := e.server.Tunnel().Connected; len(got) != 1 || got[0] != c.peer {
				t.Errorf("peers %q, want %q", got, c.peer)
			}
			e.sockets.cut() // and with TLS the session continues, too
			conntest.Exchange(t, conn, "hello again")
		})
	}
}

func TestWrongPSK(t *testing.T) {
	e := start(t, options{client: func(c *tunnel.ClientConfig) { c.PSK = []byte("another key altogether") }})
	_, err := e.client.Open(soon(t), "upstream:x")
	if !errors.Is(err, tunnel.ErrNotConnected) || !strings.Contains(err.Error(), "denied") {
		t.Errorf("%v", err)
	}
	conntest.Eventually(t, "the server's log", func() bool { return e.serverLog.Line("no session with a peer", "reason=auth_failed", "PSK") != "" })
	if e.serverLog.Line("another key") != "" || e.clientLog.Line("another key") != "" {
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
