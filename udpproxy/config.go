package udpproxy

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// Defaults, used where a field is zero.
const (
	// DefaultIdleTimeout is twice the usual idle time-out of QUIC connections (30 s).
	DefaultIdleTimeout = time.Minute
	// DefaultUnansweredTimeout is longer than resolvers wait for an answer (5 s).
	DefaultUnansweredTimeout = 10 * time.Second
	// DefaultDrainIdle is longer than the time between two datagrams of most active sessions.
	DefaultDrainIdle = 2 * time.Second
	// DefaultConnectTimeout bounds the wait for an endpoint and for a place in its pool.
	DefaultConnectTimeout = 5 * time.Second
)

// MaxAnswers bounds Config.Answers; a larger number indicates a mistake.
const MaxAnswers = 1 << 16

// ErrConfig is wrapped by every error about an invalid Config.
var ErrConfig = errors.New("udpproxy: invalid configuration")

// Config describes a Proxy. Upstream is required; the Proxy does not close or drain it.
type Config struct {
	// Listener configures limits, register and logs, where each session counts as a connection. UDP has no PROXY
	// headers, so AcceptProxy must be off.
	Listener listener.Config
	// Upstream provides the sockets; see NewUpstream. With the balance RingHash the key is the client's IP address.
	Upstream *upstream.Upstream[*Socket]
	// IdleTimeout ends a session without a datagram in either direction for that long; 0 = DefaultIdleTimeout.
	IdleTimeout time.Duration
	// UnansweredTimeout is the idle time-out of a session whose endpoint has sent nothing yet; 0 =
	// DefaultUnansweredTimeout, and at most IdleTimeout.
	UnansweredTimeout time.Duration
	// Answers is how many datagrams the endpoint sends for each datagram of the client: 1 for DNS. The session ends
	// when they have come. A session that times out without any answer counts as a failure of its endpoint, unless the
	// endpoint has answered another session meanwhile. 0 = unknown.
	Answers int
	// DrainIdle is the idle time-out of sessions after a drain has begun; 0 = DefaultDrainIdle, and at most
	// IdleTimeout.
	DrainIdle time.Duration
	// ConnectTimeout bounds the wait for a socket; 0 = DefaultConnectTimeout.
	ConnectTimeout time.Duration
}

// Verify reports every problem of c, joined; each wraps ErrConfig or listener.ErrConfig.
func (c Config) Verify() error {
	errs := []error{c.Listener.Verify()}
	bad := func(problem string) {
		errs = append(errs, fmt.Errorf("%w: listener %q: %s", ErrConfig, c.Listener.Name, problem))
	}
	if c.Upstream == nil {
		bad("Upstream is missing")
	}
	if min(c.IdleTimeout, c.UnansweredTimeout, c.DrainIdle, c.ConnectTimeout) < 0 {
		bad("IdleTimeout, UnansweredTimeout, DrainIdle and ConnectTimeout must not be negative")
	}
	if c.Answers < 0 || c.Answers > MaxAnswers {
		bad(fmt.Sprintf("Answers is %d, want 0 (unknown) to %d", c.Answers, MaxAnswers))
	}
	if c.Listener.AcceptProxy {
		bad("AcceptProxy: there are no PROXY headers in datagrams")
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() *Config {
	c.IdleTimeout = cmp.Or(c.IdleTimeout, DefaultIdleTimeout)
	c.UnansweredTimeout = min(cmp.Or(c.UnansweredTimeout, DefaultUnansweredTimeout), c.IdleTimeout)
	c.DrainIdle = cmp.Or(c.DrainIdle, DefaultDrainIdle)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, DefaultConnectTimeout)
	return &c
}
