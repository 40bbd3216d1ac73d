package udpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxBacklog bounds the clients that wait for the Proxy, which takes one in microseconds. More clients are a flood,
	// and their datagrams are dropped.
	maxBacklog = 1024
	// wantedBuffer is the requested size of a listening socket's buffers: the receive buffer holds what arrives while
	// the reader forwards a batch, and the answers to all clients share the send buffer. The system's limits are 208
	// KiB on most Linux machines (net.core.rmem_max, wmem_max).
	wantedBuffer = 4 << 20
	// minReadPause and maxReadPause bound the pause after an error of the socket that does not concern a single
	// datagram. The pause doubles until something is received again.
	minReadPause = 10 * time.Millisecond
	maxReadPause = time.Second
)

// Listener is a bound UDP socket for a Proxy. It is a net.Listener, but only a Proxy can use the connections that
// Accept returns. Methods are safe for concurrent use.
//
// After Close the socket stays open until the sessions that have begun on it are over. Meanwhile the datagrams of other
// clients are dropped.
type Listener struct {
	port   *port
	once   sync.Once
	closed chan struct{}
}

var _ net.Listener = (*Listener)(nil)

// Listen binds an address, "host:port". A host that stands for all addresses, such as "0.0.0.0" or "", includes those
// of both IP versions. On Linux, clients are answered from the address that they sent to.
func Listen(ctx context.Context, address string) (*Listener, error) {
	var lc net.ListenConfig
	c, err := lc.ListenPacket(ctx, "udp", address)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UDPConn) //nolint:forcetypeassert // of this network
	s, err := newSocket(conn)
	if err == nil {
		err = s.prepare(false, conn.LocalAddr().(*net.UDPAddr).IP.IsUnspecified())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen on UDP %s: %w", address, err), conn.Close())
	}
	_ = conn.SetReadBuffer(wantedBuffer) // as large as the system allows
	_ = conn.SetWriteBuffer(wantedBuffer)
	s.join()
	p := &port{
		socket: s, flows: map[flowKey]*flow{}, backlog: make(chan *flow, maxBacklog), failures: make(chan error), ended: make(chan struct{}),
	}
	p.counters.Store(&counters{report: func(error, time.Duration) {}})
	return p.handle(), nil
}

// Accept waits for the next client and returns its datagrams as a connection, which only a Proxy can use.
func (l *Listener) Accept() (net.Conn, error) {
	l.port.reading.Do(func() { go l.port.read() }) // datagrams that came earlier wait in the socket's buffer
	select {
	case <-l.closed:
	default:
		select {
		case f := <-l.port.backlog:
			return f, nil
		case err := <-l.port.failures:
			return nil, &net.OpError{Op: "accept", Net: "udp", Addr: l.Addr(), Err: err}
		case <-l.closed:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: "udp", Addr: l.Addr(), Err: net.ErrClosed}
}

// Close ends accepting. A second call does nothing.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.port.leave()
	})
	return nil
}

// Addr returns the bound address.
func (l *Listener) Addr() net.Addr { return l.port.socket.conn.LocalAddr() }

// Duplicate returns a second Listener on the same socket, so that another Proxy can take over. While both are open, a
// new client goes to either of them. Running sessions are not affected. Duplicate fails after Close.
func (l *Listener) Duplicate() (net.Listener, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
		return l.port.handle(), nil
	}
}

// port is the part that the Listeners on one socket share.
type port struct {
	socket   *socket
	reading  sync.Once     // starts the reader
	backlog  chan *flow    // clients without a session yet
	failures chan error    // errors of the reader, for Accept
	ended    chan struct{} // closed with the socket
	pause    time.Duration // the reader's, after the reader's last error; 0 = it has received something since
	held     atomic.Int64
	counters atomic.Pointer[counters] // of the Proxy that served the port last

	mu      sync.Mutex // not held during system calls
	flows   map[flowKey]*flow
	handles int // number of open Listeners
	closed  bool
}

// flowKey identifies the session of a datagram.
type flowKey struct {
	peer netip.AddrPort
	at   place
}

// handle returns another Listener.
func (p *port) handle() *Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handles++
	return &Listener{port: p, closed: make(chan struct{})}
}

// leave is called by a Listener's Close. The last one ends the clients that no Proxy has taken.
func (p *port) leave() {
	p.mu.Lock()
	p.handles--
	last := p.handles == 0
	p.mu.Unlock()
	p.closeIfUnused()
	if !last {
		return
	}
	for { // begin adds nothing more
		select {
		case f := <-p.backlog:
			_ = f.Close()
		default:
			return
		}
	}
}

// closeIfUnused closes the socket if nothing needs it. The reader must not call it, because closing waits for the
// reader.
func (p *port) closeIfUnused() {
	p.mu.Lock()
	unused := p.handles == 0 && len(p.flows) == 0 && !p.closed
	p.closed = p.closed || unused
	p.mu.Unlock()
	if unused {
		close(p.ended)
		_ = p.socket.conn.Close()
	}
}

// forget removes a flow that has ended.
func (p *port) forget(f *flow) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flows[f.key] == f {
		delete(p.flows, f.key)
	}
}

// read receives the datagrams of all clients until the socket is closed, on its own goroutine. After an error it
// pauses, and tries again.
func (p *port) read() {
	for {
		err := p.receiveAll()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		last := p.pause
		p.pause = pauseAfter(last)
		count := p.counters.Load()
		count.failed.Add(1)
		if !p.failed(err) && p.pause != last {
			count.report(err, p.pause)
		}
	}
}

// pauseAfter returns the pause after an error that follows another one with the pause last; 0 = there was none.
func pauseAfter(last time.Duration) time.Duration {
	return min(max(2*last, minReadPause), maxReadPause)
}

// failed returns after the pause that follows an error of the reader. Meanwhile it returns the error from Accept, whose
// caller logs it, if there is a caller: there is none during a drain, and while the caller pauses itself.
func (p *port) failed(err error) (logged bool) {
	timer := time.NewTimer(p.pause)
	defer timer.Stop()
	failures := p.failures
	for {
		select {
		case failures <- errors.Join(errReader, err):
			logged, failures = true, nil
		case <-timer.C:
			return logged
		case <-p.ended:
			return true
		}
	}
}

// errReader is the error of Accept when the socket cannot be read. Package listener treats it as temporary, and logs
// and counts it.
var errReader = fmt.Errorf("udpproxy: receive datagrams: %w", syscall.EPROTO)

// receiveAll receives until the socket fails. A panic is a defect, and loses the datagrams of a batch.
func (p *port) receiveAll() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	return p.socket.receiveAll(func(packets []packet) bool {
		p.pause = 0
		return p.receive(packets)
	})
}

// receive delivers a batch of packets, grouped by client.
func (p *port) receive(packets []packet) bool {
	for len(packets) > 0 {
		key, n := flowKey{packets[0].peer, packets[0].at}, 1
		for n < len(packets) && packets[n].peer == key.peer && packets[n].at == key.at {
			n++
		}
		p.deliver(key, packets[:n])
		packets = packets[n:]
	}
	return true
}

// deliver gives packets to the session of a client, or begins a session with them.
func (p *port) deliver(key flowKey, packets []packet) {
	count := p.counters.Load()
	count.received.Add(uint64(datagramsIn(packets))) //nolint:gosec // not negative
	p.mu.Lock()
	f, open := p.flows[key], p.handles > 0 && key.peer.Port() != 0 // port 0 cannot be answered
	p.mu.Unlock()
	if f != nil && f.take(packets) || open && p.begin(key, packets) {
		return
	}
	count.unserved.Add(uint64(datagramsIn(packets))) //nolint:gosec // not negative
}

// begin starts a flow for a client with its first packets; false = no Proxy takes it. An earlier flow of the client has
// ended, and is about to be closed.
func (p *port) begin(key flowKey, packets []packet) bool {
	f := &flow{port: p, key: key}
	f.take(packets) // now, because a Proxy may close it at once
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.handles > 0 {
		select {
		case p.backlog <- f:
			p.flows[key] = f
			return true
		default:
		}
	}
	f.abandon()
	return false
}

func datagramsIn(packets []packet) (n int) {
	for i := range packets {
		n += packets[i].datagrams()
	}
	return n
}
