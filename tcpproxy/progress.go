package tcpproxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/headpond/headpond/listener"
)

// checksPerTimeout is how often progress is checked within a time-out, which is late by one interval at most.
// Reading the clock for each piece instead would be a large part of a small piece's cost.
const checksPerTimeout = 8

// traffic is what has to move within a time-out.
type traffic uint8

const (
	anyByte    traffic = iota
	fromClient         // bytes from the client, until its end of the stream
	fromServer         // bytes from the server, until its end of the stream
	afterFIN           // bytes from the server, once the client has ended its stream
)

// expiredErrors are the reasons for which a relay ends.
var expiredErrors = [...]error{
	anyByte:    errIdle,
	fromClient: errors.New("no byte from the client for its idle time-out"),
	fromServer: errors.New("no byte from the server for its idle time-out"),
	afterFIN:   errors.New("the client has closed its sending side, and the server has sent nothing since for the time-out"),
}

// progress detects that nothing has moved in a relay for patience. A watch calls its look: one timer, no cost per piece.
type progress struct {
	what     traffic
	applies  bool // at the last look
	patience time.Duration
	seen     uint64
	since    time.Time
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

// step returns how long to wait between two looks.
func (p *progress) step() time.Duration { return max(p.patience/checksPerTimeout, 1) }

// look returns how much of patience is left at now.
func (p *progress) look(r *relay, now time.Time) (left time.Duration) {
	n, applies := p.moved(r)
	if n != p.seen || !applies || !p.applies {
		p.seen, p.since = n, now
	}
	p.applies = applies
	return p.patience - now.Sub(p.since)
}

// watchTimes starts the watch of the session's time-outs.
func (r *relay) watchTimes() {
	cfg, now, first := r.session.cfg, time.Now(), r.stalled.step()
	for what, patience := range [...]time.Duration{
		anyByte: cfg.IdleTimeout, fromClient: cfg.ClientIdleTimeout, fromServer: cfg.ServerIdleTimeout, afterFIN: cfg.ClientFINTimeout,
	} {
		if patience > 0 {
			p := progress{what: traffic(what), patience: patience}
			p.look(r, now)
			r.limits = append(r.limits, p)
			first = min(first, p.step())
		}
	}
	if len(r.limits) == 0 && r.stalled.patience <= 0 {
		r.session.watch.stop()
		return
	}
	r.session.watch.replace(first, r.lookAtTimes)
}

// lookAtTimes is for a watch.
func (r *relay) lookAtTimes() (next time.Duration) {
	now, next := time.Now(), r.stalled.step()
	if r.stalled.patience > 0 && r.stalled.look(r.session.client.BytesOut(), now) {
		r.expire(errStalled, r.stalled.patience)
		return 0
	}
	for i := range r.limits {
		p := &r.limits[i]
		left := p.look(r, now)
		if left <= 0 {
			r.expire(expiredErrors[p.what], p.patience)
			return 0
		}
		next = min(next, left, p.step())
	}
	return next
}

func (r *relay) expire(err error, patience time.Duration) {
	r.fail(listener.ReasonTimeout, fmt.Errorf("%w (%v)", err, patience))
}

// watchLeft interrupts the remaining direction when it moves nothing any more: its
// destination may be waiting for the other direction, which has ended.
func (r *relay) watchLeft() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left != nil {
		return
	}
	p := &progress{patience: remainderTimeout}
	p.look(r, time.Now())
	r.left = newWatch(p.step(), func() time.Duration {
		left := p.look(r, time.Now())
		if left <= 0 {
			r.interrupt()
		}
		return min(left, p.step())
	})
}
