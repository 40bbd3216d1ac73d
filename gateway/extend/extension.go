package extend

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// An Extension is a part that a package adds to gateways, beside listener protocols.
type Extension struct {
	Config config.Extension
	// New makes the part that runs in a gateway, with nothing to do yet. It is also made to check a configuration.
	New func(g Gateway) Part
}

// Gateway is the gateway as a Part or a proxy sees it.
type Gateway interface {
	Logger() *slog.Logger
	// Upstream returns the running upstream of that name, in its protocol's type, nil if there is none.
	Upstream(name string) any
	// Proxies are the proxies that run now and the names of their listeners, in the order of the configuration.
	Proxies() iter.Seq2[string, Proxy]
	// Parts are the parts of extensions in this gateway, so that a protocol finds the one of its
	// package.
	Parts() []Part
	// Cancel passes a PostgreSQL cancel request on to the Canceler whose client has that key: of any listener, also one that
	// a reload has taken out of service, or of another process during an upgrade. It reports whether there is such a client.
	Cancel(ctx context.Context, processID uint32, key []byte) bool
	// Vacated returns a channel that is closed when addresses that cannot be handed over from process to process, such as
	// those of a Leaver, can be opened: at the start, or, during an upgrade, once the old process has given them up.
	Vacated() <-chan struct{}
	Operator
}

// Operator is what operators see and do. The methods are those of gateway.Gateway.
type Operator interface {
	// Config is the configuration in force. It must not be changed.
	Config() *config.Config
	// Version is the gateway's.
	Version() string
	Addr(name string) string
	Kill(id string) bool
	// HoldUpstream pauses an upstream; undo takes that back, unless somebody else has asked for the pause too.
	HoldUpstream(name string, limit time.Duration) (undo func(), err error)
	ResumeUpstream(name string) error
	ReloadFile() error
}

// A Part is an extension within one gateway. One goroutine at a time calls Plan; others may call the
// other methods meanwhile.
type Part interface {
	// Check reports problems for which Plan would fail; at is the field in question.
	Check(cfg *config.Config, report func(err error, at any))
	// Plan prepares for another configuration. It changes nothing that runs: changes are registered with p.
	Plan(p *Plan) error
	// Dialer returns how the endpoints of an upstream are connected to, false if the part does not connect to them. The
	// upstream's configuration may not be in force yet.
	Dialer(u *config.Upstream) (Dialer, bool)
	// Carrier reports whether connections to an upstream's endpoints go through the part, and names the listener whose
	// sessions carry them, if any. Parts that carry connections are drained last.
	Carrier(u *config.Upstream) (listener string, ok bool)
	// Retreats reports whether the gateway at the other side drains, so that idle connections of the upstream should be closed.
	Retreats(u *config.Upstream) bool
	// Registers are the registers of sessions without a listener, including retired ones that are not drained yet.
	Registers() []Register
	// Show returns the part's rows for the admin pages, each made by an admin.Report, also before the first Plan.
	Show() []admin.Addition
	// Drain ends the part's sessions. It is called twice: with last false for sessions that carry no upstream, then
	// with last true for all others. Sessions that remain when ctx ends are cut off.
	Drain(ctx context.Context, last bool) error
}

// Leaver is a Part with addresses that the next process of the gateway needs, and that cannot be handed over.
type Leaver interface {
	Part
	// Leave gives the addresses up, because another process serves. Their users may continue until ctx ends, which is
	// soon. Drain may be called meanwhile.
	Leave(ctx context.Context)
}

// Dialer connects to the endpoints of an upstream. The connections need not be the engine's.
type Dialer struct {
	Dial  func(ctx context.Context, endpoint string) (net.Conn, error)
	Probe func(ctx context.Context, endpoint string) (net.Conn, error) // for health checks
}

// Plan is the transition from one configuration to another. It is applied as a whole or not at all.
type Plan struct {
	Old, New *config.Config // Old is nil at the start

	Changes []string       // for the log; not at the start
	Abort   []func()       // undo the preparations, if the configuration is refused
	Commit  []func() error // change running parts. An error is logged, and the other functions still run
	Swap    []func()       // put the preparations into force, together with upstreams and listeners; must not wait, nor call the Gateway
	Retired []*Retired     // parts that the new configuration does not have
}

// Retired is a part with sessions that a reload takes out of service.
type Retired struct {
	Kind, Name, Protocol string
	Sessions             string // the name of its sessions in the log
	Active               func() int
	Drain                func(ctx context.Context) error
	Gone                 func() // called once it is drained; may be nil
}

var (
	protocols  []*Protocol
	extensions []*Extension
)

// RegisterProtocol adds a protocol to every gateway. Call it from an init function.
func RegisterProtocol(p Protocol) {
	config.RegisterProtocol(p.Config)
	protocols = append(protocols, &p)
}

// RegisterExtension adds an extension to every gateway. Call it from an init function.
func RegisterExtension(e Extension) {
	config.RegisterExtension(e.Config)
	extensions = append(extensions, &e)
}

// ProtocolOf returns the protocol of that name, nil if there is none.
func ProtocolOf(name config.Protocol) *Protocol {
	for _, p := range protocols {
		if p.Config.Name == name {
			return p
		}
	}
	return nil
}

// Protocols returns the registered protocols, in order of registration.
func Protocols() []*Protocol { return protocols }

// Extensions returns the registered extensions, in order of registration.
func Extensions() []*Extension { return extensions }
