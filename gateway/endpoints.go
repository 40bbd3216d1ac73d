package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/upstream"
)

// ChangeEndpoint overrides the configuration, or the source, of one endpoint of an upstream. The change lasts until it
// is reverted or the gateway ends; unless Keep is set, a reload reverts it, too. The error wraps admin.ErrUnknown if
// there is no such upstream or endpoint, and ErrClosed while the gateway starts or ends; on an error nothing has
// changed.
func (g *Gateway) ChangeEndpoint(name string, c upstream.Change) error {
	if !g.lockRunning() {
		return errNoChange
	}
	defer g.reloading.Unlock()
	b, err := g.backendNamed(name)
	if err != nil {
		return err
	}
	of, ok := b.impl.(extend.Changeable)
	if !ok {
		return fmt.Errorf("upstream %q: endpoints of protocol %s cannot be changed", name, b.cfg.Protocol)
	}
	if c.Action == upstream.AddEndpoint {
		if err := g.mayAdd(b, c.Endpoint.Address); err != nil {
			return fmt.Errorf("upstream %q: endpoint %q: %w", name, config.Clip(c.Endpoint.Address), err)
		}
	}
	err = of.ChangeEndpoint(c)
	if errors.Is(err, upstream.ErrUnknownEndpoint) {
		return fmt.Errorf("upstream %q: %w", name, unknown("endpoint", c.Endpoint.Address, of.EndpointNames()))
	}
	if err != nil {
		return err
	}
	args := []any{"upstream", name, "endpoint", c.Endpoint.Address, "action", string(c.Action), "kept_over_reloads", c.Keep}
	if c.Endpoint.Weight > 0 {
		args = append(args, "weight", c.Endpoint.Weight)
	}
	g.logger.Info("endpoint changed by an operator", args...)
	return nil
}

// backendNamed returns an upstream. The error wraps admin.ErrUnknown. g.reloading is held.
func (g *Gateway) backendNamed(name string) (*backend, error) {
	names := make([]string, len(g.backends))
	for i, b := range g.backends {
		if names[i] = b.cfg.Name; names[i] == name {
			return b, nil
		}
	}
	return nil, unknown("upstream", name, names)
}

var errNoChange = fmt.Errorf("%w: no endpoint can be changed now", ErrClosed)

// unknown returns the error for a name that no object of this kind has.
func unknown(kind, name string, known []string) error {
	hint := ""
	if closest := config.Closest(name, known); closest != "" {
		hint = fmt.Sprintf("; did you mean %q?", closest)
	} else if len(known) > 0 {
		hint = "; there are " + config.Clip(strings.Join(known, ", "))
	}
	return fmt.Errorf("%w: unknown %s %q%s", admin.ErrUnknown, kind, config.Clip(name), hint)
}

// mayAdd returns why an address cannot be an endpoint of an upstream. g.reloading is held.
func (g *Gateway) mayAdd(b *backend, endpoint string) error {
	if err := config.CheckEndpoint(endpoint); err != nil {
		return err
	}
	for _, s := range g.services {
		if b.cfg.Far() || !slices.Contains(s.cfg.Upstreams(), b.cfg.Name) {
			continue
		}
		if at := address(s.socket); endpoint == at || config.Loopback(endpoint) && config.Overlap(endpoint, at) {
			return fmt.Errorf("it is listener %q itself, which uses this upstream", s.cfg.Name)
		}
	}
	return nil
}

// overrides returns the operators' changes; b may be nil.
func (b *backend) overrides() []upstream.Override {
	if b == nil {
		return nil
	}
	if of, ok := b.impl.(extend.Changeable); ok {
		return of.Overrides()
	}
	return nil
}

// kept returns the operators' changes that a reload keeps; b may be nil.
func (b *backend) kept() []upstream.Override {
	return slices.DeleteFunc(b.overrides(), func(o upstream.Override) bool { return !o.Keep })
}

// temporary lists the endpoints whose changes by operators a reload takes back.
func (b *backend) temporary() (addresses []string) {
	for _, o := range b.overrides() {
		if !o.Keep {
			addresses = append(addresses, o.Address)
		}
	}
	return addresses
}
