package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/httpproxy"
)

const (
	// maxBacklog bounds the connections that wait for the Proxy after their handshakes. The Proxy accepts one in microseconds.
	maxBacklog = 128
	// Windows for request bodies, in bytes: they bound what quic-go holds of what sessions have not taken yet. A stream begins with that of
	// HTTP/2 and gets more while its server keeps up.
	firstWindow  = 64 << 10
	streamWindow = 1 << 20
	connWindow   = 2 << 20
	// idleTimeout is how long a client with requests may be silent: quic-go sends a PING after keepAlive. So a client that has
	// vanished is noticed even if nothing is sent to it.
	idleTimeout = 45 * time.Second
	keepAlive   = 30 * time.Second
	// wantedBuffer is the requested size of the socket's buffers, in bytes; quic-go wants as much. The system's limits may be lower.
	wantedBuffer = 7 << 20
	// maxUniStreams bounds a client's unidirectional streams: three, and some for extensions.
	maxUniStreams = 10
)

// ErrListen is wrapped by errors of Listen.
var ErrListen = errors.New("http3: listen")

// Listener is a bound UDP socket on which a Proxy serves HTTP/3. It is a httpproxy.CarrierListener. Methods are safe for
// concurrent use.
//
// Close asks the accepted clients to begin no more requests. The socket stays open until their connections have ended.
type Listener struct {
	port     *port
	settings *httpproxy.CarrierSettings // nil = Begin was not called
	ready    chan *conn                 // not accepted yet
	once     sync.Once
	closed   chan struct{}
}

var _ httpproxy.CarrierListener = (*Listener)(nil)

// Listen binds an address, "host:port". A wildcard host, such as "0.0.0.0" or "", includes both IP versions. Nothing is
// answered before Begin.
func Listen(ctx context.Context, address string) (*Listener, error) {
	var lc net.ListenConfig
	c, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: UDP %s: %w", ErrListen, address, err)
	}
	socket := c.(*net.UDPConn) //nolint:forcetypeassert // of this network
	_ = socket.SetReadBuffer(wantedBuffer)
	_ = socket.SetWriteBuffer(wantedBuffer)
	p := &port{socket: socket, began: make(chan struct{}), conns: map[*conn]struct{}{}}
	p.transport = &quic.Transport{Conn: socket, VerifySourceAddress: p.busy, ConnContext: p.newHandshake}
	return p.handle()
}

// Begin implements httpproxy.CarrierListener. If two Proxies share the socket, new clients go to the one that began last,
// with its settings for their handshakes.
func (l *Listener) Begin(s httpproxy.CarrierSettings) {
	l.port.setNewest(l, &s)
	l.port.reading.Do(func() { l.port.listen(&s) })
}

// Accept waits for the next client's connection, a httpproxy.Carrier.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
	default:
		select {
		case c := <-l.ready:
			_ = c.handshake.uncount() // the Proxy counts it
			return c, nil
		case <-l.closed:
		}
	}
	if err := l.port.failure(); err != nil {
		return nil, &net.OpError{Op: "accept", Net: "udp", Addr: l.Addr(), Err: err}
	}
	return nil, &net.OpError{Op: "accept", Net: "udp", Addr: l.Addr(), Err: net.ErrClosed}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.port.leave(l)
	})
	return nil
}

// ErrCutOff is wrapped by errors of Drain.
var ErrCutOff = errors.New("http3: clients were cut off")

// Drain closes l and waits until its clients' connections have ended. When ctx ends it closes the rest; the error then
// wraps ErrCutOff and reports their number.
func (l *Listener) Drain(ctx context.Context) error {
	_ = l.Close()
	n := 0
	for _, c := range l.port.clients(l) {
		select {
		case <-c.q.Context().Done():
			continue
		case <-ctx.Done():
		}
		if !c.Ended() {
			n++
			_ = c.Close()
		}
	}
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: UDP %s: %d: %w", ErrCutOff, l.Addr(), n, context.Cause(ctx))
}

// Active returns the number of clients with connections.
func (l *Listener) Active() int { return len(l.port.clients(l)) }

// Addr returns the bound address, a *net.UDPAddr.
func (l *Listener) Addr() net.Addr { return l.port.socket.LocalAddr() }

// Duplicate returns a second Listener on the same socket, so that another Proxy can take over. It fails after Close, and once the socket has
// failed.
func (l *Listener) Duplicate() (net.Listener, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	second, err := l.port.handle()
	if err != nil {
		return nil, &net.OpError{Op: "duplicate", Net: "udp", Addr: l.Addr(), Err: err}
	}
	return second, nil
}

// port is what the Listeners of one socket share.
type port struct {
	socket    *net.UDPConn
	transport *quic.Transport
	reading   sync.Once
	shaking   handshakes // under way
	refused   refusal    // begins only

	mu      sync.Mutex // not held during calls of quic-go
	server  *quic.Listener
	handles []*Listener   // open ones
	leader  *Listener     // gets new clients; nil = none yet
	began   chan struct{} // closed when leader changes
	conns   map[*conn]struct{}
	err     error // why accepting has ended
	closed  bool
}

// handle returns another Listener. There is none after fail, which would not close it.
func (p *port) handle() (*Listener, error) {
	l := &Listener{port: p, ready: make(chan *conn, maxBacklog), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return nil, p.err
	}
	p.handles = append(p.handles, l)
	return l, nil
}

// setNewest makes a Listener get new clients.
func (p *port) setNewest(l *Listener, s *httpproxy.CarrierSettings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.settings, p.leader = s, l
	close(p.began)
	p.began = make(chan struct{})
}

// listen starts accepting.
func (p *port) listen(s *httpproxy.CarrierSettings) {
	p.transport.StatelessResetKey = resetKey(s.ResetSecret, p.socket.LocalAddr())
	server, err := p.transport.Listen(&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: p.configForClient}, p.config(s))
	p.mu.Lock()
	p.server, p.err = server, err
	p.mu.Unlock()
	if err != nil {
		p.fail(err)
		return
	}
	go p.distribute() // until the last Listener is closed
}

// config returns the settings of QUIC. Each connection begins with the present limit of requests.
func (p *port) config(s *httpproxy.CarrierSettings) *quic.Config {
	c := &quic.Config{
		MaxIncomingStreams: int64(s.Limits().MaxRequests), MaxIncomingUniStreams: maxUniStreams,
		InitialStreamReceiveWindow: firstWindow, MaxStreamReceiveWindow: streamWindow,
		InitialConnectionReceiveWindow: connWindow / 2, MaxConnectionReceiveWindow: connWindow,
		MaxIdleTimeout: idleTimeout, KeepAlivePeriod: keepAlive,
		Allow0RTT: false, // requests in early data can be replayed
	}
	c.GetConfigForClient = func(*quic.ClientInfo) (*quic.Config, error) {
		now := c.Clone()
		if s := p.settings(); s != nil {
			now.MaxIncomingStreams = int64(s.Limits().MaxRequests)
		}
		return now, nil
	}
	return c
}

// configForClient implements tls.Config.GetConfigForClient. The client will belong to the Listener whose settings it
// gets: another one may require a client certificate, or have another certificate.
func (p *port) configForClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	h, ok := hello.Context().Value(handshakeKey{}).(*handshake)
	if !ok {
		return nil, errNobody
	}
	if h.to = p.next(); h.to == nil {
		return nil, errNobody
	}
	t := h.to.settings.TLS().Clone()
	t.NextProtos = []string{quichttp3.NextProtoH3}
	return t, nil
}

// takeover is how long a handshake waits for the next Listener when the last one is closed.
const takeover = time.Second

// settings returns those of the Listener to which the next client comes; nil = one is about to take over.
func (p *port) settings() *httpproxy.CarrierSettings {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.handles, p.leader) {
		return nil
	}
	return p.leader.settings
}

// next returns the Listener to which the next client comes, nil if there is none.
func (p *port) next() *Listener {
	timeout := time.NewTimer(takeover)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		l, began, last := p.leader, p.began, len(p.handles) == 0
		open := slices.Contains(p.handles, l)
		p.mu.Unlock()
		if open {
			return l
		}
		if last {
			return nil
		}
		select {
		case <-began:
		case <-timeout.C:
			return nil
		}
	}
}

// distribute gives the clients that have connected to the Proxies.
func (p *port) distribute() {
	for {
		q, err := p.server.Accept(context.Background())
		if err != nil {
			if !errors.Is(err, quic.ErrServerClosed) {
				p.fail(err)
			}
			return
		}
		c := newConn(q.Context().Value(handshakeKey{}).(*handshake), q) //nolint:forcetypeassert // by newHandshake
		if err := p.deliver(c); err != nil {
			_ = c.Close()
		}
	}
}

// fail ends accepting for good, and all connections: they have lost the socket. The address is free when Accept returns the error.
func (p *port) fail(err error) {
	p.mu.Lock()
	p.err, p.closed = err, true
	handles := slices.Clone(p.handles)
	p.mu.Unlock()
	_ = p.transport.Close()
	_ = p.socket.Close()
	for _, l := range handles {
		_ = l.Close()
	}
}

func (p *port) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// deliver registers a connection and passes it to its Listener, unless that is closed or its backlog is full.
func (p *port) deliver(c *conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Contains(p.handles, c.of) {
		return errNobody
	}
	select {
	case c.of.ready <- c:
	default:
		return errBusy
	}
	p.conns[c] = struct{}{}
	context.AfterFunc(c.q.Context(), func() { p.forget(c) })
	return nil
}

// forget removes an ended connection.
func (p *port) forget(c *conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	p.closeIfUnused()
}

// clients returns the connections of a Listener.
func (p *port) clients(l *Listener) []*conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*conn
	for c := range p.conns {
		if c.of == l {
			list = append(list, c)
		}
	}
	return list
}

// leave implements Listener.Close. The Listener's clients begin no more requests; after the last Listener's, accepting
// ends.
func (p *port) leave(l *Listener) {
	p.mu.Lock()
	p.handles = slices.DeleteFunc(p.handles, func(h *Listener) bool { return h == l })
	last, server := len(p.handles) == 0, p.server
	for _, other := range p.handles {
		if p.leader == l && other.settings != nil {
			p.leader = other
		}
	}
	p.mu.Unlock()
	for _, c := range p.clients(l) { // all that it will ever have
		c.Leave()
	}
	for len(l.ready) > 0 { // nothing more is added
		select {
		case c := <-l.ready:
			_ = c.Close()
		default: // Accept has taken it
		}
	}
	if !last {
		return
	}
	if server != nil {
		_ = server.Close()
	}
	p.closeIfUnused()
}

// closeIfUnused closes the socket if nothing needs it.
func (p *port) closeIfUnused() {
	p.mu.Lock()
	unused := len(p.handles) == 0 && len(p.conns) == 0 && !p.closed
	p.closed = p.closed || unused
	p.mu.Unlock()
	if !unused {
		return
	}
	_ = p.transport.Close()
	_ = p.socket.Close()
}
