package tcpproxy

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// remainderTimeout is how long the remaining direction may move nothing after a
// write of the other direction has failed.
var remainderTimeout = 5 * time.Second

// side is one end of a relay. Each direction has a fiber or goroutine; one reads a side
// while the other writes it.
type side struct {
	name string
	conn fiber.Stream
}

// relay copies between two sides until both directions have ended.
type relay struct {
	session        *session
	client, server *side
	firstByte      func()      // called when the server has sent something
	heard          atomic.Bool // the server has sent something
	stalled        stall       // how long the client has waited for an answer, if its patience is set
	limits         []progress  // of the time-outs that are set

	ends atomic.Int32 // sides whose stream has ended with EOF: clientEnd, serverEnd

	mu     sync.Mutex
	reason string // of the first failure
	err    error
	left   *watch // on the remaining direction after a failed write
	over   bool   // ended in good order; later errors do not matter
}

const (
	clientEnd = 1 << iota
	serverEnd
	bothEnds = clientEnd | serverEnd
)

func newRelay(s *session, client, server *side) *relay {
	r := &relay{session: s, client: client, server: server}
	r.stalled.patience = s.cfg.StallTimeout
	return r
}

// run copies in both directions until they have ended or it is interrupted. The
// connections are still open when it returns.
func (r *relay) run() {
	r.watchTimes()
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
	r.direction(r.client, r.server, clientEnd, listener.ReasonClientGone, listener.ReasonBackendGone, func(n int) {
		s := r.session
		before := min(n, s.counted)
		s.counted -= before
		s.client.Count(r.uncounted(n-before), 0)
		r.stalled.moved(true)
	})
}

func (r *relay) serverToClient() {
	r.direction(r.server, r.client, serverEnd, listener.ReasonBackendGone, listener.ReasonClientGone, func(n int) {
		r.session.client.Count(0, r.uncounted(n))
		r.stalled.moved(false)
		if !r.heard.Load() {
			r.heard.Store(true)
			r.firstByte()
		}
	})
}

// uncounted is n unless the listener's connection counts it, as it does under TLS.
func (r *relay) uncounted(n int) int64 {
	if r.session.cfg.TLS != nil {
		return 0
	}
	return int64(n)
}

// direction copies from src to dst and passes on how it ended: the end of the stream as a FIN, a
// broken source at once as a reset. When the destination is broken, its earlier data may still be
// on its way to the source, so the other direction continues to its end, as long as it moves.
func (r *relay) direction(src, dst *side, end int32, srcGone, dstGone string, moved func(int)) {
	readErr, writeErr := src.conn.CopyTo(dst.conn, moved, r.session.proxy.countSpliced)
	switch {
	case errors.Is(readErr, io.EOF) && r.ends.Or(end)|end == bothEnds: // Close says it
	case errors.Is(readErr, io.EOF):
		if err := dst.conn.CloseWrite(); errors.Is(err, errors.ErrUnsupported) {
			r.finish() // dst cannot be half closed
		}
	case readErr != nil:
		r.fail(srcGone, fmt.Errorf("read from %s: %w", src.name, readErr))
	default:
		r.note(dstGone, fmt.Errorf("write to %s: %w", dst.name, writeErr))
		r.watchLeft()
	}
}

// note records the first failure.
func (r *relay) note(reason string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil && !r.over {
		r.reason, r.err = reason, err
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

// interrupt ends both directions by a deadline in the past.
func (r *relay) interrupt() {
	past := time.Unix(1, 0)
	_ = r.client.conn.SetDeadline(past)
	_ = r.server.conn.SetDeadline(past)
}

// outcome returns the first failure, nil if both streams have ended in good order.
func (r *relay) outcome() (reason string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason, r.err
}
