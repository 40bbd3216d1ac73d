package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/tlsclient"
)

// certificate is a listener's current certificate. Handshakes read it, a reload replaces it.
type certificate struct {
	current atomic.Pointer[tls.Certificate]
}

// expires returns when the certificate does, zero where it is not known.
func (c *certificate) expires() time.Time {
	if pair := c.current.Load(); pair != nil && pair.Leaf != nil {
		return pair.Leaf.NotAfter
	}
	return time.Time{}
}

// loadCertificate reads the files of t.
func loadCertificate(t *config.ServerTLS) (*tls.Certificate, error) {
	cert, err := config.KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return &cert, nil
}

// serverConfig returns the TLS settings of a listener that shows the current certificate.
func (c *certificate) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// clientConfig returns the TLS settings towards an upstream, with sessions to resume, nil for clear text.
func clientConfig(t *config.ClientTLS) (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // asked for in so many words, and config warns
	out.ClientSessionCache = tlsclient.NewSessions()
	if t.CA != "" {
		pem, err := t.CA.Read()
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls: %s has no PEM certificate in it", t.CA)
		}
	}
	if t.Verify == "ca" {
		tlsclient.VerifyCA(out)
	}
	if t.Cert != "" {
		cert, err := config.KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		out.Certificates = []tls.Certificate{cert}
	}
	return out, nil
}
