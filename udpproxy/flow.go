package udpproxy

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
)

// The datagrams of one client that are held, while it waits for admission and an endpoint, and until its endpoint has
// answered: an endpoint that refuses them may be replaced by another. QUIC begins with up to three datagrams of 1,200
// bytes or a few more, DNS with one or two. What comes beyond these is dropped while it waits, as in a full queue of
// any router.
const (
	maxHeld      = 32
	maxHeldBytes = 64 << 10
	// maxHeldInAll is how many bytes are held of all clients of a socket. A flood from forged addresses cannot
	// take more. What waits for an endpoint goes before copies of what was sent to one: they take half of it at most.
	maxHeldInAll = 16 << 20
	// maxFirst is the size of a client's first datagram that is held in any case: their number is that of sessions.
	maxFirst = 2 << 10
)

// holdTime is how long copies are held while an endpoint answers nothing: a refusal takes no longer than a round trip.
var holdTime = 2 * time.Second // tests have it longer

// flow is the datagrams of one client. To package listener it is a connection; reads and writes of it are
// the port's and the session's. All methods are safe for concurrent use.
type flow struct {
	port *port
	key  flowKey

	mu        sync.Mutex // held over sends, which do not wait
	held      []packet   // from the client, not to be changed; nil: they are held no longer
	heldBytes int
	answered  bool            // the endpoint has sent something: nothing is held any more
	lost      bool            // what is held is not all that the client has sent
	to        *Socket         // nil = there is none yet
	since     time.Time       // when to was set
	reached   bool            // it has taken a datagram
	failed    error           // of a send to it, that says something about the endpoint
	failedAt  time.Time       // when that was
	client    *listener.Conn  // whose counters count; nil = not yet
	owed      int             // answers to what was sent, see Config.Answers
	answers   int             // to each datagram; 0 = unknown
	last      time.Time       // when the client last sent something
	ended     bool            // it takes nothing any more
	cut       func(why error) // called by Close; may be nil
}

var _ net.Conn = (*flow)(nil)

// take accepts packets of the client: it forwards or holds them. false: the flow has ended, and they are the first ones of another.
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
		f.letGoIfLost()
	}
	return true
}

// expire ends the holding of what has been sent long ago. It returns when to call it again; the zero time if nothing is held.
func (f *flow) expire(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.expireHeld(now); f.to == nil || len(f.held) == 0 {
		return time.Time{}
	}
	return f.since.Add(holdTime)
}

// expireHeld is expire with mu held.
func (f *flow) expireHeld(now time.Time) {
	if f.to != nil && len(f.held) > 0 && now.Sub(f.since) >= holdTime {
		f.lost = true
		f.letGo()
	}
}

// hold keeps copies of packets. mu is held.
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

// hasRoom reports whether n bytes more may be held. mu is held.
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

// letGo ends the holding. mu is held.
func (f *flow) letGo() {
	f.port.held.Add(-int64(f.heldBytes))
	f.held, f.heldBytes = nil, 0
}

// letGoIfLost ends the holding of what has been sent if it is not all: no other endpoint will get it. mu is held.
func (f *flow) letGoIfLost() {
	if f.lost {
		f.letGo()
	}
}

// forward sends packets to the endpoint. mu is held.
func (f *flow) forward(packets []packet) {
	count := f.port.counters.Load()
	out := f.to.socket.send(packets, f.to.peer, place{})
	f.client.Count(int64(out.bytes), 0)
	f.owed += out.datagrams * f.answers
	f.reached = f.reached || out.datagrams > 0
	count.forwarded.Add(uint64(out.datagrams)) //nolint:gosec // not negative
	if out.err == nil {
		return
	}
	if !blames(out.err) || f.answered || f.lost { // else another endpoint may get them
		count.unsent.Add(uint64(out.dropped)) //nolint:gosec // not negative
	}
	if blames(out.err) && f.failed == nil {
		f.failed, f.failedAt = out.err, time.Now()
		f.to.wake()
	}
}

// connect sends what is held to an endpoint, and from now on everything. Each datagram is answered by so many. others says that
// another endpoint may get the same if this one refuses it.
func (f *flow) connect(to *Socket, client *listener.Conn, answers int, others bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to, f.client, f.answers, f.failed, f.owed = to, client, answers, nil, 0
	f.since, f.reached = time.Now(), false
	f.forward(f.held)
	f.lost = f.lost || !others || f.port.held.Load() > maxHeldInAll/2
	f.letGoIfLost()
}

// disconnect ends the use of an endpoint and reports whether another may get all that the client has sent.
func (f *flow) disconnect() (again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.to = nil
	return !f.answered && !f.lost && !f.ended
}

// failure returns the error of a send to the endpoint and its time; nil if there is none since failure was last called.
func (f *flow) failure() (at time.Time, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err, f.failed = f.failed, nil
	return f.failedAt, err
}

// unanswered reports whether the endpoint has got datagrams of the client and answered none.
func (f *flow) unanswered() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reached && !f.answered
}

// answer sends packets of the endpoint to the client. over: all answers have been sent, and the flow has ended.
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
		f.letGo()
	}
	f.owed -= datagramsIn(packets)
	if f.answers > 0 && f.owed <= 0 {
		f.ended = true
	}
	return f.ended
}

// abandon ends the flow, which nobody has.
func (f *flow) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	f.letGo()
}

// silence returns since when the client has sent nothing, and whether its endpoint has ever sent something.
func (f *flow) silence() (since time.Time, answered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last, f.answered
}

// end ends the flow if the client has sent nothing since, and reports whether it did.
func (f *flow) end(since time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last.After(since) {
		return false
	}
	f.ended = true
	return true
}

// onClose makes Close call cut, at once if it was called before.
func (f *flow) onClose(cut func(why error)) {
	f.mu.Lock()
	f.cut = cut
	ended := f.ended
	f.mu.Unlock()
	if ended {
		cut(net.ErrClosed)
	}
}

// Close ends the flow: datagrams that the client sends from now on begin another.
func (f *flow) Close() error {
	f.mu.Lock()
	f.ended = true
	f.letGo()
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

// RemoteAddr is the client's address.
func (f *flow) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(f.key.peer) }

// LocalAddr is the address that the client sends to.
func (f *flow) LocalAddr() net.Addr {
	bound := f.port.socket.conn.LocalAddr().(*net.UDPAddr) //nolint:forcetypeassert // of a UDPConn
	if f.key.at.addr.IsValid() {
		return &net.UDPAddr{IP: f.key.at.addr.AsSlice(), Port: bound.Port}
	}
	return bound
}

var errProxyOnly = errors.New("udpproxy: only a Proxy reads and writes the datagrams of a client")

// Read, Write and the deadlines are of no use.
func (f *flow) Read([]byte) (int, error) { return 0, errProxyOnly }

// Write implements net.Conn.
func (f *flow) Write([]byte) (int, error) { return 0, errProxyOnly }

// SetDeadline implements net.Conn.
func (f *flow) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements net.Conn.
func (f *flow) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements net.Conn.
func (f *flow) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
