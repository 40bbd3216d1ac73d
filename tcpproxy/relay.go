package tcpproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// lastWords is how long the direction that is left may move nothing once the
// other's destination is broken.
var lastWords = 5 * time.Second

// side is one end of a relay. Each direction has a fiber or goroutine; one reads a side
// while the other writes it.
type side struct {
	name    string
	conn    net.Conn // the concrete connection, so that copying can splice
	pending []byte   // read before the relay began
	fast    *fastReader
}

func newSide(name string, conn net.Conn, pending []byte) *side {
	return &side{name: name, conn: conn, pending: pending, fast: newFastReader(conn)}
}

// closeWrite passes a FIN on.
func (s *side) closeWrite() error {
	if h, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}

// resetOnClose makes Close send a reset.
func (s *side) resetOnClose() {
	conn := s.conn
	if t, ok := conn.(interface{ NetConn() net.Conn }); ok { // TLS: no close_notify either
		conn = t.NetConn()
	}
	if l, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	if conn != s.conn {
		_ = conn.Close()
	}
}

// relay copies between two sides until both directions have ended.
type relay struct {
	session        *session
	client, server *side
	firstByte      func()      // called when the server has sent something
	heard          atomic.Bool // it has
	idle           time.Duration
	quiet          progress // how long nothing has moved, if idle is set

	place int          // in relays; guarded by relays.mu
	ends  atomic.Int32 // of streams, that were seen

	mu     sync.Mutex
	reason string // of the first failure
	err    error
	reset  bool   // to be passed on as a reset
	left   *watch // on the direction that is left after a failed write
	over   bool   // ended in good order, what fails now is of no interest
}

func newRelay(s *session, client, server *side) *relay {
	return &relay{session: s, client: client, server: server, idle: s.cfg.IdleTimeout}
}

// run copies in both directions until they have ended or ctx does. The
// connections are still open when it returns.
func (r *relay) run(ctx context.Context) {
	r.session.proxy.relays.add(ctx, r)
	defer r.session.proxy.relays.remove(r)
	if r.idle > 0 {
		r.quiet = progress{relay: r, patience: r.idle, expired: r.idled}
		r.session.watch.turnTo(r.quiet.begin(), r.quiet.look)
	} else {
		r.session.watch.stop()
	}
	var other fiber.Group
	other.Go(r.serverToClient)
	r.clientToServer()
	other.Wait()
	r.session.stopWatch()
	if r.left != nil {
		r.left.stop()
	}
}

func (r *relay) clientToServer() {
	r.direction(r.client, r.server, listener.ReasonClientGone, listener.ReasonBackendGone, func(n int) {
		r.session.client.Count(r.uncounted(n), 0)
	})
}

func (r *relay) serverToClient() {
	r.direction(r.server, r.client, listener.ReasonBackendGone, listener.ReasonClientGone, func(n int) {
		r.session.client.Count(0, r.uncounted(n))
		if !r.heard.Load() {
			r.heard.Store(true)
			r.firstByte()
		}
	})
}

// uncounted is n unless the listener's connection counts by itself, as it does
// under TLS.
func (r *relay) uncounted(n int) int64 {
	if r.session.cfg.TLS != nil {
		return 0
	}
	return int64(n)
}

// direction copies from src to dst and passes on how it ended: the end of the
// stream as a FIN, a broken source at once as a reset. When the destination is
// broken, what it sent before may still be on its way to the source, so the
// other direction is left to find its end, as long as it moves.
func (r *relay) direction(src, dst *side, srcGone, dstGone string, moved func(int)) {
	readErr, writeErr := r.copy(src, dst, moved)
	switch {
	case errors.Is(readErr, io.EOF) && r.ends.Add(1) == 2: // Close says it
	case errors.Is(readErr, io.EOF):
		if err := dst.closeWrite(); errors.Is(err, errors.ErrUnsupported) {
			r.finish() // no way to pass on half of an end
		}
	case readErr != nil:
		r.fail(srcGone, fmt.Errorf("read from %s: %w", src.name, readErr))
	default:
		r.note(dstGone, fmt.Errorf("write to %s: %w", dst.name, writeErr))
		r.watchLeft()
	}
}

// watchLeft ends the direction that is left when it moves nothing any more: its
// destination may be waiting for the other one, which is over.
func (r *relay) watchLeft() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left != nil {
		return
	}
	p := &progress{relay: r, patience: lastWords, expired: r.interrupt}
	r.left = newWatch(p.begin(), p.look)
}

// note records the first failure.
func (r *relay) note(reason string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && !r.over {
		r.reason, r.err, r.reset = reason, err, reason != listener.ReasonTimeout
	}
}

// fail records a failure and ends both directions.
func (r *relay) fail(reason string, err error) {
	r.note(reason, err)
	r.interrupt()
}

// finish ends both directions in good order.
func (r *relay) finish() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.interrupt()
}

// interrupt wakes both directions wherever they wait.
func (r *relay) interrupt() {
	past := time.Unix(1, 0)
	_ = r.client.conn.SetDeadline(past)
	_ = r.server.conn.SetDeadline(past)
}

func (r *relay) outcome() (reason string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason, r.err
}

func (r *relay) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reset
}

func (r *relay) idled() {
	r.fail(listener.ReasonTimeout, fmt.Errorf("%w (%v)", errIdle, r.idle))
}

// looks is how often a time-out looks for progress while it lasts, which makes it late by one of them at
// most: looking at the clock for each piece would be among the dearest things about a small one.
const looks = 8

// progress calls expired when no byte has moved for as long as patience, if its look is what a watch calls:
// one timer, nothing for each piece.
type progress struct {
	relay    *relay
	patience time.Duration
	expired  func()
	seen     uint64
	since    time.Time
}

// begin returns when to look first.
func (p *progress) begin() time.Duration {
	p.seen, p.since = p.moved(), time.Now()
	return p.step()
}

func (p *progress) moved() uint64 {
	c := p.relay.session.client
	return c.BytesIn() + c.BytesOut()
}

func (p *progress) step() time.Duration { return max(p.patience/looks, 1) }

func (p *progress) look() time.Duration {
	now := time.Now()
	if n := p.moved(); n != p.seen {
		p.seen, p.since = n, now
	}
	left := p.patience - now.Sub(p.since)
	if left <= 0 {
		p.expired()
	}
	return min(left, p.step())
}

// relays are those that run, to be cut off when the context of all sessions ends: to watch it for each of them
// would cost more.
type relays struct {
	watching sync.Once

	mu  sync.Mutex // held for a few instructions
	all []*relay
}

// add takes r in until remove. If ctx has ended, r is cut off at once.
func (s *relays) add(ctx context.Context, r *relay) {
	s.watching.Do(func() { context.AfterFunc(ctx, s.cutOff) })
	s.mu.Lock()
	s.all = append(s.all, r)
	r.place = len(s.all) - 1
	s.mu.Unlock()
	if ctx.Err() != nil {
		r.cutOff()
	}
}

func (s *relays) remove(r *relay) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.all) - 1
	moved := s.all[last]
	s.all[r.place], moved.place = moved, r.place
	s.all[last] = nil
	s.all = s.all[:last]
}

func (s *relays) cutOff() {
	s.mu.Lock()
	all := slices.Clone(s.all)
	s.mu.Unlock()
	for _, r := range all {
		r.cutOff()
	}
}

func (r *relay) cutOff() { r.fail(listener.ReasonDrained, errDrained) }
