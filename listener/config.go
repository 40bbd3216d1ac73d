package listener

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Defaults of Config, used where a field is zero.
const (
	// DefaultMaxConns bounds memory and file descriptors. An idle TCP session with its upstream
	// connection takes about 14 KiB and two descriptors, so 10,000 take 140 MiB and 20,000
	// descriptors. While a receiver does not read, a session takes a buffer of 32 KiB more for that
	// direction. The process's limit of open files must allow the descriptors.
	DefaultMaxConns = 10_000
	// DefaultMaxQueue is how many connections may wait for admission. It is a quarter of Linux's
	// default for the longest accept backlog (net.core.somaxconn, 4096), because a connection that
	// waits here takes a goroutine.
	DefaultMaxQueue = 1024
	// DefaultQueueTimeout is how long a connection waits for admission.
	DefaultQueueTimeout = 5 * time.Second
	// DefaultProxyTimeout is how long a trusted peer may take to send its
	// PROXY header; balancers send it with the first packet.
	DefaultProxyTimeout = 5 * time.Second
)

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("listener: invalid configuration")

// Config describes a Server. The zero value is usable.
type Config struct {
	// Name and Protocol label logs and metrics; they cannot change later.
	Name, Protocol string
	// Room bounds the connections of several Servers together; nil = none. It
	// cannot change later.
	Room *Room
	// MaxConns is how many sessions may run at once; 0 = DefaultMaxConns.
	MaxConns int
	// MaxQueue is how many accepted connections may wait while MaxConns sessions run; 0 =
	// DefaultMaxQueue. With a negative MaxQueue, connections beyond MaxConns are rejected at once.
	MaxQueue int
	// QueueTimeout is how long a connection waits; 0 = DefaultQueueTimeout.
	QueueTimeout time.Duration
	// AcceptProxy requires peers in TrustedProxies to send a PROXY protocol header first, version 1
	// or 2. The session then has the addresses in the header. A trusted peer without a valid header
	// is rejected. Other peers are served under their own address, and their bytes are never read
	// as a header.
	AcceptProxy bool
	// TrustedProxies are the peers that must send a header; empty = loopback addresses. Peers on a
	// Unix socket are always trusted.
	TrustedProxies []netip.Prefix
	// Allow lists the addresses that may connect, empty = all; Deny lists exceptions. An address is
	// compared in its IPv4 form if it has one. For a trusted peer it is the client's address in the
	// PROXY header. Clients of a Unix socket have no address and are accepted. A refused connection
	// is reset.
	Allow, Deny []netip.Prefix
	// MaxConnsPerSource is how many connections one source may have at once, queued ones included;
	// 0 = any number. A source is an IPv4 address or the /64 of an IPv6 address. The Handler, if it
	// is a Rejecter, sends the reason to a refused client.
	MaxConnsPerSource int
	// ConnectionRate is how often one source may connect. A connection beyond it
	// is reset.
	ConnectionRate Rate
	// ClientFirst says that the client sends first in this protocol. It decides about a client that
	// has half-closed its connection without sending anything before the connection is accepted.
	// With ClientFirst it gets no session. Otherwise it may be waiting for the server's first
	// bytes, and up to a hundred such clients a second get a session. Clients that have reset their
	// connection, or that half-closed it before a required PROXY header, never get a session.
	// Stats.Gone counts the clients that got no session because they had disconnected.
	ClientFirst bool
	// ProxyTimeout bounds the reading of the header; 0 = DefaultProxyTimeout.
	ProxyTimeout time.Duration
	// TCP are options for the clients' TCP connections.
	TCP fiber.TCPOptions
	// AccessLog switches Server.Access on: one line per session or request.
	AccessLog bool
	// Logger receives the log; nil = slog.Default().
	Logger *slog.Logger
}

// Verify reports every problem of c, joined; each wraps ErrConfig. It does not
// change c.
func (c Config) Verify() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%w: listener %q: %s is %v, want %s", ErrConfig, c.Name, field, value, want))
	}
	if c.MaxConns < 0 {
		bad("MaxConns", c.MaxConns, "0 (default) or more")
	}
	if c.QueueTimeout < 0 {
		bad("QueueTimeout", c.QueueTimeout, "0 (default) or more")
	}
	if c.ProxyTimeout < 0 {
		bad("ProxyTimeout", c.ProxyTimeout, "0 (default) or more")
	}
	if c.MaxConnsPerSource < 0 {
		bad("MaxConnsPerSource", c.MaxConnsPerSource, "0 (any number) or more")
	}
	if r := c.ConnectionRate; r.Connections < 0 || r.Per < 0 {
		bad("ConnectionRate", r, "0 (no limit) or more")
	}
	for _, l := range []struct {
		field string
		list  []netip.Prefix
	}{{"TrustedProxies", c.TrustedProxies}, {"Allow", c.Allow}, {"Deny", c.Deny}} {
		for _, p := range l.list {
			if !p.IsValid() {
				bad(l.field, p, "valid prefixes such as 10.0.0.0/8")
			}
		}
	}
	return errors.Join(errs...)
}

// withDefaults returns c with defaults in place of zero values.
func (c Config) withDefaults() Config {
	c.MaxConns = cmp.Or(c.MaxConns, DefaultMaxConns)
	c.MaxQueue = cmp.Or(c.MaxQueue, DefaultMaxQueue)
	c.MaxQueue = max(c.MaxQueue, 0)
	c.QueueTimeout = cmp.Or(c.QueueTimeout, DefaultQueueTimeout)
	c.ProxyTimeout = cmp.Or(c.ProxyTimeout, DefaultProxyTimeout)
	c.ConnectionRate.Per = cmp.Or(c.ConnectionRate.Per, time.Second)
	c.TrustedProxies, c.Allow, c.Deny = plainPrefixes(c.TrustedProxies), plainPrefixes(c.Allow), plainPrefixes(c.Deny)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With("listener", c.Name, "protocol", c.Protocol)
	return c
}
