package extend

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/upstream"
)

// Backend is an upstream of the configuration, running. All methods are safe for concurrent use.
type Backend interface {
	Status() upstream.Status
	// Drain closes idle connections and waits for leases. Leases that are out when ctx ends are closed when they are
	// released.
	Drain(ctx context.Context) error
	// Update applies other settings in place, where Protocol.Rebuilds does not forbid it. On an error nothing has changed.
	Update(s Settings) error
	// Retire is called when a reload has taken the Backend out of service. Requests and sessions that it had admitted before
	// still lease from it, until Drain is called when none of them can need it any more. It keeps no connection idle for long. Retire
	// ends sessions that cannot continue.
	Retire()
	// Runs returns the value that listeners and extensions use: see Runs and Gateway.Upstream.
	Runs() any
}

// Freezer is a Backend that discovers its endpoints, perhaps through sessions of this gateway. Freeze
// ends the discovery, before a drain.
type Freezer interface {
	Backend
	Freeze()
}

// Counted is a Backend whose sessions lease from it repeatedly, so that they are its users also while they hold no lease.
type Counted interface {
	Backend
	// Active returns the number of sessions.
	Active() int
}

// Changeable is a Backend whose endpoints operators may change; see upstream.Upstream, which has these methods.
type Changeable interface {
	Backend
	ChangeEndpoint(c upstream.Change) error
	Overrides() []upstream.Override
	EndpointNames() []string
}

// Pausable is a Backend whose servers operators can take out of use for a time; see upstream.Upstream, which has these
// methods.
type Pausable interface {
	Backend
	Pause(limit time.Duration) error
	Resume() bool
}

// Follower is a Pausable whose waiting clients can continue with the backend's successor.
type Follower interface {
	Pausable
	// Follow is called if a reload replaces the Backend by next while both are paused. An Update with the settings of next
	// comes after it. When Resume is called, the waiting callers get connections as next opens them. Follow reports
	// whether that is possible.
	Follow(next Backend) bool
}

// Settings are the settings to make or update a Backend.
type Settings struct {
	upstream.Settings                  // translated from Config
	Config            *config.Upstream // must be neither changed nor kept
	Dial              func(ctx context.Context, endpoint string) (net.Conn, error)
	// DialFrom is Dial, to "host:port", from an address that need not be this machine's; see fiber.Engine.DialFrom.
	DialFrom func(ctx context.Context, from netip.Addr, endpoint string) (net.Conn, error)
	Start    func(fn func()) // starts the opening of a connection for the pool, see pool.Config.Go
	Logger   *slog.Logger
	// Trial says that the Backend is made only to check the configuration: it must not open, create or ask
	// anything.
	Trial bool
	// StandIn means a trial Backend in place of a refused one, so that listeners can be checked: only the name, the
	// protocol and the balance in Config are the refused one's.
	StandIn bool
}

// FieldError is an error of Protocol.Backend about one field of the configuration.
type FieldError struct {
	Field   any // a pointer to it
	Warning bool
	Err     error
}

// Error implements error.
func (e *FieldError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *FieldError) Unwrap() error { return e.Err }

// ConnectsOtherwise reports whether a changed upstream connects to its endpoints in another way. files
// says whether the content of its certificate files has changed.
func ConnectsOtherwise(old, changed *config.Upstream, files bool) bool {
	return files || old.ConnectTimeout != changed.ConnectTimeout || !reflect.DeepEqual(old.TLS, changed.TLS) || !reflect.DeepEqual(old.KeepAlive, changed.KeepAlive)
}
