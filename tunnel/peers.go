package tunnel

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/headpond/headpond/mux"
)

// Peer is a gateway that may connect to a Server.
type Peer struct {
	Name string
	// Keys are the peer's own, of 16 bytes or more each. A client that uses the peer's name must
	// prove that it knows one of them; Config.PSK is not enough. Several are valid at once, so that
	// the sides can change them one after the other. Empty: Config.PSK or the certificate is the
	// proof.
	Keys [][]byte
	// Policy has Upstreams and Allow that this peer may use in addition to those of
	// Config.Policy. Its other fields are ignored.
	Policy Policy
}

// proof is a key and the name of the peer that owns it.
type proof struct {
	name string // "": the key of all peers without their own keys
	key  []byte
}

// peer returns the peer of a name, or nil.
func (c *ServerConfig) peer(name string) *Peer {
	i := slices.IndexFunc(c.Peers, func(p Peer) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return &c.Peers[i]
}

// verifyPeers reports every problem of Peers.
func (c *ServerConfig) verifyPeers(bad func(format string, args ...any)) {
	owner := map[string]string{string(c.PSK): "the listener's PSK"}
	seen := map[string]bool{}
	for _, p := range c.Peers {
		if p.Name == "" || len(p.Name) > maxName || seen[p.Name] {
			bad("peer %q: want a unique name, of at most %d bytes", clip(p.Name), maxName)
		}
		seen[p.Name] = true
		for _, key := range p.Keys {
			switch other, taken := owner[string(key)]; {
			case len(key) < minPSK:
				bad("peer %q: a key has %d bytes, want at least %d", clip(p.Name), len(key), minPSK)
			case taken && other != p.Name:
				bad("peer %q: a key is also that of %s; give each its own", clip(p.Name), other)
			default:
				owner[string(key)] = p.Name
			}
		}
	}
}

// keyed reports whether every peer that may connect has its own keys.
func (c *ServerConfig) keyed() bool {
	return len(c.Peers) > 0 && !slices.ContainsFunc(c.Peers, func(p Peer) bool { return len(p.Keys) == 0 })
}

// name returns a peer's name: the result of Identify, or the name that the peer claims, which must be in its
// certificate if it has shown one.
func (c *ServerConfig) name(p mux.Peer) (string, error) {
	if c.Identify != nil {
		return c.Identify(p.Addr)
	}
	if p.TLS == nil || len(p.TLS.PeerCertificates) == 0 {
		return p.Name, nil
	}
	leaf := p.TLS.PeerCertificates[0]
	names := slices.DeleteFunc(append([]string{leaf.Subject.CommonName}, leaf.DNSNames...), func(n string) bool { return n == "" })
	switch {
	case len(names) == 0:
		return "", errors.New("the peer's certificate has neither a common name nor a DNS name")
	case p.Name == "":
		return names[0], nil
	case !slices.Contains(names, p.Name):
		return "", fmt.Errorf("the peer calls itself %q, its certificate says %q", clip(p.Name), names)
	}
	return p.Name, nil
}

// maxUnnamed bounds the keys that are tried for a peer without a name: it is not authenticated at that point, and each costs a MAC.
const maxUnnamed = 64

// proofs returns the keys of which a peer must know one. It returns none if the peer's certificate is enough, or if no
// proof is needed.
func (c *ServerConfig) proofs(p mux.Peer) (all []proof, err error) {
	name, err := c.name(p)
	if err != nil {
		return nil, err
	}
	for _, known := range c.Peers {
		if known.Name == name || name == "" { // without a name the key decides
			for _, key := range known.Keys {
				all = append(all, proof{known.Name, key})
			}
		}
	}
	if name == "" && len(all) > maxUnnamed {
		return nil, fmt.Errorf("a peer without a name could have %d keys, of which at most %d are tried; it has to say its name", len(all), maxUnnamed)
	}
	own := name != "" && len(all) > 0
	if len(c.PSK) > 0 && !own {
		all = append(all, proof{"", c.PSK})
	}
	if len(all) == 0 && c.keyed() {
		return nil, c.unlisted(name)
	}
	return all, nil
}

// identify returns the name of a peer that has proved to have used.key, or needs none.
func (c *ServerConfig) identify(p mux.Peer, used proof) (string, error) {
	name, err := c.name(p)
	if err != nil {
		return "", err
	}
	if name == "" {
		name = used.name
	}
	if len(c.Peers) > 0 && c.peer(name) == nil && c.Identify == nil {
		return "", c.unlisted(name)
	}
	return name, nil
}

func (c *ServerConfig) unlisted(name string) error {
	return fmt.Errorf("peer %q is not among the peers that may connect", clip(name))
}

// errRevoked ends the sessions of a peer that could no longer connect.
var errRevoked = errors.New("tunnel: the peer's key or authority was revoked, or it may not connect any more")

// admits reports whether a peer that has proved used.key could connect now.
func (c *ServerConfig) admits(s *member) bool {
	p := s.Peer()
	if _, err := c.identify(p, s.key); err != nil || !c.trusts(p) {
		return false
	}
	all, err := c.proofs(p)
	if err != nil || len(all) == 0 {
		return err == nil
	}
	return slices.ContainsFunc(all, func(o proof) bool { return o.name == s.key.name && bytes.Equal(o.key, s.key.key) })
}

// trusts reports whether a currently trusted authority issued the peer's certificate, and VerifyConnection accepts it, if the
// peer has to show one.
func (c *ServerConfig) trusts(p mux.Peer) bool {
	switch {
	case c.TLS == nil || c.TLS.ClientAuth != tls.RequireAndVerifyClientCert || c.TLS.GetConfigForClient != nil:
		return true
	case p.TLS == nil || len(p.TLS.PeerCertificates) == 0:
		return false
	}
	leaf := p.TLS.PeerCertificates[0]
	o := x509.VerifyOptions{
		Roots: c.TLS.ClientCAs, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, other := range p.TLS.PeerCertificates[1:] {
		o.Intermediates.AddCert(other)
	}
	if o.CurrentTime = time.Now(); o.CurrentTime.After(leaf.NotAfter) { // a session outlives its certificate
		o.CurrentTime = leaf.NotAfter
	}
	chains, err := leaf.Verify(o)
	if err == nil && c.TLS.VerifyConnection != nil {
		state := *p.TLS
		state.VerifiedChains = chains
		err = c.TLS.VerifyConnection(state)
	}
	return err == nil
}

// revoke ends the sessions of peers that could no longer connect.
func (t *sessions) revoke(admits func(*member) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		for _, s := range p.sessions {
			if s.dropped == nil && !t.draining && !admits(s) {
				t.drop(s, errRevoked)
				t.work.Go(func() { t.closeDropped(s) })
			}
		}
	}
	t.notifyLocked()
}

// policies decide which targets each peer may connect to.
type policies struct {
	common Policy
	own    map[string]*Policy // common with the peer's own targets
}

func newPolicies(common Policy, peers []Peer) *policies {
	all := &policies{common: common, own: map[string]*Policy{}}
	for _, p := range peers {
		if len(p.Policy.Upstreams)+len(p.Policy.Allow) == 0 {
			continue
		}
		both := common
		both.Allow = slices.Concat(common.Allow, p.Policy.Allow)
		both.Upstreams = maps.Clone(p.Policy.Upstreams)
		if both.Upstreams == nil {
			both.Upstreams = common.Upstreams
		} else {
			maps.Copy(both.Upstreams, common.Upstreams)
		}
		all.own[p.Name] = &both
	}
	return all
}

// of is the policy for a peer.
func (p *policies) of(name string) *Policy {
	if own := p.own[name]; own != nil {
		return own
	}
	return &p.common
}
