package gateway

import (
	"crypto/tls"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// certificates are a listener's current ones, at least one. Handshakes read them, a reload replaces them all.
type certificates struct {
	current atomic.Pointer[[]tls.Certificate]
}

// expires returns when the first of the certificates does, zero where it is not known.
func (c *certificates) expires() (first time.Time) {
	pairs := c.current.Load()
	if pairs == nil {
		return first
	}
	for i := range *pairs {
		if leaf := (*pairs)[i].Leaf; leaf != nil && (first.IsZero() || leaf.NotAfter.Before(first)) {
			first = leaf.NotAfter
		}
	}
	return first
}

// maxServerName is the length of the longest DNS name. A ClientHello has room for one of 64 KiB.
const maxServerName = 253

// choose is for tls.Config.GetCertificate.
func (c *certificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	pairs := *c.current.Load()
	if len(pairs) == 1 {
		return &pairs[0], nil
	}
	if len(hello.ServerName) > maxServerName {
		return &pairs[0], nil // it is no name; comparing it with those of all certificates would take long
	}
	for i := range pairs {
		if hello.SupportsCertificate(&pairs[i]) == nil {
			return &pairs[i], nil
		}
	}
	return &pairs[0], nil
}

// loadCertificates reads the files of t.
func loadCertificates(t *config.ServerTLS) (*[]tls.Certificate, error) {
	files := append([]config.Certificate{{Cert: t.Cert, Key: t.Key}}, t.Certificates...)
	pairs := make([]tls.Certificate, len(files))
	for i, f := range files {
		var err error
		if pairs[i], err = config.KeyPair(f.Cert, f.Key); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	return &pairs, nil
}

// serverConfig returns the TLS settings of a listener that shows the current certificates.
func (c *certificates) serverConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.choose}
}
