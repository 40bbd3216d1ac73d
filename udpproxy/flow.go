package udpproxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
)

// Bounds of the datagrams that are held for one client. They are held while the client waits for admission and an
// endpoint, and then until the endpoint has answered, because an endpoint that refuses them may be replaced by another.
// QUIC begins with up to three datagrams of 1,200 bytes or slightly more, DNS with one or two. Further datagrams are
// dropped while the client waits, as in a full queue of a router.
const (
	maxHeld      = 32
	maxHeldBytes = 64 << 10
	// maxHeldInAll bounds the bytes held for all clients of a socket, which a flood from forged addresses could fill.
	// Copies of datagrams that were sent to an endpoint take at most half of it, so that there is room for datagrams
	// that wait for one.
	maxHeldInAll = 16 << 20
	// maxFirst is the largest first datagram of a client that is held regardless of maxHeldInAll: the number of these
	// is bounded by that of sessions.
	maxFirst = 2 << 10
)

// holdTime is how long copies are held while an endpoint has not answered: a refusal takes no longer than a round trip.
var holdTime = 2 * time.Second // tests set a longer time

// flow holds and forwards the datagrams of one client. For package listener it is a connection; the port and the
// session do the actual reading and writing. Methods are safe for concurrent use.
type flow struct {
	port *port
	key  flowKey

	mu        sync.Mutex // held during sends, which do not wait
	held      []packet   // datagrams of the client, immutable; nil = no longer held
	heldBytes int
	answered  bool            // the endpoint has sent something, so nothing more is held
	lost      bool            // held does not have all that the client has sent
	to        *Socket         // socket to the endpoint; nil = none yet
	since     time.Time       // when to was set
	reached   bool            // the endpoint has been sent a datagram
	failed    error           // error of a send that says something about the endpoint
	failedAt  time.Time       // time of failed
	client    *listener.Conn  // has the byte counters; nil = not yet
	expected  int             // answers still to come, see Config.Answers
	answers   int             // expected for each datagram; 0 = unknown
	last      time.Time       // when the client last sent something
	ended     bool            // the flow takes no more datagrams
	cut       func(why error) // called by Close; may be nil
}

var _ net.Conn = (*flow)(nil)

// take forwards or holds packets of the client; false = the flow has ended, and the packets begin another.
func (f *flow) take(packets []packet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return false
	}
	f.last = time.Now()
	f.expireHeld(f.last)
	if !f.answered {
		f.hold(packets)
	}
	if f.to != nil {
		f.forward(packets)
		f.releaseIfLost()
	}
	return true
}

// expire drops what has been held for holdTime since it was sent. It returns when to call it again; the zero time if
// nothing is held.
func (f *flow) expire(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.expireHeld(now); f.to == nil || len(f.held) == 0 {
		return time.Time{}
	}
	return f.since.Add(holdTime)
}

// expireHeld is the part of expire under mu.
func (f *flow) expireHeld(now time.Time) {
	if f.to != nil && len(f.held) > 0 && now.Sub(f.since) >= holdTime {
		f.lost = true
		f.release()
	}
}

// hold keeps copies of packets. The caller holds mu.
func (f *flow) hold(packets []packet) {
	count := f.port.counters.Load()
	for i := range packets {
		p := packets[i]
		n := len(p.data)
		if f.lost || len(f.held) >= maxHeld || f.heldBytes+n > maxHeldBytes || !f.hasRoom(n) {
			f.lost = true
			if f.to == nil {
				count.unsent.Add(uint64(p.datagrams())) //nolint:gosec // not negative
			}
			continue
		}
		p.data = append([]byte(nil), p.data...)
		f.held = append(f.held, p)
		f.heldBytes += n
		f.port.held.Add(int64(n))
	}
}

// hasRoom reports whether n more bytes may be held. The caller holds mu.
func (f *flow) hasRoom(n int) bool {
	switch all := f.port.held.Load() + int64(n); {
	case f.to != nil:
		return all <= maxHeldInAll/2
	case len(f.held) == 0 && n <= maxFirst:
		return true
	default:
		return all <= maxHeldInAll
	}
}

// release drops the held datagrams. The caller holds mu.
func (f *flow) release() {
	f.port.held.Add(-int64(f.heldBytes))
	f.held, f.heldBytes = nil, 0
}

// releaseIfLost drops the held datagrams if some are missing, because no other endpoint will get an
// incomplete stream. The caller holds mu.
func (f *flow) releaseIfLost() {
	if f.lost {
		f.release()
	}
}

// forward sends packets to the endpoint. The caller holds mu.
func (f *flow) forward(packets []packet) {
	count := f.port.counters.Load()
	out := f.to.socket.send(packets, f.to.peer, place{})
	f.client.Count(int64(out.bytes), 0)
	f.expected += out.datagrams * f.answers
	f.reached = f.reached || out.datagrams > 0
	count.forwarded.Add(uint64(out.datagrams)) //nolint:gosec // not negative
	if out.err == nil {
		return
	}
	if !blames(out.err) || f.answered || f.lost { // otherwise another endpoint may get them
		count.unsent.Add(uint64(out.dropped)) //nolint:gosec // not negative
	}
	if blames(out.err) && f.failed == nil {
		f.failed, f.failedAt = out.err, time.Now()
		f.to.wake()
	}
}

// connect sends the held packets to an endpoint, and makes take forward from now on. answers is the number of answers
// to each datagram. others says that another endpoint may get the same datagrams if this one refuses them.
func (f *flow) connect(to *Socket, client *listener.Conn, answers int, others bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to, f.client, f.answers, f.failed, f.expected = to, client, answers, nil, 0
	f.since, f.reached = time.Now(), false
	f.forward(f.held)
	f.lost = f.lost || !others || f.port.held.Load() > maxHeldInAll/2
	f.releaseIfLost()
}

// disconnect ends the use of an endpoint, and reports whether another may get all that the client has sent.
func (f *flow) disconnect() (again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = nil
	return !f.answered && !f.lost && !f.ended
}

// failure returns the error of a send to the endpoint and its time; nil if there was none since the last call.
func (f *flow) failure() (at time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err, f.failed = f.failed, nil
	return f.failedAt, err
}

// unanswered reports whether the endpoint has been sent datagrams and has answered none.
func (f *flow) unanswered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reached && !f.answered
}

// answer sends packets of the endpoint to the client. over reports that all answers have been sent, and the flow has
// ended.
func (f *flow) answer(packets []packet) (over bool) {
	out := f.port.socket.send(packets, f.key.peer, f.key.at)
	count := f.port.counters.Load()
	count.sent.Add(uint64(out.datagrams)) //nolint:gosec // not negative
	count.unsent.Add(uint64(out.dropped)) //nolint:gosec // not negative
	f.mu.Lock()
	defer f.mu.Unlock()
	f.client.Count(0, int64(out.bytes))
	if !f.answered {
		f.answered = true
		f.release()
	}
	f.expected -= datagramsIn(packets)
	if f.answers > 0 && f.expected <= 0 {
		f.ended = true
	}
	return f.ended
}

// abandon ends a flow that no session has taken.
func (f *flow) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.release()
}

// silence returns when the client last sent something, and whether the endpoint has ever answered.
func (f *flow) silence() (since time.Time, answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.answered
}

// end ends the flow if the client has sent nothing after since, and reports whether it did.
func (f *flow) end(since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.After(since) {
		return false
	}
	f.ended = true
	return true
}

// onClose makes Close call cut. If the flow has ended, it calls cut at once.
func (f *flow) onClose(cut func(why error)) {
	f.mu.Lock()
	f.cut = cut
	ended := f.ended
	f.mu.Unlock()
	if ended {
		cut(net.ErrClosed)
	}
}

// Close ends the flow. Datagrams that the client sends afterwards begin another.
func (f *flow) Close() error {
	f.mu.Lock()
	f.ended = true
	f.release()
	cut := f.cut
	f.cut, f.to = nil, nil
	f.mu.Unlock()
	if cut != nil {
		cut(net.ErrClosed)
	}
	f.port.forget(f)
	f.port.closeIfUnused()
	return nil
}

// RemoteAddr returns the client's address.
func (f *flow) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(f.key.peer) }

// LocalAddr returns the address that the client sends to.
func (f *flow) LocalAddr() net.Addr {
	bound := f.port.socket.conn.LocalAddr().(*net.UDPAddr) //nolint:forcetypeassert // of a UDPConn
	if f.key.at.addr.IsValid() {
		return &net.UDPAddr{IP: f.key.at.addr.AsSlice(), Port: bound.Port}
	}
	return bound
}

var errProxyOnly = errors.New("udpproxy: only a Proxy reads and writes the datagrams of a client")

// Read implements net.Conn; Read, Write and the deadlines are not supported.
func (f *flow) Read([]byte) (int, error) { return 0, errProxyOnly }

// Write implements net.Conn.
func (f *flow) Write([]byte) (int, error) { return 0, errProxyOnly }

// SetDeadline implements net.Conn.
func (f *flow) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (f *flow) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (f *flow) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
