package tlsclient

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"slices"
	"strings"
)

// VerifyCA makes cfg accept any certificate signed by its authorities, whatever name it has, like libpq with
// sslmode=verify-ca.
func VerifyCA(cfg *tls.Config) {
	roots := cfg.RootCAs
	cfg.InsecureSkipVerify = true // replaced by VerifyConnection below
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		_, err := verifyChain(cs, roots)
		return err
	}
}

// ForPostgres is For with the rule of libpq's sslmode=verify-full: if a certificate has no alternative name of the
// server name's kind (DNS or IP), its common name counts. A cfg with InsecureSkipVerify is not changed.
func ForPostgres(cfg *tls.Config, endpoint string) *tls.Config {
	cfg = For(cfg, endpoint)
	if cfg.InsecureSkipVerify {
		return cfg
	}
	roots, host := cfg.RootCAs, cfg.ServerName
	cfg.InsecureSkipVerify = true // replaced by VerifyConnection below
	and := cfg.VerifyConnection
	cfg.VerifyConnection = func(cs tls.ConnectionState) error {
		chains, err := verifyChain(cs, roots)
		if err == nil {
			err = verifyName(cs.PeerCertificates[0], chains, host)
		}
		if err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
		}
		if and != nil {
			return and(cs)
		}
		return nil
	}
	return cfg
}

// verifyChain is package tls's verification without the name.
func verifyChain(cs tls.ConnectionState, roots *x509.CertPool) ([][]*x509.Certificate, error) {
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
	for _, cert := range cs.PeerCertificates[1:] {
		opts.Intermediates.AddCert(cert)
	}
	chains, err := cs.PeerCertificates[0].Verify(opts)
	if err != nil {
		return nil, &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return chains, nil
}

// verifyName checks the name in a certificate.
func verifyName(cert *x509.Certificate, chains [][]*x509.Certificate, host string) error {
	err := cert.VerifyHostname(host)
	alternatives := len(cert.DNSNames)
	if net.ParseIP(host) != nil {
		alternatives = len(cert.IPAddresses)
	}
	if err == nil || alternatives > 0 || slices.ContainsFunc(chains, constrained) {
		return err
	}
	if name, ok := commonName(cert.Subject); ok && matches(name, host) {
		return nil
	}
	return err
}

// constrained reports whether an authority has name constraints, which package x509 does not apply to common names.
func constrained(chain []*x509.Certificate) bool {
	return slices.ContainsFunc(chain[1:], func(ca *x509.Certificate) bool {
		return slices.ContainsFunc(ca.Extensions, func(e pkix.Extension) bool { return e.Id.Equal([]int{2, 5, 29, 30}) })
	})
}

// commonName returns the first common name.
func commonName(subject pkix.Name) (name string, ok bool) {
	for _, attribute := range subject.Names {
		if attribute.Type.Equal([]int{2, 5, 4, 3}) {
			name, ok = attribute.Value.(string)
			return name, ok && !strings.Contains(name, "\x00")
		}
	}
	return "", false
}

// matches compares names, ignoring case. "*." at the beginning of pattern stands for one label.
func matches(pattern, host string) bool {
	if strings.EqualFold(pattern, host) {
		return true
	}
	suffix, wildcard := strings.CutPrefix(pattern, "*")
	first, rest, dotted := strings.Cut(host, ".")
	return wildcard && len(suffix) > 1 && dotted && first != "" && strings.EqualFold(suffix, "."+rest)
}
