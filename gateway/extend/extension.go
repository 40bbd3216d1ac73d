package extend

import (
	"context"
	"iter"
	"log/slog"
	"net"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// An Extension is what a package adds beside listener protocols.
type Extension struct {
	Config config.Extension
	// New makes the part that runs in a gateway, with nothing to do yet. It is also made to check a configuration.
	New func(g Gateway) Part
}

// Gateway is what a Part, or a proxy, may ask of the gateway it runs in.
type Gateway interface {
	Logger() *slog.Logger
	// Upstream returns what runs as the upstream of that name now, of its protocol's own type, nil if there is none.
	Upstream(name string) any
	// Proxies are the proxies that run now and the names of their listeners, in the order of the configuration.
	Proxies() iter.Seq2[string, Proxy]
	// Parts are what extensions run in it, so that a protocol finds that of its own package.
	Parts() []Part
}

// A Part is an extension within one gateway. Plan is called by one goroutine at a time, all else also meanwhile.
type Part interface {
	// Check reports what Plan would refuse; at is the field in question.
	Check(cfg *config.Config, report func(err error, at any))
	// Plan prepares for another configuration. It changes nothing that runs: what it does registers with p.
	Plan(p *Plan) error
	// Dialer returns how the endpoints of an upstream are connected to, false if that is not the part's. The configuration that the
	// upstream is of may not be in force yet.
	Dialer(u *config.Upstream) (Dialer, bool)
	// Carrier reports whether connections to an upstream's endpoints go through the part, and through sessions of which listener, if any.
	// What carries is drained last.
	Carrier(u *config.Upstream) (listener string, ok bool)
	// Retreats reports whether what carries an upstream's connections drains at the other side, which waits for those that are idle.
	Retreats(u *config.Upstream) bool
	// Registers are those of sessions that are no listener's, also of what a reload has retired and is not drained yet.
	Registers() []Register
	// Show returns what the admin pages show of the part, each made by an admin.Report, also before the first Plan.
	Show() []admin.Addition
	// Drain ends what the part has open, first with last false: what no upstream is carried by. Sessions that are left when ctx ends are cut
	// off.
	Drain(ctx context.Context, last bool) error
}

// Dialer connects to the endpoints of an upstream. The connections need not be the engine's.
type Dialer struct {
	Dial  func(ctx context.Context, endpoint string) (net.Conn, error)
	Probe func(ctx context.Context, endpoint string) (net.Conn, error) // for health checks
}

// Plan is the way from one configuration to another, either all of it or nothing.
type Plan struct {
	Old, New *config.Config // Old is nil at the start

	Changes []string       // for the log; not at the start
	Abort   []func()       // undo what was prepared, if the configuration is refused
	Commit  []func() error // change what runs. An error is logged, and the rest is done
	Swap    []func()       // put what was prepared into force, together with upstreams and listeners; at once, and ask the Gateway nothing
	Retired []*Retired     // what the new configuration does not have
}

// Retired is a thing with sessions that a reload takes out of service.
type Retired struct {
	Kind, Name, Protocol string
	Sessions             string // what its sessions are called in the log
	Active               func() int
	Drain                func(ctx context.Context) error
	Gone                 func() // called once it is drained; may be nil
}

var (
	protocols  []*Protocol
	extensions []*Extension
)

// RegisterProtocol makes a protocol known to every gateway. It is for init functions.
func RegisterProtocol(p Protocol) {
	config.RegisterProtocol(p.Config)
	protocols = append(protocols, &p)
}

// RegisterExtension makes an extension known to every gateway. It is for init functions.
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

// Protocols returns what is registered, in that order.
func Protocols() []*Protocol { return protocols }

// Extensions returns what is registered, in that order.
func Extensions() []*Extension { return extensions }
