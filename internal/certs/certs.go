// Package certs makes certificates for tests and benchmarks, good for a day.
//
//	a := certs.New()
//	server, client := a.Configs() // of crypto/tls
package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Authority is a self-signed certificate for a server at localhost and 127.0.0.1. It also signs other certificates.
type Authority struct {
	Certificate tls.Certificate
	Pool        *x509.CertPool // has Certificate
}

// New makes an authority.
func New() *Authority {
	a := &Authority{}
	a.Certificate = a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "headpond test"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	})
	a.Pool = x509.NewCertPool()
	a.Pool.AddCert(a.Certificate.Leaf)
	return a
}

// Issue makes a certificate with a common name, and DNS names or IP addresses, for a server or a client. Each has its
// own key.
func (a *Authority) Issue(name string, hosts ...string) tls.Certificate {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return a.issue(template)
}

// Revoke makes a revocation list of certificates, in DER, that is valid from an hour ago until a time.
func (a *Authority) Revoke(until time.Time, revoked ...tls.Certificate) []byte {
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, c := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: list.ThisUpdate})
	}
	return must(x509.CreateRevocationList(rand.Reader, list, a.Certificate.Leaf, a.Certificate.PrivateKey.(crypto.Signer))) //nolint:forcetypeassert // an ECDSA key
}

// Configs returns the TLS settings of a server with the authority's own certificate, and of a client that trusts it.
func (a *Authority) Configs() (server, client *tls.Config) {
	return &tls.Config{Certificates: []tls.Certificate{a.Certificate}}, &tls.Config{RootCAs: a.Pool, ServerName: "localhost"}
}

// PEM returns a certificate and its key in PEM, as in files.
func PEM(c tls.Certificate) (cert, key []byte) {
	der := must(x509.MarshalPKCS8PrivateKey(c.PrivateKey))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// issue signs a certificate made from the template; the first one is the authority's own.
func (a *Authority) issue(template *x509.Certificate) tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	parent, signer := a.Certificate.Leaf, a.Certificate.PrivateKey
	if parent == nil {
		parent, signer = template, crypto.PrivateKey(key)
	}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	der := must(x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must(x509.ParseCertificate(der))}
}

// must panics on an error: nothing in this package depends on input.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
