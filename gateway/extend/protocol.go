package extend

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/listener"
)

// A Protocol is a kind of listener. Functions may be nil.
type Protocol struct {
	Config config.ListenerProtocol
	// Prepare translates the configuration of a listener for its proxy and checks it. It opens and changes nothing.
	Prepare func(Listener) (Server, error)
	// Files lists the files that a listener reads besides its certificate. The listener counts as changed
	// if the content of one changes.
	Files func(l *config.Listener) []config.Path
	// Logs returns the fields with the names of files that a listener's proxy writes lines to: see
	// Listener.LogFile.
	Logs func(l *config.Listener) []*config.LogPath
	// OffLoop reports whether sessions need goroutines, because they compute or wait for something other
	// than the engine's connections.
	OffLoop func(cfg *config.Config, l *config.Listener) bool
	// Replaces reports whether a changed listener of this protocol needs another proxy. Sessions of the
	// old one finish there.
	Replaces func(old, changed *config.Listener) bool
	// Backend makes an upstream of these listeners. Its pools begin to warm up at once. If it is nil, the
	// upstreams have pools of TCP connections: they are *upstream.Upstream[net.Conn].
	Backend func(s Settings) (Backend, error)
	// Rebuilds reports whether a changed upstream needs another Backend. files says whether the content of
	// its certificate files has changed. nil: ConnectsOtherwise.
	Rebuilds func(old, changed *config.Upstream, files bool) bool
	// Show returns the protocol's rows for the admin pages, beside its listeners and their traffic, made by an
	// admin.Report. It gets the running proxies, in the order of the configuration, and may get none.
	Show func(proxies []Proxy) []admin.Addition
	// Reuses says that connections of its upstreams serve one session after the other, so that the share of reused
	// connections is shown.
	Reuses bool
	// Heavy says that a connection costs the server much, so that the status advises how many a pool should have.
	Heavy bool
	// Listen opens the socket of a listener at "host:port". nil: it is a TCP socket, or at "unix:/path" a
	// Unix socket. Protocols with other sockets (config.ListenerProtocol.Datagrams) need it. The listener
	// that it returns must have the methods of Handover, and sessions run on goroutines (OffLoop).
	Listen func(ctx context.Context, address string) (net.Listener, error)
	// Beside returns how the second socket of a listener is opened, at "host:port" with the port of its first; nil: this listener has none. The
	// listener's proxy serves both. It is a UDP socket, and has the methods of Handover (see config.ListenerProtocol.Beside). A nil Beside: no
	// listener has one.
	Beside func(l *config.Listener) func(ctx context.Context, address string) (net.Listener, error)
	// MaxConns returns how many connections a listener may have open, if not its max_conns.
	MaxConns func(l *config.Listener) int
}

// Handover is a socket that a second listener of the gateway can take over: clients that arrive
// meanwhile go to either.
type Handover interface {
	net.Listener
	Duplicate() (net.Listener, error)
}

// Drainer is a second socket of a listener that has its own clients: when the listener continues without it, they are drained.
type Drainer interface {
	net.Listener
	// Active is how many clients there are.
	Active() int
	// Drain closes the socket for new clients and waits until the others are gone. Those that are there when ctx ends are cut off, which is
	// an error.
	Drain(ctx context.Context) error
}

// Listener is a listener of a configuration, with the gateway's objects for it.
type Listener struct {
	*config.Listener
	Common listener.Config
	TLS    *tls.Config // with the certificate, also after a reload has replaced it; nil: clear text. Each call of Prepare gets its own
	// Secret is derived from the private key of the first certificate file, so that a gateway that is started again has the
	// same one; nil: there is no such file.
	Secret  []byte
	Gateway Gateway
	// LogFile returns the writer of a file of Protocol.Logs, which Listeners with the same path share. It
	// drops lines that the file does not take in time.
	LogFile func(path config.LogPath) listener.LineWriter

	Upstreams map[string]Upstream // those the listener names, by name
}

// Upstream is an upstream that runs, as a listener uses it.
type Upstream struct {
	Config *config.Upstream // the upstream's configuration once the listener's new one is in force
	Runs   any              // of the protocol's own type
}

// Runs returns the upstream of a listener by its name. It returns an error if the upstream has another protocol.
func Runs[T any](l Listener, name string) (T, error) {
	runs, ok := l.Upstreams[name].Runs.(T)
	if !ok {
		return runs, fmt.Errorf("upstream %q is not one of protocol %s", name, l.Protocol)
	}
	return runs, nil
}

// Proxy serves a listener. All methods are safe for concurrent use.
type Proxy interface {
	// Serve accepts from l until l is closed, or Drain is called and every session has ended.
	Serve(l net.Listener) error
	// Drain stops accepting and waits until the sessions end. Sessions that remain when ctx ends are cut off.
	Drain(ctx context.Context) error
	Stats() listener.Stats
	Register
}

// Canceler is a Proxy whose clients can cancel their statements, as those of PostgreSQL.
type Canceler interface {
	Proxy
	// Cancel cancels the statement of the client with that key, and reports whether there is such a client. It returns
	// when that is done, or ctx ends.
	Cancel(ctx context.Context, processID uint32, key []byte) bool
}

// Register lists sessions, and ends them. A listener.Server is one.
type Register interface {
	// Sessions describes the sessions, in no order.
	Sessions() []listener.Info
	// Kill ends the session, or one stream of it, and reports whether it was there.
	Kill(id listener.ID, stream uint64) bool
}

// Server is a checked configuration of a listener in its proxy's form. Serve makes one.
type Server struct {
	Create func() (Proxy, error)
	Update func(Proxy) error // gives a proxy of this protocol the configuration in place
}

// Serve returns a Server with the functions create and Update of a proxy.
func Serve[C interface{ Verify() error }, P interface {
	Proxy
	Update(cfg C) error
}](cfg C, create func(C) (P, error)) (Server, error) {
	return Server{
		Create: func() (Proxy, error) { return create(cfg) },
		Update: func(p Proxy) error { return p.(P).Update(cfg) }, //nolint:forcetypeassert // made by Create
	}, cfg.Verify()
}
