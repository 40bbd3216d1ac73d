package gateway

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
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
