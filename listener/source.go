package listener

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/headpond/headpond/internal/ratelimit"
)

// Why a connection is not served because of its source. All wrap ErrRejected.
var (
	ErrDenied     = fmt.Errorf("%w: its address may not connect", ErrRejected)
	ErrSourceFull = fmt.Errorf("%w: its address has too many connections", ErrRejected)
	ErrSourceRate = fmt.Errorf("%w: its address connects too often", ErrRejected)
)

// Rate limits new connections: a burst of Connections, and then one every Per/Connections. The zero
// value has no limit.
type Rate struct {
	Connections int
	Per         time.Duration // 0 = a second
}

// source is what limits by address count: an IPv4 address, or the /64 network of an IPv6 address,
// because one client can use all addresses of a /64.
type source [16]byte

// addressOf returns the IP address alone, in its IPv4 form if it has one. It returns the zero Addr for clients without
// an IP address, such as those of a Unix socket.
func addressOf(a net.Addr) netip.Addr {
	var from net.IP
	switch a := a.(type) {
	case *net.TCPAddr:
		from = a.IP
	case *net.UDPAddr:
		from = a.IP
	}
	ip, _ := netip.AddrFromSlice(from)
	return ip.Unmap()
}

// sourceOf returns the source of an address that addressOf has returned.
func sourceOf(ip netip.Addr) source {
	src := source(ip.As16())
	if ip.Is6() {
		clear(src[8:])
	}
	return src
}

// plainPrefixes converts IPv4-mapped IPv6 prefixes to IPv4 prefixes, the form in which addresses
// are compared.
func plainPrefixes(list []netip.Prefix) []netip.Prefix {
	out := make([]netip.Prefix, len(list))
	for i, p := range list {
		const mapped = 96 // bits of ::ffff:0:0/96
		if p.Addr().Is4In6() && p.Bits() >= mapped {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
		}
		out[i] = p
	}
	return out
}

// Addresses says which client addresses may pass: those in Allow (all if Allow is empty), except those in Deny.
type Addresses struct{ Allow, Deny []netip.Prefix }

// Empty reports whether every address may pass.
func (a Addresses) Empty() bool { return len(a.Allow)+len(a.Deny) == 0 }

// Plain returns a copy for Admit, in which IPv4-mapped IPv6 prefixes are IPv4 prefixes.
func (a Addresses) Plain() Addresses { return Addresses{plainPrefixes(a.Allow), plainPrefixes(a.Deny)} }

// Admit reports whether an address may pass. IPv4 addresses must be in their IPv4 form (netip.Addr.Unmap), and a must be Plain.
func (a Addresses) Admit(ip netip.Addr) bool {
	return !Within(a.Deny, ip) && (len(a.Allow) == 0 || Within(a.Allow, ip))
}

// Within reports whether one of the prefixes contains the address.
func Within(list []netip.Prefix, ip netip.Addr) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// limitsSources reports whether there are limits by client address.
func (c *Config) limitsSources() bool {
	return len(c.Allow) > 0 || len(c.Deny) > 0 || c.MaxConnsPerSource > 0 || c.ConnectionRate.Connections > 0
}

// sources is the table of client sources with open connections or recent connection attempts.
type sources struct {
	rates ratelimit.Table[source] // has its own mutex
	mu    sync.Mutex              // held for a few instructions
	open  map[source]int          // counted connections
}

// connect counts a new connection for the rate of its source.
func (s *sources) connect(src source, rate Rate, now time.Duration) error {
	if rate.Connections > 0 && s.rates.Take(src, ratelimit.Rate{Count: rate.Connections, Per: rate.Per}, now) > 0 {
		return ErrSourceRate
	}
	return nil
}

// admit counts an open connection. counted says that release must be called.
func (s *sources) admit(src source, maxConns int) (counted bool, err error) {
	if maxConns <= 0 {
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[src] >= maxConns {
		return false, ErrSourceFull
	}
	if s.open == nil {
		s.open = make(map[source]int)
	}
	s.open[src]++
	return true, nil
}

// count returns the number of counted connections.
func (s *sources) count(src source) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[src]
}

// release uncounts a connection.
func (s *sources) release(src source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[src]--; s.open[src] <= 0 {
		delete(s.open, src)
	}
}

// checkAddress checks the client's address against Allow and Deny, and counts the connection for
// the rate of its source. It is called once for each connection, when the address is known: by the
// accept loop, or after the PROXY header.
func (s *Server) checkAddress(ip netip.Addr, cfg *Config) error {
	if !ip.IsValid() || !cfg.limitsSources() {
		return nil
	}
	if !(Addresses{cfg.Allow, cfg.Deny}).Admit(ip) {
		return ErrDenied
	}
	return s.sources.connect(sourceOf(ip), cfg.ConnectionRate, time.Since(began))
}

// Foresee returns the error with which a connection from an address would be refused now because of
// its source, or nil. pending is the number of connections from the same source that are not
// accepted yet. Foresee is for listeners that know of a client before they can accept its
// connection, such as QUIC's, which do not make a connection that would be refused. A refusal is
// counted and logged like that of a connection. Otherwise nothing is counted before the connection
// is accepted, because the address may be forged.
func (s *Server) Foresee(from net.Addr, pending int) error {
	cfg, ip := s.config(), addressOf(from)
	if !ip.IsValid() || !cfg.limitsSources() {
		return nil
	}
	err := s.foresee(ip, cfg, pending)
	if err != nil {
		s.accepted.Add(1)
		s.refuseSource(from.String(), err)
	}
	return err
}

func (s *Server) foresee(ip netip.Addr, cfg *Config, pending int) error {
	src, rate := sourceOf(ip), cfg.ConnectionRate
	switch {
	case !(Addresses{cfg.Allow, cfg.Deny}).Admit(ip):
		return ErrDenied
	case rate.Connections > 0 && s.sources.rates.Left(src, ratelimit.Rate{Count: rate.Connections, Per: rate.Per}, time.Since(began)) <= pending:
		return ErrSourceRate
	case cfg.MaxConnsPerSource > 0 && s.sources.count(src)+pending >= cfg.MaxConnsPerSource:
		return ErrSourceFull
	}
	return nil
}

// checkSource calls checkAddress, unless addressChecked says that it was called, and counts the
// connection as open. It returns an error if the connection is refused.
func (s *Server) checkSource(c *Conn, cfg *Config, addressChecked bool) error {
	if !cfg.limitsSources() {
		return nil
	}
	ip := addressOf(c.RemoteAddr())
	if !addressChecked {
		if err := s.checkAddress(ip, cfg); err != nil {
			return err
		}
	}
	if cfg.MaxConnsPerSource == 0 || !ip.IsValid() {
		return nil
	}
	counted, err := s.sources.admit(sourceOf(ip), cfg.MaxConnsPerSource)
	if counted {
		c.flags.Or(connCounted)
	}
	return err
}

// uncount undoes the count of checkSource; a second call does nothing.
func (s *Server) uncount(c *Conn) {
	if c.flags.And(^connCounted)&connCounted == 0 {
		return
	}
	s.sources.release(sourceOf(addressOf(c.RemoteAddr())))
}

// refuseSource counts and logs a connection that was refused because of its source.
func (s *Server) refuseSource(client string, err error) {
	s.rejected.Add(1)
	reason := ReasonDenied
	switch err { //nolint:errorlint // the errors of checkAddress and checkSource
	case ErrSourceFull:
		reason = ReasonSourceFull
	case ErrSourceRate:
		reason = ReasonSourceRate
	}
	s.Report(reason, slog.LevelInfo, "connection refused", "client", client, "error", err)
}

// refuse calls refuseSource, and prepares the connection for Close: the client gets the reason, or
// a reset. After a reset the kernel keeps no state, however many connections are refused.
func (s *Server) refuse(c *Conn, err error) {
	s.refuseSource(c.RemoteAddr().String(), err)
	if s.getsReason(err) {
		s.explain(c, err)
		return
	}
	_ = c.SetLinger(0)
}

// getsReason reports whether a refused client gets the reason. A client with too many connections
// does, because it need not be an attacker.
func (s *Server) getsReason(err error) bool {
	_, ok := s.handler.(Rejecter)
	return ok && err == ErrSourceFull //nolint:errorlint // checkSource's own
}
