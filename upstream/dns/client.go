package dns

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	wire "github.com/miekg/dns"
)

// question is a question to servers; name is complete and in lower case.
type question struct {
	name string
	kind uint16 // wire.TypeA, TypeAAAA or TypeSRV
}

func (q question) String() string {
	return strings.TrimSuffix(q.name, ".") + " (" + strings.ToLower(wire.TypeToString[q.kind]) + ")"
}

// answer is a server's answer. One with neither addresses nor targets is not an error.
type answer struct {
	addrs   []netip.Addr
	targets []wire.SRV
	expires time.Time // within Config's bounds
}

func (a answer) none() bool { return len(a.addrs)+len(a.targets) == 0 }

// udpBytes is the largest answer requested over UDP: it passes any path without fragmentation, as the DNS Flag Day 2020
// recommends.
const udpBytes = 1232

// attempts is how often each server is asked before a question fails.
const attempts = 2

// ask returns the answer to a question: a known one that has not expired, or that of the first server that has one. err
// is the error of the last server asked.
func (s *Source) ask(ctx context.Context, servers []string, q question) (answer, error) {
	s.mu.Lock()
	known, first := s.known[q], s.first
	s.mu.Unlock()
	if time.Now().Before(known.expires) {
		return known, nil
	}
	var last error
	for i := range attempts * len(servers) {
		n := (first + i) % len(servers)
		a, err := s.askServer(ctx, servers[n], q)
		if err == nil {
			s.mu.Lock()
			s.first, s.known[q] = n, a
			s.mu.Unlock()
			return a, nil
		}
		if last = fmt.Errorf("server %s: %w", servers[n], err); ctx.Err() != nil {
			break
		}
	}
	return answer{}, fmt.Errorf("%s: %w", q, last)
}

// askServer asks one server over UDP. It asks again over TCP if the answer is truncated, and without EDNS if the server
// does not support EDNS.
func (s *Source) askServer(ctx context.Context, server string, q question) (answer, error) {
	m := new(wire.Msg)
	m.SetQuestion(q.name, q.kind)
	m.SetEdns0(udpBytes, false)
	r, err := s.exchange(ctx, "udp", server, m)
	if err == nil && (r.Rcode == wire.RcodeFormatError || r.Rcode == wire.RcodeNotImplemented) {
		m.Extra = nil
		r, err = s.exchange(ctx, "udp", server, m)
	}
	if err == nil && r.Truncated {
		r, err = s.exchange(ctx, "tcp", server, m)
	}
	if err != nil {
		return answer{}, err
	}
	switch {
	case r.Rcode == wire.RcodeNameError:
	case r.Rcode != wire.RcodeSuccess:
		return answer{}, fmt.Errorf("answered %s", wire.RcodeToString[r.Rcode])
	case len(r.Answer) == 0 && !r.Authoritative && !r.RecursionAvailable:
		return answer{}, errors.New("does not resolve names recursively: it refers to other servers")
	}
	return s.read(q, r), nil
}

// exchange sends a message and returns the answer to it. A truncated answer over UDP may be incomplete in any way.
func (s *Source) exchange(ctx context.Context, network, server string, m *wire.Msg) (*wire.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	client := &wire.Client{Net: network, Timeout: s.cfg.Timeout}
	conn, err := client.DialContext(ctx, server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	m.Id = wire.Id()
	r, _, err := client.ExchangeWithConnContext(ctx, m, conn)
	switch {
	case r != nil && network == "udp" && r.Truncated && r.Id == m.Id && r.Response:
		return r, nil
	case err != nil:
		return nil, err
	case !answers(r, m):
		return nil, errors.New("the answer does not match the question")
	}
	return r, nil
}

// answers reports whether r is an answer to m. A server that does not understand
// m need not repeat the question.
func answers(r, m *wire.Msg) bool {
	if r.Response && r.Rcode == wire.RcodeFormatError && len(r.Question) == 0 {
		return true
	}
	return r.Response && len(r.Question) == 1 && strings.EqualFold(r.Question[0].Name, m.Question[0].Name) &&
		r.Question[0].Qtype == m.Question[0].Qtype
}

// read returns the answer to q in a message, following aliases.
func (s *Source) read(q question, r *wire.Msg) answer {
	name, ttl := q.name, s.cfg.MaxTTL
	var a answer
	for range r.Answer { // each record is followed at most once, so that a cycle ends
		next := ""
		for _, rr := range r.Answer {
			if alias, ok := rr.(*wire.CNAME); ok && strings.EqualFold(rr.Header().Name, name) {
				next, ttl = alias.Target, min(ttl, lifetime(rr))
			}
		}
		if next == "" {
			break
		}
		name = next
	}
	for _, rr := range r.Answer {
		if !strings.EqualFold(rr.Header().Name, name) || rr.Header().Rrtype != q.kind {
			continue
		}
		ttl = min(ttl, lifetime(rr))
		switch rr := rr.(type) {
		case *wire.A:
			a.add(netip.AddrFromSlice(rr.A))
		case *wire.AAAA:
			a.add(netip.AddrFromSlice(rr.AAAA))
		case *wire.SRV:
			a.targets = append(a.targets, *rr)
		}
	}
	a.expires = time.Now().Add(max(ttl, s.cfg.MinTTL))
	if a.none() {
		a.expires = time.Now().Add(s.cfg.MinTTL) // the record may appear at any time
	}
	return a
}

func lifetime(rr wire.RR) time.Duration { return time.Duration(rr.Header().Ttl) * time.Second }

// add adds an address unless no other host can have it: connecting to 0.0.0.0 would reach this machine.
func (a *answer) add(addr netip.Addr, ok bool) {
	if addr = addr.Unmap(); ok && !addr.IsUnspecified() && !addr.IsMulticast() {
		a.addrs = append(a.addrs, addr)
	}
}
