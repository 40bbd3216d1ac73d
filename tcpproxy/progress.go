package tcpproxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// checksPerTimeout is how often progress is checked within a time-out, which is late by at most one interval. Reading the
// clock for each piece would be much of a small piece's cost.
const checksPerTimeout = 8

// traffic is the kind of data that must move within a time-out.
type traffic uint8

const (
	anyByte    traffic = iota
	fromClient         // bytes from the client, until its end of the stream
	fromServer         // bytes from the server, until its end of the stream
	afterFIN           // bytes from the server, once the client has ended its stream
)

// expiredErrors are the errors with which time-outs end a relay.
var expiredErrors = [...]error{
	anyByte:    errIdle,
	fromClient: errors.New("no byte from the client for its idle time-out"),
	fromServer: errors.New("no byte from the server for its idle time-out"),
	afterFIN:   errors.New("the client has closed its sending side, and the server has sent nothing since for the time-out"),
}

// progress detects that nothing in a relay has moved for its limit. A watch calls its method check, so that it
// costs one timer and nothing for each piece. Data moves when a socket accepts it, and when its receiver acknowledges it:
// the socket of a slow receiver may accept nothing for many seconds, until a third of a buffer of megabytes is free.
type progress struct {
	what      traffic
	applies   bool // as of the last check
	delivered bool // all data was acknowledged when taken last asked, and nothing has moved since
	limit     time.Duration
	seen      uint64
	acked     uint64 // bytes acknowledged when taken last asked
	since     time.Time
}

// moved returns how many bytes have moved so far, and whether the time-out applies now.
func (p *progress) moved(r *relay) (n uint64, applies bool) {
	c, ends := r.session.client, r.ends.Load()
	switch p.what {
	case fromClient:
		return c.BytesIn(), ends&clientEnd == 0
	case fromServer:
		return c.BytesOut(), ends&serverEnd == 0
	case afterFIN:
		return c.BytesOut(), ends&clientEnd != 0
	default:
		return c.BytesIn() + c.BytesOut(), true
	}
}

// receivers returns the sides that receive the data: both, or the same one twice.
func (p *progress) receivers(r *relay) [2]*side {
	switch p.what {
	case fromClient:
		return [2]*side{&r.server, &r.server}
	case fromServer, afterFIN:
		return [2]*side{&r.client, &r.client}
	default:
		return [2]*side{&r.client, &r.server}
	}
}

// taken reports whether the receivers have acknowledged anything since the last call. It may make a trip to a loop.
func (p *progress) taken(r *relay) bool {
	var acked uint64
	p.delivered = true
	for _, s := range p.receivers(r) {
		n, all := s.conn.Acked()
		acked, p.delivered = acked+n, p.delivered && all
	}
	was := p.acked
	p.acked = acked
	return acked != was
}

// step returns the time between two checks.
func (p *progress) step() time.Duration { return max(p.limit/checksPerTimeout, 1) }

// check returns how much of the limit is left at now. The first call does not ask the receivers.
func (p *progress) check(r *relay, now time.Time) (left time.Duration) {
	n, applies := p.moved(r)
	switch {
	case n != p.seen || !applies || !p.applies:
		p.seen, p.delivered, p.since = n, false, now
	case !p.delivered && p.taken(r):
		p.since = now
	}
	p.applies = applies
	return p.limit - now.Sub(p.since)
}

// watchTimes starts the watch of the session's time-outs.
func (r *relay) watchTimes() {
	cfg, now, first := r.session.cfg, fiber.Now(), r.stalled.step()
	r.limits = r.first[:0]
	for what, limit := range [...]time.Duration{
		anyByte: cfg.IdleTimeout, fromClient: cfg.ClientIdleTimeout, fromServer: cfg.ServerIdleTimeout, afterFIN: cfg.ClientFINTimeout,
	} {
		if limit > 0 {
			p := progress{what: traffic(what), limit: limit}
			p.check(r, now)
			r.limits = append(r.limits, p)
			first = min(first, p.step())
		}
	}
	if len(r.limits) == 0 && r.stalled.limit <= 0 {
		r.session.watch.stop()
		return
	}
	r.session.watch.watch(first, r)
}

// check checks the time-outs. The session's watch calls it.
func (r *relay) check() (next time.Duration) {
	now, next := fiber.Now(), r.stalled.step()
	if r.stalled.limit > 0 && r.stalled.check(r.answered(), now) {
		r.expire(errStalled, r.stalled.limit)
		return 0
	}
	for i := range r.limits {
		p := &r.limits[i]
		left := p.check(r, now)
		if left <= 0 {
			r.expire(expiredErrors[p.what], p.limit)
			return 0
		}
		next = min(next, left, p.step())
	}
	return next
}

// answered returns a number that grows while the client receives an answer: with each byte that its socket accepts and,
// once the client has sent something, with each byte that its system acknowledges (see progress). It may make a trip to
// a loop.
func (r *relay) answered() uint64 {
	n := r.session.client.BytesOut()
	if r.stalled.asked.Load() {
		acked, _ := r.client.conn.Acked()
		n += acked
	}
	return n
}

func (r *relay) expire(err error, limit time.Duration) {
	r.fail(listener.ReasonTimeout, fmt.Errorf("%w (%v)", err, limit))
}

// remainder is the direction of a relay that continues after a failed write.
type remainder struct {
	relay    *relay
	progress progress
	watch    watch
}

// watchLeft interrupts the remaining direction when it no longer moves: its destination may be waiting for the other
// direction, which has ended.
func (r *relay) watchLeft() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.remaining != nil {
		return
	}
	left := &remainder{relay: r, progress: progress{limit: remainderTimeout}}
	left.progress.check(r, fiber.Now()) // the first call makes no trip to a loop, which is not allowed under mu
	r.remaining = left
	left.watch.watch(left.progress.step(), left)
}

func (m *remainder) check() (next time.Duration) {
	left := m.progress.check(m.relay, fiber.Now())
	if left <= 0 {
		m.relay.interrupt()
	}
	return min(left, m.progress.step())
}
