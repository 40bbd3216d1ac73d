package gateway_test

import (
	"crypto/tls"
	"fmt"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/certs"
)

// helloFor is the ClientHello of a client that supports every certificate, but for its name.
func helloFor(name string) *tls.ClientHelloInfo {
	return &tls.ClientHelloInfo{
		ServerName: name, SupportedVersions: []uint16{tls.VersionTLS13, tls.VersionTLS12}, SupportedCurves: []tls.CurveID{tls.X25519, tls.CurveP256},
		SignatureSchemes: []tls.SignatureScheme{tls.ECDSAWithP256AndSHA256, tls.PSSWithSHA256}, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
	}
}

// TestCertificateIndex compares with asking each certificate in turn.
func TestCertificateIndex(t *testing.T) {
	ca := certs.New()
	var pairs []tls.Certificate
	for _, names := range [][]string{
		{"first.test"}, {"a.test", "B.Test"}, {"*.test"}, {"c.test", "127.0.0.1"}, {"*.a.test", "a.a.test"}, {"b.a.test", "*.b.a.test", "*.A.test"}, {"*"}, {"odd_name.test"}, {"localhost"}, {},
	} {
		pairs = append(pairs, ca.Issue("test", names...))
	}
	choose := gateway.CertificateFor(pairs)
	for _, name := range []string{
		"", "first.test", "a.test", "A.TEST", "b.test", "c.test", "other.test", "test", "a.a.test", "b.a.test", "c.a.test", "x.b.a.test", "y.x.b.a.test", "localhost", "elsewhere",
		"odd_name.test", "127.0.0.1", "*.test", "*", ".", ".test", "a..test", "x.a.test.", strings.Repeat("a", 64) + ".test",
	} {
		hello, want := helloFor(name), 0
		for i := range pairs {
			if hello.SupportsCertificate(&pairs[i]) == nil {
				want = i
				break
			}
		}
		if got := choose(hello); got != want {
			t.Errorf("%q: certificate %d, want %d", name, got, want)
		}
	}
}

// TestCertificateChoiceIsCheap: a client pays for the certificates of its own name, not for all. Each certificate that is asked allocates
// an error with the name in it.
func TestCertificateChoiceIsCheap(t *testing.T) {
	ca := certs.New()
	var pairs []tls.Certificate
	for i := range 200 {
		pairs = append(pairs, ca.Issue("test", fmt.Sprintf("s%d.test", i), fmt.Sprintf("*.s%d.test", i)))
	}
	choose := gateway.CertificateFor(pairs)
	for _, name := range []string{"unknown.test", "s199.test", "x.s199.test", strings.Repeat("a.", 30<<10), strings.Repeat(".", 200)} {
		hello := helloFor(name)
		if n := testing.AllocsPerRun(10, func() { choose(hello) }); n > 50 {
			t.Errorf("%.20q: %v allocations", name, n)
		}
	}
}
