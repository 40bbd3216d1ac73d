package dns

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	wire "github.com/miekg/dns"
)

// Defaults of Config, used where a field is zero.
const (
	DefaultMinTTL  = 5 * time.Second
	DefaultMaxTTL  = 5 * time.Minute
	DefaultTimeout = 2 * time.Second
)

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("dns: invalid configuration")

// Type says which records to ask for.
type Type int

// The types of records.
const (
	Any  Type = iota // A and AAAA; addresses without a route are left out if there are others
	A                // IPv4
	AAAA             // IPv6
	SRV              // targets with ports, priorities and weights, and their addresses as with Any
)

var typeNames = [...]string{Any: "any", A: "a", AAAA: "aaaa", SRV: "srv"}

// String returns the name that ParseType parses.
func (t Type) String() string {
	if t < 0 || int(t) >= len(typeNames) {
		return fmt.Sprintf("type(%d)", int(t))
	}
	return typeNames[t]
}

// ParseType reads "any" (or the empty string), "a", "aaaa" and "srv". The error
// wraps ErrConfig.
func ParseType(s string) (Type, error) {
	for t, name := range typeNames {
		if s == name || s == "" {
			return Type(t), nil
		}
	}
	return Any, fmt.Errorf("%w: type %q is not one of any, a, aaaa, srv", ErrConfig, s)
}

// Config describes a Source. Name is required.
type Config struct {
	// Name is "host:port"; with SRV the name of the record, such as "_postgres._tcp.db.internal". A host that ends in a
	// dot is complete; search domains apply to any other.
	Name string
	Type Type
	// Servers are the servers to ask, in order, as "address" or "address:port"; nil = those of ResolvConf.
	Servers []string
	// MinTTL and MaxTTL bound the time until a name is resolved again, whatever the answer's time to live; 0 =
	// DefaultMinTTL, DefaultMaxTTL.
	MinTTL, MaxTTL time.Duration
	// Timeout bounds one question to one server; 0 = DefaultTimeout. Each server is asked twice.
	Timeout time.Duration
	// Hosts and ResolvConf are the files to read; "" = /etc/hosts and /etc/resolv.conf. A missing file counts as empty.
	Hosts, ResolvConf string
}

// Source is an upstream.Source. Make one with New.
type Source struct {
	cfg  Config
	name string // as given, without the port
	port string // "" with SRV

	mu    sync.Mutex // guards the fields below, because questions are concurrent
	first int        // index of the server that last answered
	known map[question]answer
}

// New checks cfg; it does not ask a server. The error wraps ErrConfig.
func New(cfg Config) (*Source, error) {
	cfg.MinTTL = cmp.Or(cfg.MinTTL, DefaultMinTTL)
	cfg.MaxTTL = max(cmp.Or(cfg.MaxTTL, DefaultMaxTTL), cfg.MinTTL)
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.Hosts = cmp.Or(cfg.Hosts, "/etc/hosts")
	cfg.ResolvConf = cmp.Or(cfg.ResolvConf, "/etc/resolv.conf")
	s := &Source{cfg: cfg, known: map[question]answer{}}
	if cfg.Type < Any || cfg.Type > SRV {
		return nil, fmt.Errorf("%w: unknown %v", ErrConfig, cfg.Type)
	}
	if cfg.MinTTL < 0 || cfg.Timeout < 0 {
		return nil, fmt.Errorf("%w: MinTTL and Timeout must not be negative", ErrConfig)
	}
	var err error
	if s.name, s.port, err = SplitName(cfg.Name, cfg.Type); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	s.cfg.Servers = nil
	for _, server := range cfg.Servers {
		server, err := ServerAddress(server)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		s.cfg.Servers = append(s.cfg.Servers, server)
	}
	return s, nil
}

// SplitName checks a Config.Name and returns its parts; port is "" with SRV.
func SplitName(name string, t Type) (host, port string, err error) {
	if t == SRV {
		if _, _, err := net.SplitHostPort(name); err == nil {
			return "", "", fmt.Errorf("%q: SRV records contain the ports; remove %q", name, name[strings.LastIndexByte(name, ':'):])
		}
		return name, "", checkHost(name)
	}
	host, port, err = net.SplitHostPort(name)
	if err != nil {
		return "", "", fmt.Errorf("%q: want host:port", name)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("%q: the port is not a number from 1 to 65535", name)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", "", fmt.Errorf("%q: is an address, not a name", name)
	}
	return host, port, checkHost(host)
}

func checkHost(host string) error {
	if _, ok := wire.IsDomainName(host); !ok || host == "" || host == "." || strings.ContainsAny(host, " \\/:") {
		return fmt.Errorf("%q: is not a valid DNS name", host)
	}
	return nil
}

// ServerAddress checks one of Config.Servers and adds the port if there is none.
func ServerAddress(server string) (string, error) {
	if addr, err := netip.ParseAddr(server); err == nil {
		return netip.AddrPortFrom(addr, 53).String(), nil
	}
	if addr, err := netip.ParseAddrPort(server); err != nil || addr.Port() == 0 {
		return "", fmt.Errorf("server %q: want an IP address, or one with a port", server)
	}
	return server, nil
}

// String returns the name that is resolved.
func (s *Source) String() string {
	if s.cfg.Type == Any {
		return "dns " + s.cfg.Name
	}
	return "dns " + s.cfg.Type.String() + " " + s.cfg.Name
}
