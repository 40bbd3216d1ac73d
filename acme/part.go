package acme

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// part obtains the certificates of one gateway.
type part struct {
	gateway extend.Gateway
	every   time.Duration // renewCheck, except in tests

	mu      sync.Mutex // not held during calls of a manager
	manager *manager   // nil: none
}

var _ extend.Certifier = (*part)(nil)

// checkEvery is the period of newPart's managers.
var checkEvery = renewCheck

func newPart(g extend.Gateway) extend.Part { return &part{gateway: g, every: checkEvery} }

// errFixed is the error of a reload that changes the section.
var errFixed = errors.New("its settings hold until the gateway ends: restart it")

// now returns the manager, nil if there is none.
func (p *part) now() *manager {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.manager
}

func (p *part) swap(m *manager) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.manager = m
}

// Check implements extend.Part. The section was checked with the file.
func (p *part) Check(*config.Config, func(err error, at any)) {}

// Plan implements extend.Part.
func (p *part) Plan(plan *extend.Plan) error {
	old, next := p.now(), settingsOf(plan.New)
	switch {
	case next == nil && old == nil:
		return nil
	case next == nil:
		plan.Changes = append(plan.Changes, "acme removed")
		plan.Swap = append(plan.Swap, func() { p.swap(nil) })
		plan.Retired = append(plan.Retired, &extend.Retired{
			Kind: "acme", Name: "certificates", Protocol: "acme", Sessions: "orders", Active: func() int { return 0 },
			Drain: func(context.Context) error { old.close(); return nil },
		})
		return nil
	case old == nil:
		return p.begin(plan, next)
	case !reflect.DeepEqual(old.settings, next):
		return fmt.Errorf("acme: %w", errFixed)
	}
	names, types := namesOf(plan.New), challengeTypes(plan.New)
	plan.Abort = append(plan.Abort, old.load(names))
	plan.Swap = append(plan.Swap, func() { old.manage(names, types) })
	return nil
}

// begin makes a manager. It places no order before the configuration is in force.
func (p *part) begin(plan *extend.Plan, next *Settings) error {
	m, err := newManager(next, p.every, p.gateway.Logger())
	if err != nil {
		return err
	}
	p.swap(m)
	plan.Abort = append(plan.Abort, func() {
		p.swap(nil)
		m.close()
	})
	plan.Changes = append(plan.Changes, "acme added")
	names, types := namesOf(plan.New), challengeTypes(plan.New)
	m.load(names)
	plan.Swap = append(plan.Swap, func() { m.manage(names, types) })
	return nil
}

// Certificates implements extend.Certifier.
func (p *part) Certificates(l *config.Listener) extend.Certificates {
	c := &certificates{part: p}
	for _, name := range l.TLS.ACME {
		c.names = append(c.names, string(name))
	}
	return c
}

// KeyAuthorization implements extend.Certifier.
func (p *part) KeyAuthorization(token string) string {
	if m := p.now(); m != nil {
		return m.issuer.challenges.keyAuthorization(token)
	}
	return ""
}

// certificates has the certificates of one listener.
type certificates struct {
	part  *part
	names []string
}

// Certificate implements extend.Certificates. A client without server name gets the certificate for
// the first name. A name itself goes before a wildcard, which stands for one label, and serves while the name
// has no certificate: a reload that adds the name must not cut off its clients.
func (c *certificates) Certificate(hello *tls.ClientHelloInfo) *tls.Certificate {
	m := c.part.now()
	if m == nil {
		return nil
	}
	wanted := strings.ToLower(strings.TrimSuffix(hello.ServerName, "."))
	if wanted == "" {
		return m.certificate(c.names[0], hello)
	}
	if slices.Contains(c.names, wanted) {
		if cert := m.certificate(wanted, hello); cert != nil {
			return cert
		}
	}
	if _, parent, ok := strings.Cut(wanted, "."); ok && slices.Contains(c.names, "*."+parent) {
		return m.certificate("*."+parent, hello)
	}
	return nil
}

// Challenge implements extend.Certificates.
func (c *certificates) Challenge(hello *tls.ClientHelloInfo) *tls.Config {
	if m := c.part.now(); m != nil {
		return m.challenge(hello)
	}
	return nil
}

// Expires implements extend.Certificates.
func (c *certificates) Expires() (first time.Time) {
	m := c.part.now()
	if m == nil {
		return first
	}
	for _, name := range c.names {
		if end := m.expires(name); !end.IsZero() && (first.IsZero() || end.Before(first)) {
			first = end
		}
	}
	return first
}

// Dialer implements extend.Part.
func (p *part) Dialer(*config.Upstream) (extend.Dialer, bool) { return extend.Dialer{}, false }

// Carrier implements extend.Part.
func (p *part) Carrier(*config.Upstream) (listener string, ok bool) { return "", false }

// Retreats implements extend.Part.
func (p *part) Retreats(*config.Upstream) bool { return false }

// Registers implements extend.Part.
func (p *part) Registers() []extend.Register { return nil }

// Drain implements extend.Part.
func (p *part) Drain(_ context.Context, last bool) error {
	if m := p.now(); m != nil && last {
		m.close()
	}
	return nil
}

// Show implements extend.Part.
func (p *part) Show() []admin.Addition { return []admin.Addition{report.Of(rowsOf(p.now()))} }
