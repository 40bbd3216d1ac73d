package pgproxy_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// startBound runs a proxy with TLS that asks for SCRAM; the password is "secret".
func startBound(t *testing.T, settings *tls.Config, binding pgproxy.ChannelBinding) *gateway {
	t.Helper()
	return start(t, pgtest.Shared(t), func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) {
		c.Auth, c.Users, c.TLS, c.ChannelBinding = pgproxy.AuthSCRAM, pgproxy.Users{"app": "secret"}, settings, binding
	})
}

// psql logs in by libpq.
func (g *gateway) psql(t *testing.T, more string) (string, error) {
	t.Helper()
	return g.run(t, pgtest.Shared(t), "psql", "-X", "-A", "-t", "-c", "select 'in'", more)
}

// selfSigned makes a certificate for localhost.
func selfSigned(t *testing.T, key crypto.Signer, algorithm x509.SignatureAlgorithm) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"}, SignatureAlgorithm: algorithm,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key} // without Leaf, as a program may make it
}

// keyOf is for the results of functions that make keys.
func keyOf[K any](key K, err error) K {
	if err != nil {
		panic(err)
	}
	return key
}

// TestChannelBindingOfLibpq has libpq compute the hash of certificates of each kind.
func TestChannelBindingOfLibpq(t *testing.T) {
	rsaKey := keyOf(rsa.GenerateKey(rand.Reader, 2048))
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key       crypto.Signer
		algorithm x509.SignatureAlgorithm
		without   bool
	}{
		{keyOf(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), x509.ECDSAWithSHA256, false},
		{keyOf(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)), x509.ECDSAWithSHA384, false},
		{rsaKey, x509.SHA512WithRSA, false},
		{rsaKey, x509.SHA256WithRSAPSS, false},
		{edKey, x509.PureEd25519, true},
	} {
		g := startBound(t, &tls.Config{Certificates: []tls.Certificate{selfSigned(t, c.key, c.algorithm)}}, pgproxy.BindingPrefer)
		for _, binding := range []string{"disable", "prefer", "require"} {
			out, err := g.psql(t, "sslmode=require channel_binding="+binding)
			if want := !c.without || binding != "require"; (err == nil) != want {
				t.Errorf("%v, channel_binding=%s: %v: %s", c.algorithm, binding, err, out)
			}
		}
	}
}

func TestChannelBindingModes(t *testing.T) {
	server, _ := certs.New().Configs()
	for _, c := range []struct {
		listener     pgproxy.ChannelBinding
		client, want string // what psql says, "in" = it is in
	}{
		{pgproxy.BindingPrefer, "sslmode=disable channel_binding=prefer", "in"},
		{pgproxy.BindingDisable, "sslmode=require channel_binding=prefer", "in"},
		{pgproxy.BindingDisable, "sslmode=require channel_binding=require", "channel binding is required"},
		{pgproxy.BindingRequire, "sslmode=require channel_binding=require", "in"},
		{pgproxy.BindingRequire, "sslmode=require channel_binding=prefer", "in"},
		{pgproxy.BindingRequire, "sslmode=require channel_binding=disable", "none of the server's SASL authentication mechanisms are supported"},
		{pgproxy.BindingRequire, "sslmode=disable channel_binding=prefer", "TLS is required for channel binding"},
	} {
		out, err := startBound(t, server, c.listener).psql(t, c.client)
		if !has(out, c.want) || (err == nil) != (c.want == "in") {
			t.Errorf("a listener with channel_binding: %v, a client with %s: %v: %s", c.listener, c.client, err, out)
		}
	}
}

// intercepted runs a program that ends the TLS of clients with a certificate of its own, and returns its address.
func intercepted(t *testing.T, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, _ := certs.New().Configs()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { intercept(client, target, server) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}

func intercept(client net.Conn, target string, cfg *tls.Config) {
	defer client.Close()
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer to.Close()
	request := make([]byte, len((&pgwire.SSLRequest{}).Append(nil)))
	if _, err := io.ReadFull(client, request); err != nil {
		return
	}
	_, _ = client.Write([]byte{'S'})
	_, _ = to.Write(request)
	if _, err := io.ReadFull(to, request[:1]); err != nil || request[0] != 'S' {
		return
	}
	inside, outside := tls.Server(client, cfg), tls.Client(to, &tls.Config{InsecureSkipVerify: true})
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(inside, outside)
		_ = client.Close()
	})
	_, _ = io.Copy(outside, inside)
	_ = to.Close()
	back.Wait()
}

// TestIntercepted puts a program between the two ends of TLS, on either side of the gateway.
func TestIntercepted(t *testing.T) {
	server, _ := certs.New().Configs()
	g := startBound(t, server, pgproxy.BindingPrefer)
	g.addr = intercepted(t, g.addr)
	out, err := g.psql(t, "sslmode=require channel_binding=prefer")
	if err == nil || !has(out, "SCRAM channel binding check failed") || !has(g.log.String(), "another certificate") {
		t.Errorf("a client with channel binding: %v: %s", err, out)
	}
	if out, err := g.psql(t, "sslmode=require channel_binding=disable"); err != nil {
		t.Errorf("a client without: %v: %s", err, out)
	}

	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithTLS())
	addr := intercepted(t, db.Addr())
	for binding, want := range map[pgproxy.ChannelBinding]bool{pgproxy.BindingDisable: true, pgproxy.BindingPrefer: false, pgproxy.BindingRequire: false} {
		for at, ok := range map[string]bool{db.Addr(): true, addr: want} {
			if err := probe(at, db, binding); (err == nil) != ok || err != nil && !has(err.Error(), "channel binding") {
				t.Errorf("a server with channel_binding: %v, intercepted: %v: %v", binding, at == addr, err)
			}
		}
	}
}

// probe logs in to a server as the gateway does.
func probe(addr string, db *pgtest.Cluster, binding pgproxy.ChannelBinding) error {
	return pgproxy.Probe(pgproxy.PostgresConfig{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(addr)}, User: db.Superuser(), Password: db.Password(), DBName: "postgres",
		TLS: &tls.Config{InsecureSkipVerify: true}, ChannelBinding: binding,
	})(context.Background(), addr)
}

// TestServerMustBind has servers let the gateway in without channel binding.
func TestServerMustBind(t *testing.T) {
	for _, auth := range []pgtest.Auth{pgtest.Trust, pgtest.MD5, "password"} {
		db := pgtest.Start(t, pgtest.WithAuth(auth), pgtest.WithTLS())
		if err := probe(db.Addr(), db, pgproxy.BindingRequire); err == nil || !has(err.Error(), "channel binding is required") {
			t.Errorf("%s: %v", auth, err)
		}
		if err := probe(db.Addr(), db, pgproxy.BindingPrefer); err != nil {
			t.Errorf("%s: %v", auth, err)
		}
	}
}

// A client that could bind, and believes that the gateway does not offer it, has been told so by somebody else.
func TestOfferTakenAway(t *testing.T) {
	server, client := certs.New().Configs()
	g := startBound(t, server, pgproxy.BindingPrefer)
	for header, want := range map[string]string{"y": "28000", "n": "28P01"} {
		conn, err := net.Dial("tcp", g.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write((&pgwire.SSLRequest{}).Append(nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		w := newWire(t, tls.Client(conn, client))
		w.send(&pgwire.StartupMessage{Version: pgwire.Version30, Params: []pgwire.Param{{Name: "user", Value: "app"}}})
		if _, offer := w.until(pgwire.TypeAuthentication); !has(offer, pgwire.MechanismSCRAMPlus) || strings.Index(offer, pgwire.MechanismSCRAM) != strings.Index(offer, pgwire.MechanismSCRAMPlus) {
			t.Errorf("the gateway offers %q, want %s first", offer, pgwire.MechanismSCRAMPlus)
		}
		w.send(&pgwire.SASLInitialResponse{Mechanism: pgwire.MechanismSCRAM, Data: []byte(header + ",,n=,r=abc")})
		if header == "n" { // goes on, to a wrong proof
			_, challenge := w.until(pgwire.TypeAuthentication)
			nonce, _, _ := strings.Cut(challenge[len("\x00\x00\x00\x0br="):], ",")
			w.send(&pgwire.SASLResponse{Data: []byte("c=biws,r=" + nonce + ",p=" + strings.Repeat("A", 43) + "=")})
		}
		if _, said := w.until(pgwire.TypeErrorResponse); !has(said, want) {
			t.Errorf("%s: %q, want %s", header, said, want)
		}
	}
}

// sessions is a cache with one session for all servers.
type sessions struct {
	mu     sync.Mutex
	newest *tls.ClientSessionState
}

func (s *sessions) Get(string) (*tls.ClientSessionState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest, s.newest != nil
}

func (s *sessions) Put(_ string, c *tls.ClientSessionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = c
}

// TestChannelBindingByName has clients ask for two names, one after the other, and resume TLS sessions.
func TestChannelBindingByName(t *testing.T) {
	authority := certs.New()
	for what, server := range map[string]*tls.Config{
		"a list": {Certificates: []tls.Certificate{authority.Issue("a", "a.example"), authority.Issue("b", "b.example")}},
		"a function": {GetCertificate: func() func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			byName := map[string]tls.Certificate{"a.example": authority.Issue("a", "a.example"), "b.example": authority.Issue("b", "b.example")}
			return func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				pair := byName[hello.ServerName] // another pointer each time
				return &pair, nil
			}
		}()},
	} {
		g := startBound(t, server, pgproxy.BindingPrefer)
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			cache := new(sessions)
			for i, name := range []string{"a.example", "a.example", "b.example", "b.example", "a.example"} {
				resumed := logInBound(t, g, &tls.Config{RootCAs: authority.Pool, ServerName: name, ClientSessionCache: cache, MaxVersion: version})
				if want := i == 1 || i == 3; resumed != want {
					t.Errorf("%s, TLS %x, login %d, to %s: the TLS session was resumed: %v", what, version, i, name, resumed)
				}
			}
		}
	}
}

// logInBound logs in with channel binding, and reports whether the TLS session was resumed.
func logInBound(t *testing.T, g *gateway, client *tls.Config) (resumed bool) {
	t.Helper()
	cfg, err := pgx.ParseConfig(strings.Replace(g.dsn("password=secret channel_binding=require"), "sslmode=disable", "sslmode=require", 1))
	if err != nil {
		t.Fatal(err)
	}
	client.VerifyConnection = func(cs tls.ConnectionState) error {
		resumed = cs.DidResume
		return nil
	}
	cfg.TLSConfig = client
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Error(err)
		return false
	}
	do(t, conn, "select 1") // the client has read the session tickets
	_ = conn.Close(context.Background())
	return resumed
}
