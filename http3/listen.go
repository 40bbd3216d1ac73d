package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/httpproxy"
)

const (
	// maxBacklog bounds the connections that wait for the Proxy after their handshakes, which takes one in microseconds.
	maxBacklog = 128
	// busyHandshakes is from how many handshakes under way on a client first has to show that its address is its own (Retry, RFC 9000, section
	// 8.1.2), which costs it a round trip. maxHandshakes is how many there may be; each takes some 50 KiB and a signature.
	busyHandshakes = 64
	maxHandshakes  = 1024
	// Windows for request bodies, in bytes: they bound what quic-go holds of what sessions have not taken yet. A stream begins with that of
	// HTTP/2 and gets more while its server keeps up.
	firstWindow  = 64 << 10
	streamWindow = 1 << 20
	connWindow   = 2 << 20
	// idleTimeout is how long a client may be silent while it has requests: quic-go asks for a sign of life after keepAlive. A client that
	// has vanished is noticed although nothing is sent to it.
	idleTimeout = 45 * time.Second
	keepAlive   = 30 * time.Second
	// wantedBuffer is the requested size of the socket's buffers, in bytes; quic-go wants as much. The system's limits may be lower.
	wantedBuffer = 7 << 20
	// maxUniStreams is how many streams in one direction a client may open: three, and some for extensions that it tries out.
	maxUniStreams = 10
)

// ErrListen is in errors of Listen.
var ErrListen = errors.New("http3: listen")

// Listener is a bound UDP socket on which a Proxy serves HTTP/3. It is a httpproxy.CarrierListener. Methods are safe for concurrent use.
//
// Close has the clients that it has accepted begin no more requests. The socket stays open until their connections are over.
type Listener struct {
	port   *port
	once   sync.Once
	closed chan struct{}
}

var _ httpproxy.CarrierListener = (*Listener)(nil)

// Listen binds an address, "host:port". A host that stands for all addresses, such as "0.0.0.0" or "", includes those of both IP versions.
// Nothing is answered before Begin.
func Listen(ctx context.Context, address string) (*Listener, error) {
	var lc net.ListenConfig
	c, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: UDP %s: %w", ErrListen, address, err)
	}
	socket := c.(*net.UDPConn) //nolint:forcetypeassert // of this network
	_ = socket.SetReadBuffer(wantedBuffer)
	_ = socket.SetWriteBuffer(wantedBuffer)
	p := &port{socket: socket, ready: make(chan *conn, maxBacklog), conns: map[*conn]*Listener{}}
	p.transport = &quic.Transport{Conn: socket, VerifySourceAddress: p.busy, ConnContext: p.begins}
	return p.handle(), nil
}

// Begin implements httpproxy.CarrierListener. Where two Proxies share the socket, handshakes have the settings of the one that came last.
func (l *Listener) Begin(s httpproxy.CarrierSettings) {
	l.port.settings.Store(&s)
	l.port.reading.Do(l.port.listen)
}

// Accept waits for the next client's connection, a httpproxy.Carrier.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.closed:
	default:
		select {
		case c := <-l.port.ready:
			l.port.belongs(c, l)
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

// Addr returns the bound address, a *net.UDPAddr.
func (l *Listener) Addr() net.Addr { return l.port.socket.LocalAddr() }

// Duplicate returns a second Listener on the same socket, so that another Proxy can take over. While both are open, a new client goes to
// either of them. It fails after Close.
func (l *Listener) Duplicate() (net.Listener, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
		return l.port.handle(), nil
	}
}

// port is what the Listeners on one socket share.
type port struct {
	socket    *net.UDPConn
	transport *quic.Transport
	settings  atomic.Pointer[httpproxy.CarrierSettings] // nil = nobody has called Begin
	reading   sync.Once
	ready     chan *conn   // that nobody has accepted yet
	shaking   atomic.Int64 // handshakes under way

	mu      sync.Mutex // not held during calls of quic-go
	server  *quic.Listener
	handles []*Listener // open ones
	conns   map[*conn]*Listener
	err     error // why nothing is accepted any more
	closed  bool
}

// handle returns another Listener.
func (p *port) handle() *Listener {
	l := &Listener{port: p, closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handles = append(p.handles, l)
	return l
}

// listen begins to accept.
func (p *port) listen() {
	server, err := p.transport.Listen(&tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: p.tls}, p.config())
	p.mu.Lock()
	p.server, p.err = server, err
	p.mu.Unlock()
	if err != nil {
		p.fail(err)
		return
	}
	go p.take() // until the last Listener is closed
}

// config returns the settings of QUIC.
func (p *port) config() *quic.Config {
	return &quic.Config{
		MaxIncomingStreams: int64(p.settings.Load().MaxRequests), MaxIncomingUniStreams: maxUniStreams,
		InitialStreamReceiveWindow: firstWindow, MaxStreamReceiveWindow: streamWindow,
		InitialConnectionReceiveWindow: connWindow / 2, MaxConnectionReceiveWindow: connWindow,
		MaxIdleTimeout: idleTimeout, KeepAlivePeriod: keepAlive,
		Allow0RTT: false, // requests in early data can be replayed by others
	}
}

// tls implements tls.Config.GetConfigForClient.
func (p *port) tls(*tls.ClientHelloInfo) (*tls.Config, error) {
	t := p.settings.Load().TLS().Clone()
	t.NextProtos = []string{quichttp3.NextProtoH3}
	return t, nil
}

// busy implements quic.Transport.VerifySourceAddress.
func (p *port) busy(net.Addr) bool { return p.shaking.Load() >= busyHandshakes }

var errBusy = errors.New("http3: too many handshakes are under way")

// begins implements quic.Transport.ConnContext: it counts a handshake until it is over.
func (p *port) begins(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	if p.shaking.Load() >= maxHandshakes {
		return nil, errBusy
	}
	p.shaking.Add(1)
	h := &handshake{of: p}
	context.AfterFunc(ctx, h.over)
	return context.WithValue(ctx, handshakeKey{}, h), nil
}

type handshakeKey struct{}

// handshake is one that is counted.
type handshake struct {
	of   *port
	once sync.Once
}

func (h *handshake) over() { h.once.Do(func() { h.of.shaking.Add(-1) }) }

// take gives the clients that have connected to the Proxies.
func (p *port) take() {
	for {
		q, err := p.server.Accept(context.Background())
		if err != nil {
			if !errors.Is(err, quic.ErrServerClosed) {
				p.fail(err)
			}
			return
		}
		if h, ok := q.Context().Value(handshakeKey{}).(*handshake); ok {
			h.over()
		}
		c := newConn(p, q)
		if !p.add(c) {
			_ = c.Close()
			continue
		}
		context.AfterFunc(q.Context(), func() { p.forget(c) })
		select {
		case p.ready <- c:
		default: // a flood
			_ = c.Close()
		}
	}
}

// fail ends accepting for good.
func (p *port) fail(err error) {
	p.mu.Lock()
	p.err = err
	handles := append([]*Listener(nil), p.handles...)
	p.mu.Unlock()
	for _, l := range handles {
		_ = l.Close()
	}
}

func (p *port) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// add registers a connection; false = nobody accepts any more.
func (p *port) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.handles) == 0 {
		return false
	}
	p.conns[c] = nil
	return true
}

// belongs notes which Listener has accepted a connection.
func (p *port) belongs(c *conn, l *Listener) {
	p.mu.Lock()
	_, open := p.conns[c]
	if open {
		p.conns[c] = l
	}
	p.mu.Unlock()
	select {
	case <-l.closed: // it did not find c
		c.Leave()
	default:
	}
}

// forget removes a connection that is over.
func (p *port) forget(c *conn) {
	p.mu.Lock()
	delete(p.conns, c)
	p.mu.Unlock()
	p.closeIfUnused()
}

// leave is called by a Listener's Close. Its clients begin no more requests; after the last Listener's, nobody is accepted.
func (p *port) leave(l *Listener) {
	var theirs, nobodys []*conn
	p.mu.Lock()
	for i, h := range p.handles {
		if h == l {
			p.handles = append(p.handles[:i:i], p.handles[i+1:]...)
			break
		}
	}
	last := len(p.handles) == 0
	for c, of := range p.conns {
		switch {
		case of == l:
			theirs = append(theirs, c)
		case of == nil && last:
			nobodys = append(nobodys, c)
		}
	}
	server := p.server
	p.mu.Unlock()
	for _, c := range theirs {
		c.Leave()
	}
	if !last {
		return
	}
	if server != nil {
		_ = server.Close()
	}
	for _, c := range nobodys {
		_ = c.Close()
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
