package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
)

// DefaultDialTimeout bounds the dialling of one target.
const DefaultDialTimeout = 5 * time.Second

// Policy decides which targets this side connects to for the other one. The zero Policy refuses
// everything.
type Policy struct {
	// Upstreams are the targets "upstream:name". The connection is closed when the stream ends;
	// with a CloseWrite method it can be half closed. Caller returns the asking peer from the
	// context; an error that wraps ErrBusy asks it to try again later.
	Upstreams map[string]func(ctx context.Context) (net.Conn, error)
	// Allow are the targets that are dialled by address.
	Allow []Rule
	// Dial connects to an allowed address; nil uses package net. If a rule for addresses allowed
	// the target, its name has been replaced by the address found.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Timeout bounds connecting; 0 = DefaultDialTimeout.
	Timeout time.Duration
}

// UpstreamPrefix begins a target that names an upstream of the far side.
const UpstreamPrefix = "upstream:"

// maxAddresses bounds how many addresses of a name are tried.
const maxAddresses = 8

// callerKey is the key of the caller's name in contexts.
type callerKey struct{}

// Caller returns the name of the peer for which a function of a Policy connects, with the context that the function has got.
func Caller(ctx context.Context) string {
	name, _ := ctx.Value(callerKey{}).(string)
	return name
}

// patience bounds connecting.
func (p *Policy) patience() time.Duration { return cmp.Or(p.Timeout, DefaultDialTimeout) }

// connect connects to a target if the policy allows it. The error wraps ErrRefused,
// ErrBusy or ErrUnreachable.
func (p *Policy) connect(ctx context.Context, target string) (net.Conn, error) {
	timeout := p.patience()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c, err := p.choose(ctx, target)
	switch {
	case err == nil || errors.Is(err, ErrRefused) || errors.Is(err, ErrBusy):
		return c, err
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, refuse(ErrUnreachable, "%s: no connection within %v", target, timeout)
	}
	return nil, refuse(ErrUnreachable, "%s: %v", target, err)
}

func (p *Policy) choose(ctx context.Context, target string) (net.Conn, error) {
	if name, ok := strings.CutPrefix(target, UpstreamPrefix); ok {
		dial := p.Upstreams[name]
		if dial == nil {
			return nil, refuse(ErrRefused, "no upstream %q is open to this tunnel", name)
		}
		return dial(ctx)
	}
	network, address, err := netaddr.Split(target)
	if err != nil {
		return nil, refuse(ErrRefused, "%v", err)
	}
	if network == "unix" {
		if !slices.ContainsFunc(p.Allow, func(r Rule) bool { return r.socket == address }) {
			return nil, p.denied(target)
		}
		return p.dial(ctx, target)
	}
	return p.chooseTCP(ctx, target)
}

// chooseTCP checks the host as written first, and then its addresses: only a checked address is
// dialled.
func (p *Policy) chooseTCP(ctx context.Context, target string) (net.Conn, error) {
	host, portText, _ := net.SplitHostPort(target)
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || n == 0 || host == "" {
		return nil, refuse(ErrRefused, "%q cannot be dialled", target)
	}
	port := uint16(n)
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" || !p.allows(ip, port) {
			return nil, p.denied(target)
		}
		return p.dial(ctx, netip.AddrPortFrom(ip.Unmap(), port).String())
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if slices.ContainsFunc(p.Allow, func(r Rule) bool { return r.host == name && r.port(port) }) {
		return p.dial(ctx, target)
	}
	if !slices.ContainsFunc(p.Allow, func(r Rule) bool { return r.prefix.IsValid() && r.port(port) }) {
		return nil, p.denied(target)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	ips = slices.DeleteFunc(ips, func(ip netip.Addr) bool { return !p.allows(ip, port) })
	if len(ips) == 0 {
		return nil, p.denied(target)
	}
	return p.dialFirst(ctx, ips[:min(len(ips), maxAddresses)], port)
}

func (p *Policy) dialFirst(ctx context.Context, ips []netip.Addr, port uint16) (net.Conn, error) {
	var errs []error
	for _, ip := range ips {
		c, err := p.dial(ctx, netip.AddrPortFrom(ip.Unmap(), port).String())
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func (p *Policy) dial(ctx context.Context, address string) (net.Conn, error) {
	if p.Dial != nil {
		return p.Dial(ctx, address)
	}
	return netaddr.Dial(ctx, address)
}

func (p *Policy) denied(target string) error {
	return refuse(ErrRefused, "%s is not allowed; the far side must list it under \"allow\", or name an upstream", strconv.Quote(target))
}

func (p *Policy) allows(ip netip.Addr, port uint16) bool {
	ip = ip.Unmap()
	return slices.ContainsFunc(p.Allow, func(r Rule) bool {
		return r.prefix.IsValid() && r.prefix.Contains(ip) && r.port(port)
	})
}

// Rule is a pattern of addresses that may be dialled. Make one with ParseRule.
type Rule struct {
	text   string
	socket string       // path of a Unix socket
	host   string       // a name, in lower case, taken literally
	prefix netip.Prefix // addresses
	low    uint16       // ports
	high   uint16
}

// ParseRule reads a pattern: "host:port", where host is a name that is compared as it is written,
// an IP address, or a prefix of addresses ("10.0.0.0/8:5432", "[2001:db8::/32]:443"), and port a
// number, a range ("8000-8080") or "*"; or "unix:/path". A prefix also allows names, for their
// addresses within it. The error wraps ErrConfig.
func ParseRule(text string) (Rule, error) {
	bad := func(format string, args ...any) (Rule, error) {
		return Rule{}, fmt.Errorf("%w: rule %q: %s", ErrConfig, text, fmt.Sprintf(format, args...))
	}
	r := Rule{text: text}
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if !strings.HasPrefix(path, "/") {
			return bad("want an absolute path after \"unix:\"")
		}
		r.socket = path
		return r, nil
	}
	host, ports, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return bad("want host:port, CIDR:port or unix:/path")
	}
	if r.low, r.high, err = parsePorts(ports); err != nil {
		return bad("%v", err)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Zone() == "" {
		ip = ip.Unmap()
		r.prefix = netip.PrefixFrom(ip, ip.BitLen())
		return r, nil
	}
	if strings.Contains(host, "/") {
		if r.prefix, err = netip.ParsePrefix(host); err != nil {
			return bad("%q is no prefix of addresses such as 10.0.0.0/8", host)
		}
		if r.prefix.Addr().Is4In6() {
			return bad("write a prefix of IPv4 addresses as such: it would match nothing")
		}
		if r.prefix != r.prefix.Masked() {
			return bad("the address has bits beyond its prefix; did you mean %q?", net.JoinHostPort(r.prefix.Masked().String(), ports))
		}
		return r, nil
	}
	for _, c := range host {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && !strings.ContainsRune("-_.", c) {
			return bad("%q cannot be in a host name; there are no wildcards for names, 0.0.0.0/0 and [::/0] are all addresses", c)
		}
	}
	r.host = strings.ToLower(strings.TrimSuffix(host, "."))
	return r, nil
}

// MustParseRule is ParseRule for text known to be right; it panics otherwise.
func MustParseRule(text string) Rule {
	r, err := ParseRule(text)
	if err != nil {
		panic(err)
	}
	return r
}

func parsePorts(text string) (low, high uint16, err error) {
	if text == "*" {
		return 1, 65535, nil
	}
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 16)
	b, errB := strconv.ParseUint(to, 10, 16)
	if errA != nil || errB != nil || a < 1 || a > b {
		return 0, 0, fmt.Errorf("port %q: want a number from 1 to 65535, a range such as 8000-8080, or \"*\"", text)
	}
	return uint16(a), uint16(b), nil
}

func (r Rule) port(p uint16) bool { return r.low <= p && p <= r.high }

// String is the pattern as it was written.
func (r Rule) String() string { return r.text }

// CheckTarget returns an error that wraps ErrConfig if Open would refuse the target as malformed.
// Whether the far side allows it is another question.
func CheckTarget(target string) error {
	if name, ok := strings.CutPrefix(target, UpstreamPrefix); ok {
		if name == "" {
			return fmt.Errorf("%w: target %q: no name after %q", ErrConfig, target, UpstreamPrefix)
		}
	} else if _, _, err := netaddr.Split(target); err != nil {
		return fmt.Errorf("%w: target: %w", ErrConfig, err)
	}
	if len(target) > maxTarget {
		return fmt.Errorf("%w: target of %d characters, want at most %d", ErrConfig, len(target), maxTarget)
	}
	return nil
}

// maxTarget is the longest name of a stream.
const maxTarget = 512
