package extend

import (
	"context"
	"log/slog"
	"net"
	"reflect"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/upstream"
)

// Backend is an upstream of the configuration, running. All methods are safe for concurrent use.
type Backend interface {
	Status() upstream.Status
	// Drain closes what is idle and waits for leases. Those that are left when ctx ends are closed when they come back.
	Drain(ctx context.Context) error
	// Update applies other settings in place, where Protocol.Rebuilds does not forbid it. On an error nothing has changed.
	Update(s Settings) error
	// Runs returns what listeners and extensions use: see Runs and Gateway.Upstream.
	Runs() any
}

// Freezer is a Backend that looks for its endpoints, perhaps through sessions of this gateway. Freeze ends that, before a drain.
type Freezer interface {
	Backend
	Freeze()
}

// Counted is a Backend whose sessions lease from it again and again, so that it must not be drained under one that runs.
type Counted interface {
	Backend
	// Retire lets sessions end that cannot go on with what they began with: a reload has taken the Backend out of service.
	Retire()
	// Active is how many sessions there are.
	Active() int
	// Idle returns a channel that is closed when there is no session, the first time after the call.
	Idle() <-chan struct{}
}

// Changeable is a Backend whose endpoints operators may change; see upstream.Upstream, which has these methods.
type Changeable interface {
	Backend
	ChangeEndpoint(c upstream.Change) error
	Overrides() []upstream.Override
	EndpointNames() []string
}

// Settings are what a Backend is made of, and updated with.
type Settings struct {
	upstream.Settings                  // translated from Config
	Config            *config.Upstream // not to be changed, nor kept
	Dial              func(ctx context.Context, endpoint string) (net.Conn, error)
	Start             func(fn func()) // how a connection is opened ahead of its user, see pool.Config.Go
	Logger            *slog.Logger
	// Trial says that the Backend is made to check the configuration: it is not used, and opens, creates and asks nothing.
	Trial bool
	// StandIn says that it is made for a trial in place of one that was refused, so that listeners can be checked: of Config only the name,
	// the protocol and the balance are the refused one's.
	StandIn bool
}

// FieldError is an error of Protocol.Backend that is about one field of the configuration.
type FieldError struct {
	Field   any // a pointer to it
	Warning bool
	Err     error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// ConnectsOtherwise reports whether a changed upstream connects to its endpoints in another way. files says whether the content of its
// certificates has changed.
func ConnectsOtherwise(old, changed *config.Upstream, files bool) bool {
	return files || old.ConnectTimeout != changed.ConnectTimeout || !reflect.DeepEqual(old.TLS, changed.TLS)
}
