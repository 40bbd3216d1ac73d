package httpproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// Carrier is a client's connection in a version of HTTP that another package implements, such as HTTP/3. It carries many
// requests at once, and passes each to an http.Handler. The Proxy serves them like streams of HTTP/2, by the same rules
// and limits, and never reads from or writes to the connection itself. Proxy.Serve takes Carriers from a CarrierListener.
// A Carrier is a fiber.Stream, so that limits, register and drain treat it like any connection.
type Carrier interface {
	// Carry calls h.ServeHTTP for each request, on its own goroutine. It returns when the connection has ended and all these
	// calls have returned. It is called once.
	//
	// A request must be valid for its protocol. Its Header has no connection-specific fields, its RequestURI is the received
	// :path, its ContentLength is -1 if the client gave none, its Trailer is complete when Body returns io.EOF, and its
	// Context ends when the client no longer wants the answer. Body may be read while the response is written, and after its
	// beginning was.
	//
	// An extended CONNECT (RFC 9220) has the method CONNECT, and its :protocol as Proto. Its Body and Write carry
	// the data of that protocol once the response's head was written. Its http.ResponseWriter is a TunnelWriter.
	//
	// The http.ResponseWriter has the methods of http.ResponseController for deadlines, which interrupt blocked calls, and
	// FlushError. It sends interim heads at once, and fields with http.TrailerPrefix as trailers. When ServeHTTP returns, the
	// response is complete and the unread body is dropped. When it panics with http.ErrAbortHandler, the client is told that
	// the response is incomplete.
	Carry(h http.Handler) error
	// Leave asks the client to begin no more requests, and ends the connection once it has none. It does not wait.
	Leave()
	// Refuse ends the connection and its requests, because the client costs too much.
	Refuse()
	// TLS returns the state of the connection's TLS.
	TLS() *tls.ConnectionState
	// Traffic returns the bytes received from the client and sent to it.
	Traffic() (in, out uint64)
}

// TunnelWriter is the http.ResponseWriter of an extended CONNECT.
type TunnelWriter interface {
	http.ResponseWriter
	// EndResponse ends the response, while the request's Body can still be read.
	EndResponse() error
}

// CarrierListener is a listener that accepts Carriers.
type CarrierListener interface {
	net.Listener
	// Begin sets the listener's settings. It is called before the first Accept.
	Begin(s CarrierSettings)
}

// CarrierSettings are the settings of a Proxy for its Carriers.
type CarrierSettings struct {
	// TLS returns the settings for a new handshake: TLS 1.3, the listener's certificates, no ALPN protocol and no early data.
	// It returns the same value until an Update changes them. It is safe for concurrent use. The result must not be changed.
	TLS func() *tls.Config
	// Admit returns why a client would be refused because of its address, after as many others from there as are pending; nil: it would not. It
	// is called before a handshake begins, and must not be called otherwise: a refusal is counted and logged. It may be called from any
	// goroutine, and does not wait.
	Admit func(from net.Addr, pending int) error
	// Limits returns the present limits. It is safe for concurrent use.
	Limits func() CarrierLimits
	// ResetSecret is Config.ResetSecret.
	ResetSecret []byte
	// Logger is never nil.
	Logger *slog.Logger
	// Report counts and logs a problem, see listener.Server.Report.
	Report func(reason string, level slog.Level, msg string, args ...any)
}

// CarrierLimits are the limits of connections.
type CarrierLimits struct {
	MaxRequests       int           // of a connection that may be open at once; for new connections
	MaxHeaderBytes    int           // of a request; for new connections
	ClientIdleTimeout time.Duration // how long a connection without requests stays open
}

// ErrNoTLS is returned by Serve for a CarrierListener if the Config has no TLS.
var ErrNoTLS = errors.New("httpproxy: HTTP/3 needs TLS")

// beginCarriers prepares l if it is a CarrierListener.
func (p *Proxy) beginCarriers(l net.Listener) error {
	c, ok := l.(CarrierListener)
	if !ok {
		return nil
	}
	if p.tls.Load() == nil {
		return errors.Join(ErrNoTLS, l.Close())
	}
	p.carriers.add(l)
	limits := func() CarrierLimits {
		now := p.limits.Load()
		return CarrierLimits{MaxRequests: now.streams, MaxHeaderBytes: now.head, ClientIdleTimeout: now.clientIdle}
	}
	c.Begin(CarrierSettings{
		TLS: func() *tls.Config { return p.carriers.tls.Load() }, Admit: p.srv.Foresee, Limits: limits,
		ResetSecret: p.carriers.secret, Logger: p.srv.Logger(), Report: p.srv.Report,
	})
	return nil
}

// carriers is the state of a Proxy for CarrierListeners.
type carriers struct {
	tls    atomic.Pointer[tls.Config] // nil = none
	secret []byte                     // Config.ResetSecret

	mu     sync.Mutex     // held for a few instructions
	served []net.Listener // those with a UDP port
	config Announcement
	value  atomic.Pointer[string] // of Alt-Svc; nil = not announced
}

// Announcement tells clients that come by TCP, and with TLS, that there is HTTP/3, by a field Alt-Svc (RFC 7838) in each answer. Clients use
// it for their next connections, and TCP where it does not work. It has an effect while a CarrierListener with a UDP port is served.
type Announcement struct {
	// MaxAge is how long clients may remember it, in whole seconds; 0 = no announcement.
	MaxAge time.Duration
	// Port is where clients reach HTTP/3 if packets are redirected on their way; 0 = the listener's port.
	Port int
}

// carrierTLS returns the settings for handshakes of Carriers.
func carrierTLS(t *tls.Config) *tls.Config {
	t = t.Clone()
	t.NextProtos, t.GetConfigForClient, t.MinVersion = nil, nil, tls.VersionTLS13 // ACME challenges arrive by TCP
	return t
}

// set applies the configuration.
func (c *carriers) set(a Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config = a
	c.announce()
}

// add announces the port of a CarrierListener that is about to be served.
func (c *carriers) add(l net.Listener) {
	if _, ok := l.Addr().(*net.UDPAddr); !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = append(c.served, l)
	c.announce()
}

// remove takes a listener out that is not served any more: clients that were sent to its port would wait there.
func (c *carriers) remove(l net.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.served, l); i >= 0 {
		c.served = slices.Delete(c.served, i, i+1)
		c.announce()
	}
}

// announce makes the value of Alt-Svc; mu is held.
func (c *carriers) announce() {
	if c.config.MaxAge <= 0 || len(c.served) == 0 {
		c.value.Store(nil)
		return
	}
	port := c.config.Port
	if port == 0 {
		port = c.served[len(c.served)-1].Addr().(*net.UDPAddr).Port //nolint:forcetypeassert // see add
	}
	value := `h3=":` + strconv.Itoa(port) + `"; ma=` + strconv.FormatInt(int64(c.config.MaxAge/time.Second), 10)
	c.value.Store(&value)
}

// altSvcField is the field Alt-Svc, altSvcName its name in lower case.
const (
	altSvcField = "Alt-Svc"
	altSvcName  = "alt-svc"
)

// altSvc returns the value of Alt-Svc for the session's client; "" = none.
func (s *session) altSvc() string {
	v := s.p.carriers.value.Load()
	if v == nil || s.isTLS == nil || s.stream != nil && s.stream.major() > 2 {
		return ""
	}
	return *v
}

// carrierConn is the session of a Carrier. Each request is served on a goroutine of the Carrier.
type carrierConn struct {
	p       *Proxy
	ctx     context.Context
	lc      *listener.Conn
	carrier Carrier
	tls     *tls.ConnectionState
	peer    peer
	shard   uint8
	held    tally

	mu       sync.Mutex // held for a few instructions
	requests map[uint64]*carried
	last     uint64    // ID of the last request
	idle     time.Time // since when there has been no request
	resets   int       // requests that the client gave up, minus those that were answered; see maxResets
	in, out  uint64    // counted bytes
}

// serveCarrier serves a connection until it ends.
func (p *Proxy) serveCarrier(ctx context.Context, lc *listener.Conn, c Carrier) {
	cc := &carrierConn{p: p, ctx: ctx, lc: lc, carrier: c, tls: c.TLS(), requests: map[uint64]*carried{}, idle: time.Now(), shard: uint8(lc.Shard())}
	s := session{lc: lc}
	cc.peer = *s.from()
	cc.peer.cert = clientCert(cc.tls)
	cc.held.to = p.ledger.account(cc.shard)
	defer func() {
		cc.count()
		_ = lc.Close()
		cc.held.end()
	}()
	if !lc.Attach(cc) {
		return // killed
	}
	if p.isDraining() { // the drain may have begun before the session was attached
		cc.interrupt()
	}
	if err := c.Carry(cc); err != nil {
		p.srv.Report(listener.ReasonProtocol, slog.LevelInfo, "client's connection failed", "client", lc.RemoteAddr().String(), "error", err)
	}
}

// interrupt starts the drain: see Proxy.Drain.
func (cc *carrierConn) interrupt() { cc.carrier.Leave() }

// count adds the new traffic to the byte counters of the connection.
func (cc *carrierConn) count() {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	in, out := cc.carrier.Traffic() // under mu: an older reading after a newer one would count bytes twice
	cc.lc.Count(int64(in-cc.in), int64(out-cc.out))
	cc.in, cc.out = in, out
}

// add registers a request and sets its ID.
func (cc *carrierConn) add(st *carried) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.last++
	st.id = cc.last
	cc.requests[st.id] = st
}

// remove removes an ended request.
func (cc *carrierConn) remove(st *carried) {
	cc.count()
	if cc.forget(st) {
		cc.carrier.Refuse()
	}
}

// forget removes a request, and reports whether the client has given up too many.
func (cc *carrierConn) forget(st *carried) bool {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	delete(cc.requests, st.id)
	if len(cc.requests) == 0 {
		cc.idle = time.Now()
	}
	switch err := st.endError(); {
	case err == nil && cc.resets > 0:
		cc.resets--
	case errors.Is(err, httppool.ErrClientGone) && !(st.tunnels && time.Since(st.came) >= tunnelServes):
		cc.resets++
	}
	return cc.resets > maxResets
}

// Describe implements listener.Session, for the connection and its requests.
func (cc *carrierConn) Describe(all []listener.Info, base listener.Info) []listener.Info {
	cc.count()
	base.BytesIn, base.BytesOut = cc.lc.BytesIn(), cc.lc.BytesOut()
	cc.mu.Lock()
	defer cc.mu.Unlock()
	return describeStreams(all, base, cc.idle, cc.requests, func(st *carried) (*about, time.Time) { return &st.about, st.came })
}

// Kill implements listener.Session.
func (cc *carrierConn) Kill(stream uint64) bool {
	if stream == 0 {
		return cc.p.srv.KillConn(cc.lc)
	}
	cc.mu.Lock()
	st := cc.requests[stream]
	cc.mu.Unlock()
	if st == nil || !st.end(errKilled) {
		return false
	}
	cc.p.srv.CountError(listener.ReasonKilled)
	return true
}
