package extend

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/tlsclient"
)

// ClientTLS returns the TLS settings towards an upstream, with sessions to resume, nil for clear text.
func ClientTLS(t *config.ClientTLS) (*tls.Config, error) {
	if t == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName, InsecureSkipVerify: t.InsecureSkipVerify} //nolint:gosec // explicitly configured, and config warns
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
