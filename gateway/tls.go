package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/tls"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
)

// certificates are a listener's current ones, at least one. Handshakes read them, a reload replaces them all.
type certificates struct {
	current atomic.Pointer[certificateSet]
}

// certificateSet finds certificates by server name. Its maps have positions in pairs, in ascending order. It is never changed.
type certificateSet struct {
	pairs   []tls.Certificate
	exact   map[string][]int // by name in lower case
	below   map[string][]int // by the parent of "*.parent", likewise
	unnamed []int            // for clients that name no server: the first of each kind of key
}

// newCertificateSet indexes pairs, at least one, each with its Leaf.
func newCertificateSet(pairs []tls.Certificate) *certificateSet {
	s := &certificateSet{pairs: pairs, exact: map[string][]int{}, below: map[string][]int{}}
	kinds := map[string]bool{}
	for i := range pairs {
		leaf := pairs[i].Leaf
		for _, name := range leaf.DNSNames {
			s.add(strings.ToLower(name), i)
		}
		for _, ip := range leaf.IPAddresses {
			s.add(ip.String(), i)
		}
		if kind := kindOfKey(leaf.PublicKey); !kinds[kind] {
			kinds[kind] = true
			s.unnamed = append(s.unnamed, i)
		}
	}
	return s
}

func (s *certificateSet) add(name string, i int) {
	switch first, parent, _ := strings.Cut(name, "."); first {
	case "*":
		s.below[parent] = append(s.below[parent], i)
	default:
		s.exact[name] = append(s.exact[name], i)
	}
}

// kindOfKey is the same for keys whose certificates the same clients accept.
func kindOfKey(key crypto.PublicKey) string {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return k.Curve.Params().Name
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", k.Size()) // small ones fit no PSS signature
	}
	return fmt.Sprintf("%T", key)
}

// expires returns when the first of the certificates does, zero where it is not known.
func (c *certificates) expires() (first time.Time) {
	set := c.current.Load()
	if set == nil {
		return first
	}
	for i := range set.pairs {
		if end := set.pairs[i].Leaf.NotAfter; first.IsZero() || end.Before(first) {
			first = end
		}
	}
	return first
}

// maxServerName is the length of the longest DNS name. A ClientHello has room for one of 64 KiB.
const maxServerName = 253

// choose is for tls.Config.GetCertificate.
func (c *certificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return c.current.Load().choose(hello), nil
}

// choose returns the first certificate that is for the client's server name and that the client supports, or the first of
// all. Its cost does not grow with the number of certificates for other names.
func (s *certificateSet) choose(hello *tls.ClientHelloInfo) *tls.Certificate {
	if len(s.pairs) == 1 || len(hello.ServerName) > maxServerName {
		return &s.pairs[0]
	}
	var exact, below []int
	if hello.ServerName == "" {
		exact = s.unnamed
	} else {
		name := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
		_, parent, _ := strings.Cut(name, ".")
		exact, below = s.exact[name], s.below[parent]
	}
	for len(exact)+len(below) > 0 {
		next := &exact
		if len(exact) == 0 || len(below) > 0 && below[0] < exact[0] {
			next = &below
		}
		pair := &s.pairs[(*next)[0]]
		if hello.SupportsCertificate(pair) == nil {
			return pair
		}
		*next = (*next)[1:]
	}
	return &s.pairs[0]
}

// loadCertificates reads the files of t.
func loadCertificates(t *config.ServerTLS) (*certificateSet, error) {
	files := append([]config.Certificate{{Cert: t.Cert, Key: t.Key}}, t.Certificates...)
	pairs := make([]tls.Certificate, len(files))
	for i, f := range files {
		var err error
		if pairs[i], err = config.KeyPair(f.Cert, f.Key); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
	}
	return newCertificateSet(pairs), nil
}

// serverConfig returns the TLS settings of a listener that shows the current certificates.
func (c *certificates) serverConfig() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.choose}
}
