package listener

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Why a connection is not served because of its source. All wrap ErrRejected.
var (
	ErrDenied     = fmt.Errorf("%w: its address may not connect", ErrRejected)
	ErrSourceFull = fmt.Errorf("%w: its address has too many connections", ErrRejected)
	ErrSourceRate = fmt.Errorf("%w: its address connects too often", ErrRejected)
)

// Rate is how many connections may be made within a time: Connections at once after a pause, and then one more each Per/Connections. The zero
// value has no limit.
type Rate struct {
	Connections int
	Per         time.Duration // 0 = a second
}

// A source is the unit of limits by address: an IPv4 address, or the /64 of an IPv6 address, because its owner can use
// any address of it.
type source [16]byte

// sourceOf returns the source of an address, and the address alone, in its IPv4 form if it has one. ok is false where there is none, as for
// the clients of a Unix socket.
func sourceOf(a net.Addr) (src source, ip netip.Addr, ok bool) {
	var from net.IP
	switch a := a.(type) {
	case *net.TCPAddr:
		from = a.IP
	case *net.UDPAddr:
		from = a.IP
	}
	if ip, ok = netip.AddrFromSlice(from); !ok {
		return src, ip, false
	}
	ip = ip.Unmap()
	src = ip.As16()
	if ip.Is6() {
		clear(src[8:])
	}
	return src, ip, true
}

// plainPrefixes returns prefixes of IPv4 addresses written as IPv6 ones in their IPv4 form, in which addresses are compared.
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

func within(list []netip.Prefix, ip netip.Addr) bool {
	for _, p := range list {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

// limitsSources reports whether it matters where a client comes from.
func (c *Config) limitsSources() bool {
	return len(c.Allow) > 0 || len(c.Deny) > 0 || c.MaxConnsPerSource > 0 || c.ConnectionRate.Connections > 0
}

// maxSources is how many sources' rates are known, in two halves. They take about 3 MiB. When there are more within Rate.Per, as in a flood
// from everywhere, the oldest are forgotten and may connect as if they came for the first time; MaxConns and the queue bound these.
const maxSources = 1 << 16

// sources is the table of client sources. It holds those with open connections, and at most maxSources in all.
type sources struct {
	mu   sync.Mutex     // held for a few instructions
	open map[source]int // connections that are counted
	// due is when a source has used nothing of its rate any more, in nanoseconds since the program began; older is due before turned.
	due, older map[source]int64
	turned     int64
}

// admit counts a connection that is made now, or says why it must not be. counted says that release must be called.
func (s *sources) admit(src source, maxConns int, rate Rate, now time.Duration) (counted bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if rate.Connections > 0 && !s.withinRate(src, rate, int64(now)) {
		return false, ErrSourceRate
	}
	if maxConns <= 0 {
		return false, nil
	}
	if s.open[src] >= maxConns {
		return false, ErrSourceFull
	}
	if s.open == nil {
		s.open = make(map[source]int)
	}
	s.open[src]++
	return true, nil
}

// release ends the count of a connection.
func (s *sources) release(src source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[src]--; s.open[src] <= 0 {
		delete(s.open, src)
	}
}

// withinRate is the generic cell rate algorithm: each connection moves the time at which the source has used nothing any more one step
// further, and that time is never more than rate.Per away. mu is held.
func (s *sources) withinRate(src source, rate Rate, now int64) bool {
	per := int64(rate.Per)
	step := max(per/int64(rate.Connections), 1)
	if s.due == nil || len(s.due) >= maxSources/2 || now-s.turned > per { // entries of older have been due by then, or are forgotten
		if s.due, s.older = s.older, s.due; s.due == nil {
			s.due = make(map[source]int64)
		}
		clear(s.due)
		s.turned = now
	}
	due, ok := s.due[src]
	if !ok {
		due = s.older[src]
	}
	if due = max(due, now); due-now > per-step {
		return false
	}
	s.due[src] = due + step
	return true
}

// checkSource refuses a connection because of its client's address, or counts it. It is called once for each connection, when that address
// is known, by the accept loop or the connection's own goroutine or fiber.
func (s *Server) checkSource(c *Conn, cfg *Config) error {
	if !cfg.limitsSources() {
		return nil
	}
	src, ip, ok := sourceOf(c.RemoteAddr())
	switch {
	case !ok:
		return nil
	case within(cfg.Deny, ip), len(cfg.Allow) > 0 && !within(cfg.Allow, ip):
		return ErrDenied
	case cfg.MaxConnsPerSource == 0 && cfg.ConnectionRate.Connections == 0:
		return nil
	}
	counted, err := s.sources.admit(src, cfg.MaxConnsPerSource, cfg.ConnectionRate, time.Since(began))
	if counted {
		c.flags.Or(connCounted)
	}
	return err
}

// uncount takes back the count of checkSource; a second call does nothing.
func (s *Server) uncount(c *Conn) {
	if c.flags.And(^connCounted)&connCounted == 0 {
		return
	}
	if src, _, ok := sourceOf(c.RemoteAddr()); ok {
		s.sources.release(src)
	}
}

// refuseSource accounts for a connection that checkSource refused. Unless the client gets the reason, the connection is
// reset, so that it leaves no state behind in a flood.
func (s *Server) refuseSource(c *Conn, err error) {
	s.rejected.Add(1)
	reason := ReasonDenied
	switch err { //nolint:errorlint // checkSource's own
	case ErrSourceFull:
		reason = ReasonSourceFull
	case ErrSourceRate:
		reason = ReasonSourceRate
	}
	s.Report(reason, slog.LevelInfo, "connection refused", "client", c.RemoteAddr().String(), "reason", reason, "error", err)
	if s.tells(err) {
		s.explain(c, err)
		return
	}
	_ = c.SetLinger(0)
}

// tells reports whether a refused client gets the reason: a client with too many connections may be honest.
func (s *Server) tells(err error) bool {
	_, ok := s.handler.(Rejecter)
	return ok && err == ErrSourceFull //nolint:errorlint // checkSource's own
}
