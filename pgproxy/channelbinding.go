package pgproxy

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"sync"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// ChannelBinding says whether SCRAM proves that both sides are the ends of one TLS connection (SCRAM-SHA-256-PLUS), which a
// program between them that has a certificate of its own is not.
type ChannelBinding int

const (
	// BindingPrefer uses channel binding if the other side has it too. The default.
	BindingPrefer ChannelBinding = iota
	// BindingDisable does not use it.
	BindingDisable
	// BindingRequire refuses a login without it.
	BindingRequire
)

// String returns the name that the configuration uses.
func (b ChannelBinding) String() string {
	switch b {
	case BindingDisable:
		return "disable"
	case BindingRequire:
		return "require"
	}
	return "prefer"
}

// boundTLS are the TLS settings of a listener with one tls.Config for each certificate. So the certificate that a client is
// shown is known after the handshake, and a TLS session is resumed under the certificate that it began with. No handshake
// makes a tls.Config if its certificate has been used before.
type boundTLS struct {
	settings *tls.Config // as configured

	mu     sync.Mutex // held for a few instructions
	byCert map[certificateKey]*boundCertificate
}

// certificateKey identifies a certificate by the first bytes of what a handshake sends of it: an issuer of certificates may
// return another tls.Certificate each time, and renews the staple of a certificate.
type certificateKey struct{ leaf, staple *byte }

// boundCertificate is a certificate of a listener.
type boundCertificate struct {
	settings *tls.Config
	binding  []byte // nil = the certificate has no channel binding
}

// maxBoundCertificates bounds the certificates kept, with some hundred bytes each: a gateway has fewer names.
const maxBoundCertificates = 10_000

// servedKey is the key in the context of a handshake of a *served, which gets the certificate that the client is shown.
type servedKey struct{}

type served struct{ certificate *boundCertificate }

// bindTLS returns settings like those given for handshakes whose context has a servedKey.
func bindTLS(settings *tls.Config) *tls.Config {
	b := &boundTLS{settings: settings, byCert: map[certificateKey]*boundCertificate{}}
	bound := settings.Clone()
	bound.GetConfigForClient = b.configFor
	return bound
}

// configFor implements tls.Config.GetConfigForClient.
func (b *boundTLS) configFor(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if other := b.settings.GetConfigForClient; other != nil {
		if cfg, err := other(hello); cfg != nil || err != nil {
			return cfg, err
		}
	}
	pair, err := certificateFor(b.settings, hello)
	if pair == nil || err != nil || len(pair.Certificate) == 0 {
		return nil, err // crypto/tls says what is wrong
	}
	c, err := b.bound(pair)
	if err != nil {
		return nil, err
	}
	if s, ok := hello.Context().Value(servedKey{}).(*served); ok {
		s.certificate = c
	}
	return c.settings, nil
}

// certificateFor returns the certificate that crypto/tls would choose.
func certificateFor(cfg *tls.Config, hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if cfg.GetCertificate != nil && (len(cfg.Certificates) == 0 || hello.ServerName != "") {
		if pair, err := cfg.GetCertificate(hello); pair != nil || err != nil {
			return pair, err
		}
	}
	if len(cfg.Certificates) == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	for i := range cfg.Certificates {
		if pair := &cfg.Certificates[i]; len(cfg.Certificates) == 1 || hello.SupportsCertificate(pair) == nil {
			return pair, nil
		}
	}
	return &cfg.Certificates[0], nil
}

// bound returns what is kept for a certificate.
func (b *boundTLS) bound(pair *tls.Certificate) (*boundCertificate, error) {
	key := certificateKey{leaf: &pair.Certificate[0][0]}
	if len(pair.OCSPStaple) > 0 {
		key.staple = &pair.OCSPStaple[0]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.byCert[key]; c != nil {
		return c, nil
	}
	c, err := b.newBound(pair)
	if err != nil {
		return nil, err
	}
	if len(b.byCert) >= maxBoundCertificates {
		clear(b.byCert)
	}
	b.byCert[key] = c
	return c, nil
}

func (b *boundTLS) newBound(pair *tls.Certificate) (*boundCertificate, error) {
	leaf := pair.Leaf
	if leaf == nil {
		var err error
		if leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("the listener's certificate: %w", err)
		}
	}
	c := &boundCertificate{settings: b.settings.Clone(), binding: pgwire.EndPointBinding(leaf)}
	c.settings.Certificates, c.settings.GetCertificate = []tls.Certificate{*pair}, nil
	c.settings.GetConfigForClient = nil
	sum := sha256.Sum256(pair.Certificate[0])
	b.bindSessions(c.settings, "headpond certificate "+string(sum[:]))
	return c, nil
}

// bindSessions has cfg resume only the sessions that began with a certificate, which mark identifies.
func (b *boundTLS) bindSessions(cfg *tls.Config, mark string) {
	wrap, unwrap := b.settings.WrapSession, b.settings.UnwrapSession
	if wrap == nil {
		wrap = b.settings.EncryptTicket
	}
	if unwrap == nil {
		unwrap = b.settings.DecryptTicket
	}
	cfg.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		s.Extra = append(s.Extra, []byte(mark))
		return wrap(cs, s)
	}
	cfg.UnwrapSession = func(identity []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		s, err := unwrap(identity, cs)
		if err != nil || s == nil || !slices.ContainsFunc(s.Extra, func(extra []byte) bool { return string(extra) == mark }) {
			return nil, err
		}
		return s, nil
	}
}

// The messages that offer SCRAM.
var (
	offerSCRAM = (&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{pgwire.MechanismSCRAM}}).Append(nil)
	offerBoth  = (&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{pgwire.MechanismSCRAMPlus, pgwire.MechanismSCRAM}}).Append(nil)
	offerPlus  = (&pgwire.Authentication{Kind: pgwire.AuthSASL, Mechanisms: []string{pgwire.MechanismSCRAMPlus}}).Append(nil)
)

// scramOffer returns the message that offers SCRAM to the client, and whether it has to choose channel binding.
func (g *startup) scramOffer() (offer []byte, plus bool, err error) {
	plus = g.set.ChannelBinding == BindingRequire && g.conn.LocalAddr().Network() != "unix"
	switch {
	case plus && g.tls == nil:
		return nil, plus, &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonTLS,
			message: "TLS is required for channel binding", hint: "Connect with sslmode=require or stricter."}
	case plus && g.binding == nil:
		return nil, plus, &refusal{code: pgwire.StateInvalidAuthorization, reason: listener.ReasonTLS,
			message: "channel binding is required, and the gateway's certificate has none", hint: "The signature of its certificate has no hash function."}
	case plus:
		return offerPlus, plus, nil
	case g.binding != nil:
		return offerBoth, plus, nil
	}
	return offerSCRAM, plus, nil
}
