package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/pool"
)

// Defaults of Health and Ejection, used where a field is zero.
const (
	DefaultHealthInterval = 2 * time.Second
	DefaultHealthTimeout  = time.Second
	DefaultRise           = 2
	DefaultFall           = 3
	DefaultEjectFailures  = 5
	DefaultEjectBase      = time.Second
	DefaultEjectMax       = time.Minute
)

// ErrConfig is wrapped by every error about an invalid Config or Update.
var ErrConfig = errors.New("upstream: invalid configuration")

// Config describes an Upstream of connections of type T. Open and Close are
// required.
type Config[T any] struct {
	// Name appears in errors, logs and metrics.
	Name string
	// Endpoints are "host:port" or "unix:/path", each once. Without any,
	// Acquire fails until Update brings some.
	Endpoints []string
	// Balance chooses among the endpoints; the zero value is P2C.
	Balance Balance
	// Limits are those of each endpoint's pool.
	Limits pool.Limits
	// Open connects to an endpoint; Close, Check and Reset are the pool's, see
	// pool.Config. A failed Open counts against the endpoint, except when ctx
	// was cancelled or when this machine was out of file descriptors or memory.
	Open  func(ctx context.Context, endpoint string) (T, error)
	Close func(T)
	Check func(ctx context.Context, v T) error
	Reset func(ctx context.Context, v T) error
	// Go starts the opening of a connection, and Place tells where one lives; see pool.Config.
	Go    func(fn func())
	Place func(T) int
	// Health is the active check; none without a Probe.
	Health Health
	// Ejection is the passive check.
	Ejection Ejection
	// Logger gets a line for each change of an endpoint's state; nil =
	// slog.Default().
	Logger *slog.Logger
}

// Probe tests an endpoint, nil meaning that it works. It must heed ctx, which
// ends with Health.Timeout.
type Probe func(ctx context.Context, endpoint string) error

// Health is an active health check: every endpoint is probed every Interval.
// The first probe decides alone; after that Fall failures in a row take an
// endpoint out and Rise successes in a row take it in again.
type Health struct {
	Probe      Probe         // nil = no active check
	Interval   time.Duration // from the end of one probe to the next, ±10 %; 0 = DefaultHealthInterval
	Timeout    time.Duration // of one probe; 0 = DefaultHealthTimeout
	Rise, Fall int           // 0 = DefaultRise, DefaultFall
}

// Ejection is the passive check: Failures in a row (connections that could not
// be opened, leases ended by Fail) take an endpoint out for Base. Then a
// connection is opened, and closed, beside the pool: when that fails, or when it
// is back and one more failure is seen, the time is doubled, up to Max; a success
// (Release, OK) ends the series. Up to a tenth is added at random to each time.
type Ejection struct {
	Failures  int           // 0 = DefaultEjectFailures, negative = never eject
	Base, Max time.Duration // 0 = DefaultEjectBase, DefaultEjectMax
}

func (h Health) withDefaults() Health {
	h.Interval = cmp.Or(h.Interval, DefaultHealthInterval)
	h.Timeout = cmp.Or(h.Timeout, DefaultHealthTimeout)
	h.Rise = cmp.Or(h.Rise, DefaultRise)
	h.Fall = cmp.Or(h.Fall, DefaultFall)
	return h
}

func (e Ejection) withDefaults() Ejection {
	e.Failures = cmp.Or(e.Failures, DefaultEjectFailures)
	e.Base = cmp.Or(e.Base, DefaultEjectBase)
	e.Max = cmp.Or(e.Max, DefaultEjectMax)
	e.Max = max(e.Max, e.Base)
	return e
}

// Verify reports every problem of c, joined; each wraps ErrConfig.
func (c Config[T]) Verify() error {
	var errs []error
	if c.Open == nil {
		errs = append(errs, fmt.Errorf("%w: upstream %q: Open is missing", ErrConfig, c.Name))
	}
	if c.Close == nil {
		errs = append(errs, fmt.Errorf("%w: upstream %q: Close is missing", ErrConfig, c.Name))
	}
	errs = append(errs, verify(c.Name, c.Endpoints, c.Balance, c.Limits, c.Health, c.Ejection))
	return errors.Join(errs...)
}

// verify checks what Config and Update have in common.
func verify(name string, endpoints []string, b Balance, l pool.Limits, h Health, e Ejection) error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: upstream %q: "+format, append([]any{ErrConfig, name}, args...)...))
	}
	seen := make(map[string]bool, len(endpoints))
	for _, addr := range endpoints {
		if _, _, err := netaddr.Split(addr); err != nil {
			bad("endpoint: %w", err)
		}
		if seen[addr] {
			bad("endpoint %q appears twice", addr)
		}
		seen[addr] = true
	}
	if !b.valid() {
		bad("balance %v is unknown", b)
	}
	if err := l.Verify(); err != nil {
		bad("%w", err)
	}
	if h.Interval < 0 || h.Timeout < 0 || h.Rise < 0 || h.Fall < 0 {
		bad("a health check's Interval, Timeout, Rise and Fall must not be negative")
	}
	if e.Base < 0 || e.Max < 0 {
		bad("an ejection's Base and Max must not be negative")
	}
	return errors.Join(errs...)
}
