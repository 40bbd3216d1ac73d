package httpproxy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"strings"
)

// clientCertField is the header that gives the server the verified certificate of a client, in Envoy's format:
//
//	Hash=<SHA-256 of the certificate>;Subject="CN=ann,O=Pond";DNS=ann.example;URI=spiffe://pond/ann
const clientCertField = "x-forwarded-client-cert"

// Bounds of the header. Of a certificate beyond them only the Hash is sent, so that the server never sees a part of the
// names.
const (
	maxCertNames = 32
	maxCertText  = 4 << 10
)

// clientCert returns the value of the header for a connection, "" without a verified client certificate.
func clientCert(state *tls.ConnectionState) string {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return ""
	}
	return describeCert(state.PeerCertificates[0])
}

func describeCert(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	hash := "Hash=" + hex.EncodeToString(sum[:])
	if len(c.DNSNames)+len(c.URIs)+len(c.EmailAddresses) > maxCertNames {
		return hash
	}
	var b strings.Builder
	b.WriteString(hash)
	b.WriteString(`;Subject="`)
	escapeCert(&b, c.Subject.String(), "")
	b.WriteByte('"')
	for _, uri := range c.URIs {
		b.WriteString(";URI=")
		escapeCert(&b, uri.String(), ";,= ")
	}
	for _, name := range c.DNSNames {
		b.WriteString(";DNS=")
		escapeCert(&b, name, ";,= ")
	}
	for _, address := range c.EmailAddresses {
		b.WriteString(";Email=")
		escapeCert(&b, address, ";,= ")
	}
	if b.Len() > maxCertText {
		return hash
	}
	return b.String()
}

// escapeCert writes a text from a certificate, which may have any bytes. Quotes, backslashes, percent signs, the
// separators, and everything that is not printable ASCII become %XX.
func escapeCert(b *strings.Builder, text, separators string) {
	const digits = "0123456789ABCDEF"
	for i := range len(text) {
		c := text[i]
		if c < ' ' || c > '~' || strings.IndexByte(`"\%`, c) >= 0 || strings.IndexByte(separators, c) >= 0 {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
			continue
		}
		b.WriteByte(c)
	}
}

// isClientCert reports whether servers may treat a field as this header.
func isClientCert(name []byte) bool { return SameHeader(view(name), clientCertField) }

// serverTLS returns the settings for TLS handshakes with clients.
func serverTLS(t *tls.Config) *tls.Config {
	t = t.Clone()
	t.NextProtos = []string{"h2", "http/1.1"}
	if t.MinVersion == 0 {
		t.MinVersion = tls.VersionTLS12
	}
	return t
}

// updateTLS changes which client certificates are asked for. It keeps all other settings, and so the sessions that
// clients can resume.
func (p *Proxy) updateTLS(changed *tls.Config) {
	old := p.tls.Load()
	if old == nil || changed == nil || old.ClientAuth == changed.ClientAuth && old.ClientCAs.Equal(changed.ClientCAs) {
		return
	}
	p.tls.Store(serverTLS(changed))
	p.carriers.tls.Store(carrierTLS(changed))
}
