package mux_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/headpond/headpond/mux"
)

// authority makes certificates, as your CA does.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority() *authority {
	a := &authority{pool: x509.NewCertPool()}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "example CA"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, _ := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(name string) tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, _ := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Both sides show certificates of one CA, the server accepts clients that it knows by name, and the
// session outlives its connections.
func Example_mutualTLS() {
	ctx := context.Background()
	ca := newAuthority()
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{ca.issue("gateway.test")},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    ca.pool,
	})
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	server := mux.Config{
		Resume: &mux.Resume{}, // one for all of the listener's sessions
		Authorize: func(_ context.Context, p mux.Peer) error {
			if name := p.TLS.PeerCertificates[0].Subject.CommonName; name != "branch.test" {
				return fmt.Errorf("%q may not enter", name)
			}
			return nil
		},
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serveOne(ctx, conn, server)
		}
	}()

	for _, name := range []string{"branch.test", "stranger.test"} {
		dialer := &mux.Dialer{
			Dial: func(ctx context.Context, address string) (net.Conn, error) {
				d := tls.Dialer{Config: &tls.Config{
					Certificates: []tls.Certificate{ca.issue(name)}, RootCAs: ca.pool, ServerName: "gateway.test",
				}}
				return d.DialContext(ctx, "tcp", address)
			},
			Config: mux.Config{Resume: &mux.Resume{}},
		}
		ch, err := dialer.Open(ctx, listener.Addr().String(), "greeting")
		if err != nil {
			fmt.Println(name, "was denied:", errors.Is(err, mux.ErrDenied))
		} else {
			m, err := ch.Receive(ctx)
			fmt.Printf("%s got %q, %v\n", name, m.Bytes(), err)
			m.Release()
		}
		dialer.Close()
	}
	// Output:
	// branch.test got "welcome", <nil>
	// stranger.test was denied: true
}

// serveOne makes a session of a connection, or gives the connection to the
// session it belongs to.
func serveOne(ctx context.Context, conn net.Conn, cfg mux.Config) {
	s, err := mux.Server(ctx, conn, cfg)
	if err != nil { // mux.ErrResumed: its session continues on conn
		return
	}
	defer s.Close()
	for {
		ch, err := s.Accept(ctx)
		if err != nil {
			return
		}
		ch.Send(ctx, []byte("welcome"))
	}
}
