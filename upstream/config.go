package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/headpond/headpond/traffic"
)

// ErrConfig is wrapped by every error about an invalid Config or Settings.
var ErrConfig = errors.New("upstream: invalid configuration")

// Config describes an Upstream of connections of type T. Open and Close are required, unless all connections are
// tenants' (see NewTenant).
type Config[T any] struct {
	// Name appears in errors, logs and metrics.
	Name string
	// Settings are the initial settings; Update replaces them.
	Settings
	// Open connects to an endpoint. Close, Check and Reset are the pool's; see pool.Config. A failed Open counts as a
	// failure of the endpoint, unless ctx was cancelled, this machine was out of file descriptors or memory, or the error
	// wraps ErrTenant. nil = there are connections of tenants only (see NewTenant), and Acquire fails; Try is required
	// then.
	Open func(ctx context.Context, endpoint string) (T, error)
	// Try tests whether an endpoint that has failed works again, before clients use it; nil = Open, and Close. It must return when ctx
	// ends.
	Try   func(ctx context.Context, endpoint string) error
	Close func(T)
	Check func(ctx context.Context, v T) error
	Reset func(ctx context.Context, v T) error
	// Interrupt breaks a leased connection, so that its holder's reads and writes fail. The error is ErrRemoved,
	// ErrUnhealthy or ErrRebalanced. It is called from any goroutine, possibly during or after Close. Only
	// RemovedTimeout, CloseRemoved, CloseUnhealthy, DrainUnhealthy and Rebalance require it.
	Interrupt func(T, error)
	// Heard, optional, reports whether anything was received from the endpoint on a leased connection since the last call
	// of Heard, or since the lease began. It is called as Interrupt is. CloseUnhealthy keeps the leases of an endpoint
	// from which anything is received.
	Heard func(T) bool
	// AskRole returns the RoleAsker of an endpoint; only a Target other than TargetAny requires it.
	AskRole func(endpoint string) RoleAsker
	// RoleOf, optional, returns the role of the server that a new connection leads to, where Primary stands for
	// ReadOnlyPrimary, too; UnknownRole = the connection does not show it. It is called with a Target other than
	// TargetAny. If the server has become a standby since its endpoint was asked, or is no longer one, the connection is
	// closed, and the endpoint is asked again.
	RoleOf func(ctx context.Context, v T) (Role, error)
	// Go starts the opening of a connection, and Affinity returns the affinity of one, for tenants' connections too; see
	// pool.Config.
	Go       func(fn func())
	Affinity func(T) int
	// Traffic is the schema of the counters that users of leases keep for each endpoint; see Lease.Traffic. nil = none.
	Traffic *traffic.Schema
	// Logger logs each change of the set and of an endpoint's state; nil = slog.Default().
	Logger *slog.Logger
}

// Probe tests an endpoint; nil = the endpoint works. It must return when ctx ends, which has the limit Health.Timeout.
type Probe func(ctx context.Context, endpoint string) error

// Verify reports every problem of c, joined; each wraps ErrConfig.
func (c Config[T]) Verify() error {
	var errs []error
	if c.Open == nil && c.Try == nil {
		errs = append(errs, fmt.Errorf("%w: upstream %q: Open is missing, or Try for an upstream of tenants only", ErrConfig, c.Name))
	}
	if c.Close == nil && c.Open != nil {
		errs = append(errs, fmt.Errorf("%w: upstream %q: Close is missing", ErrConfig, c.Name))
	}
	errs = append(errs, c.Settings.verify(c.Name, c.Interrupt != nil, c.AskRole != nil))
	return errors.Join(errs...)
}
