package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	wire "github.com/miekg/dns"

	"github.com/headpond/headpond/upstream"
)

var _ upstream.Source = (*Source)(nil)

// maxPause bounds the pause after a failure. The pause begins at MinTTL and doubles.
const maxPause = 30 * time.Second

// Watch implements upstream.Source. It may run once at a time.
func (s *Source) Watch(ctx context.Context, report func([]upstream.Endpoint, error) error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := s.cfg.MinTTL
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		set, until, err := s.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		if report(set, err) != nil && len(set) == 0 {
			timer.Reset(pause)
			pause = max(min(2*pause, maxPause), s.cfg.MinTTL)
			continue
		}
		pause = s.cfg.MinTTL
		timer.Reset(time.Until(until))
	}
}

// lookup resolves the name; until is when the first part of the result expires. If it returns a set and an error, err
// names the parts of the set that are old.
func (s *Source) lookup(ctx context.Context) (set []upstream.Endpoint, until time.Time, err error) {
	r := &round{Source: s, used: map[question]bool{}}
	if s.cfg.Type == SRV {
		set, err = r.service(ctx)
	} else {
		var addrs []netip.Addr
		var name string
		addrs, name, err = r.host(ctx)
		for _, addr := range addrs {
			set = append(set, upstream.Endpoint{Address: net.JoinHostPort(addr.String(), s.port), Metadata: map[string]string{"name": name}})
		}
	}
	if err == nil {
		s.mu.Lock()
		maps.DeleteFunc(s.known, func(q question, _ answer) bool { return !r.used[q] })
		s.mu.Unlock()
	}
	if r.until.IsZero() { // nothing was looked up
		r.until = time.Now().Add(s.cfg.MaxTTL)
	}
	return ordered(set), r.until, err
}

// ordered sorts a set, because servers shuffle it, and removes duplicates.
func ordered(set []upstream.Endpoint) []upstream.Endpoint {
	slices.SortFunc(set, func(a, b upstream.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Weight, a.Weight),
			cmp.Compare(a.Metadata["name"], b.Metadata["name"]))
	})
	set = slices.CompactFunc(set, func(a, b upstream.Endpoint) bool { return a.Address == b.Address })
	slices.SortStableFunc(set, func(a, b upstream.Endpoint) int { return cmp.Compare(a.Priority, b.Priority) })
	return set
}

// round is one resolution of everything.
type round struct {
	*Source
	used  map[question]bool // guarded by Source.mu, like until
	until time.Time         // zero until something was found or has failed
}

// host finds the addresses of the name, in the hosts file or the DNS, and returns the complete name that has them.
func (r *round) host(ctx context.Context) (addrs []netip.Addr, name string, err error) {
	if addrs, err = r.inHosts(r.name, r.cfg.Type); err != nil || len(addrs) > 0 {
		return addrs, r.name, err
	}
	conf, err := r.system()
	if err != nil {
		return nil, "", err
	}
	for _, name := range conf.NameList(r.name) {
		addrs, err = r.addresses(ctx, conf.Servers, name, r.cfg.Type)
		if err != nil || len(addrs) > 0 {
			return addrs, strings.TrimSuffix(name, "."), err
		}
	}
	return nil, "", fmt.Errorf("%s: no such host", r.name)
}

// inHosts looks a name up in the hosts file. What it finds is valid for MinTTL, so that changes of the file are noticed
// soon.
func (r *round) inHosts(name string, t Type) ([]netip.Addr, error) {
	addrs, err := r.hosts(name)
	addrs = slices.DeleteFunc(addrs, func(a netip.Addr) bool { return t == A && !a.Is4() || t == AAAA && a.Is4() })
	if soon := time.Now().Add(r.cfg.MinTTL); len(addrs) > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lasts(soon)
	}
	return addrs, err
}

// lasts records that a part of the result is valid until t. The next round begins when the first
// part expires: an earlier round would return the same result.
func (r *round) lasts(t time.Time) {
	if r.until.IsZero() || t.Before(r.until) {
		r.until = t
	}
}

// addresses asks for the addresses of a complete name. For addresses that cannot be resolved it returns the last known
// ones, with an error. It is no error if none were known and the other kind was found, because some servers never
// answer questions for AAAA.
func (r *round) addresses(ctx context.Context, servers []string, name string, t Type) ([]netip.Addr, error) {
	kinds := map[Type][]uint16{A: {wire.TypeA}, AAAA: {wire.TypeAAAA}}[t]
	if kinds == nil {
		kinds = []uint16{wire.TypeA, wire.TypeAAAA}
	}
	answers, errs := make([]answer, len(kinds)), make([]error, len(kinds))
	var wg sync.WaitGroup
	for i, kind := range kinds {
		wg.Go(func() { answers[i], errs[i] = r.get(ctx, servers, question{strings.ToLower(name), kind}) })
	}
	wg.Wait()
	var addrs []netip.Addr
	var err error
	for i, a := range answers {
		addrs = append(addrs, a.addrs...)
		if errs[i] != nil && len(a.addrs) > 0 {
			err = errs[i]
		}
	}
	if len(addrs) == 0 {
		return nil, errors.Join(errs...)
	}
	if len(kinds) > 1 {
		addrs = routed(addrs)
	}
	return addrs, err
}

// get asks; on an error it also returns the previous answer.
func (r *round) get(ctx context.Context, servers []string, q question) (answer, error) {
	a, err := r.ask(ctx, servers, q)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[q] = true
	if err != nil {
		a = r.known[q]
		a.expires = time.Now().Add(r.cfg.MinTTL)
	}
	r.lasts(a.expires)
	return a, err
}

// routed removes addresses to which this machine has no route, unless that would remove all: many machines have no
// IPv6.
func routed(addrs []netip.Addr) []netip.Addr {
	reachable := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool {
		c, err := net.Dial("udp", netip.AddrPortFrom(a, 9).String()) // sends nothing
		if err != nil {
			return true
		}
		_ = c.Close()
		return false
	})
	if len(reachable) == 0 {
		return addrs
	}
	return reachable
}

// maxTargets bounds the targets of a service, maxLookups the concurrent look-ups.
const (
	maxTargets = 500
	maxLookups = 8
)

// service finds the targets of a SRV record and their addresses.
func (r *round) service(ctx context.Context) ([]upstream.Endpoint, error) {
	conf, err := r.system()
	if err != nil {
		return nil, err
	}
	var targets []wire.SRV
	for _, name := range conf.NameList(r.name) {
		a, err := r.get(ctx, conf.Servers, question{strings.ToLower(name), wire.TypeSRV})
		if err != nil {
			return nil, err
		}
		if targets = a.targets; len(targets) > 0 {
			break
		}
	}
	switch {
	case len(targets) == 0:
		return nil, fmt.Errorf("%s: no such service", r.name)
	case len(targets) > maxTargets:
		return nil, fmt.Errorf("%s: %d targets; at most %d are possible", r.name, len(targets), maxTargets)
	}
	sets, errs := make([][]upstream.Endpoint, len(targets)), make([]error, len(targets))
	free := make(chan struct{}, maxLookups)
	var wg sync.WaitGroup
	for i, target := range targets {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			sets[i], errs[i] = r.target(ctx, conf.Servers, &target)
		})
	}
	wg.Wait()
	return slices.Concat(sets...), errors.Join(errs...)
}

// target returns the endpoints of one target; if it cannot be resolved now, the last known ones.
func (r *round) target(ctx context.Context, servers []string, srv *wire.SRV) (set []upstream.Endpoint, err error) {
	if srv.Target == "." || srv.Port == 0 {
		return nil, fmt.Errorf("%s: the SRV record says that the service is not available", r.name)
	}
	addrs, err := r.inHosts(srv.Target, Any)
	if err == nil && len(addrs) == 0 {
		if addrs, err = r.addresses(ctx, servers, srv.Target, Any); err == nil && len(addrs) == 0 {
			err = fmt.Errorf("%s: no such host", srv.Target)
		}
	}
	for _, addr := range addrs {
		set = append(set, upstream.Endpoint{
			Address: net.JoinHostPort(addr.String(), strconv.Itoa(int(srv.Port))), Weight: max(1, int(srv.Weight)), Priority: int(srv.Priority),
			Metadata: map[string]string{"name": strings.TrimSuffix(srv.Target, ".")},
		})
	}
	return set, err
}
