package gateway

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/hkdf"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/crl"
)

// certificates holds a listener's current certificates, and the revocation lists of its clients'. Handshakes read them; a
// reload replaces all of them.
type certificates struct {
	current atomic.Pointer[certificateSet]
	noted   atomic.Int64 // when a client was refused by a revocation list and that was logged, in Unix nanoseconds
}

// certificateSet finds certificates by server name. Its maps have indexes into pairs, in ascending order. A set is
// immutable. It has at least one pair, or obtained is not nil.
type certificateSet struct {
	obtained extend.Certificates // obtained by an extension; nil: none
	pairs    []tls.Certificate
	secret   []byte           // what is known only to those who have the private key of the first pair; nil = there is no pair
	exact    map[string][]int // by name in lower case
	below    map[string][]int // by the parent of "*.parent", in lower case
	unnamed  []int            // for clients that name no server: the first of each kind of key
	revoked  *crl.Lists       // nil: none
}

// newCertificateSet indexes pairs, each with its Leaf.
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

// expires returns when the first of the certificates expires, zero if unknown.
func (c *certificates) expires() (first time.Time) {
	set := c.current.Load()
	if set == nil {
		return first
	}
	if set.obtained != nil {
		first = set.obtained.Expires()
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

// choose implements tls.Config.GetCertificate. If there is no certificate, the client gets the alert unrecognized_name.
func (c *certificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	set := c.current.Load()
	if set.obtained != nil && (hello.ServerName != "" || len(set.pairs) == 0) {
		if pair := set.obtained.Certificate(hello); pair != nil {
			own := *pair
			own.PrivateKey = fiber.TLSKey(own.PrivateKey)
			return &own, nil
		}
	}
	if len(set.pairs) == 0 {
		return nil, nil //nolint:nilnil // as documented there
	}
	return set.choose(hello), nil
}

// acmeProtocol is the only protocol that an authority offers when it checks a name (RFC 8737).
const acmeProtocol = "acme-tls/1"

// challenge implements tls.Config.GetConfigForClient.
func (c *certificates) challenge(hello *tls.ClientHelloInfo) (cfg *tls.Config, err error) {
	if obtained := c.current.Load().obtained; obtained != nil && slices.Contains(hello.SupportedProtos, acmeProtocol) {
		fiber.Block(func() { cfg = obtained.Challenge(hello) }) // reads files
	}
	return cfg, nil
}

// choose returns the first pair that matches the client's server name and that the client supports, or else the first
// of all. Its cost does not grow with the number of certificates for other names.
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

// loadCertificates reads the files of a listener's TLS settings.
func (g *Gateway) loadCertificates(l *config.Listener) (*certificateSet, error) {
	files := l.TLS.Pairs()
	pairs := make([]tls.Certificate, len(files))
	var secret []byte
	for i, f := range files {
		var err error
		if pairs[i], err = config.KeyPair(f.Cert, f.Key); err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		if i == 0 {
			secret = secretOf(pairs[0].PrivateKey)
		}
		pairs[i].PrivateKey = fiber.TLSKey(pairs[i].PrivateKey)
	}
	set := newCertificateSet(pairs)
	set.secret = secret
	if c := g.certifier(); c != nil && len(l.TLS.ACME) > 0 {
		set.obtained = c.Certificates(l)
	}
	if set.obtained == nil && len(pairs) == 0 {
		return nil, errors.New("tls: there is no certificate")
	}
	var err error
	if set.revoked, err = loadRevoked(l.TLS); err != nil {
		return nil, err
	}
	return set, nil
}

// loadRevoked reads the revocation lists of a listener's TLS settings, nil if it has none.
func loadRevoked(t *config.ServerTLS) (*crl.Lists, error) {
	if t.ClientCRL == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	authorities, err := t.ClientCA.Read()
	if err != nil {
		return nil, fmt.Errorf("tls: client_ca: %w", err)
	}
	file, err := t.ClientCRL.Read()
	if err != nil {
		return nil, fmt.Errorf("tls: client_crl: %w", err)
	}
	lists, err := crl.Parse(file, authorities)
	if err != nil {
		return nil, fmt.Errorf("tls: client_crl: %s: %w", t.ClientCRL, err)
	}
	return lists, nil
}

// refusalPause is the time between two log entries about clients of a listener that a revocation list refuses. Any client with
// a revoked certificate can cause one.
const refusalPause = 10 * time.Second

// verifyClient returns an implementation of tls.Config.VerifyConnection, which is called for resumed sessions, too. It
// refuses clients by the current revocation lists, and logs that.
func (c *certificates) verifyClient(log *slog.Logger, listener string) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		lists := c.current.Load().revoked
		if lists == nil || len(state.PeerCertificates) == 0 {
			return nil
		}
		now := time.Now()
		err := lists.Verify(state.VerifiedChains, now)
		if last := c.noted.Load(); err != nil && now.UnixNano()-last >= int64(refusalPause) && c.noted.CompareAndSwap(last, now.UnixNano()) {
			log.Warn("client refused by its certificate", "listener", listener, "error", err)
		}
		return err
	}
}

// listsExpire returns when the first of the revocation lists expires, zero if none does.
func (c *certificates) listsExpire() (first time.Time) {
	if set := c.current.Load(); set != nil && set.revoked != nil {
		first = set.revoked.Expires()
	}
	return first
}

// secretOf returns what is known only to those who have a private key.
func secretOf(private crypto.PrivateKey) []byte {
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil
	}
	secret, err := hkdf.Key(sha256.New, key, nil, "headpond listener secret", sha256.Size)
	if err != nil {
		return nil
	}
	return secret
}

// certifier returns the part that obtains certificates, nil if there is none.
func (g *Gateway) certifier() extend.Certifier {
	for _, part := range g.parts {
		if c, ok := part.(extend.Certifier); ok {
			return c
		}
	}
	return nil
}

// serverConfig returns the TLS settings of a listener: its current certificates, and the client
// certificates that t requires.
func (c *certificates) serverConfig(t *config.ServerTLS, log *slog.Logger, listener string) (*tls.Config, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.choose}
	if t.ClientCA == "" { // a certificate authority that checks a name has no client certificate
		settings.GetConfigForClient = c.challenge
		return settings, nil
	}
	pem, err := t.ClientCA.Read()
	if err != nil {
		return nil, fmt.Errorf("tls: client_ca: %w", err)
	}
	settings.ClientAuth, settings.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if t.ClientAuth == config.ClientAuthRequest {
		settings.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if !settings.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: client_ca: %s has no PEM certificate in it", t.ClientCA)
	}
	settings.VerifyConnection = c.verifyClient(log, listener) // also without lists: a reload may bring some
	return settings, nil
}
