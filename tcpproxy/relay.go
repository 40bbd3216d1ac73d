package tcpproxy

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// remainderTimeout is how long the remaining direction may move nothing after a failed write in the other direction.
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
	client, server side
	serverSent     atomic.Bool   // the server has sent something
	known          atomic.Uint64 // bytes sent to the client as of the last call of heard
	stalled        stall         // how long the client has waited for an answer, if that is limited
	limits         []progress    // of the time-outs that are set, in first if there is one
	first          [1]progress
	endpoint       string

	directions fiber.Group  // running directions
	ends       atomic.Int32 // sides whose stream has ended: clientEnd, serverEnd

	mu        sync.Mutex
	reason    string // of the first failure
	err       error
	remaining *remainder // the remaining direction after a failed write
	running   int        // directions
	resume    func()     // resumes the suspended session; nil = it is not suspended
	finished  bool       // ended normally; later errors are ignored
	opening   opening    // the client's first bytes, while the session may move
	told      [2]told    // what the first failed write to the client, and to the server, was told
}

const (
	clientEnd = 1 << iota
	serverEnd
	bothEnds = clientEnd | serverEnd
)

// told is what the system has told a write to a broken connection.
type told uint8

const (
	toldNothing told = iota
	toldReset        // there was no FIN before the reset
	toldOther
)

func newRelay(s *session, client, server fiber.Stream, endpoint string) *relay {
	r := &relay{session: s, client: side{"client", client}, server: side{"upstream", server}, endpoint: endpoint}
	r.opening.spent = s.cfg.NoRetry || s.cfg.TLS != nil || s.target.tls != nil || !s.mayLeave(endpoint)
	r.stalled.limit = s.cfg.StallTimeout
	r.known.Store(s.client.BytesOut())
	return r
}

// heard reports whether the client has got something from the server since the last call.
func (r *relay) heard() bool {
	n := r.session.client.BytesOut()
	return r.known.Swap(n) != n
}

// run copies in both directions until they have ended or it is interrupted; then the caller calls relayed. It returns true
// if the loop copies alone: then the session is suspended, and resumed at the end. The connections stay open.
func (r *relay) run() (suspended bool) {
	r.watchTimes()
	r.running = 2
	r.directions.Add(2)
	alone := fiber.CopyThen(r.server.conn, r.client.conn, r.toClient, r.session.proxy.splicing, r.serverOver) // on the loop of both
	if !alone {
		fiber.Go(r.copyFromServer)
	}
	r.copyFromClient(alone)
	if alone && r.suspend() {
		return true
	}
	r.directions.Wait()
	return false
}

// copyFromClient copies from the client to the server. If alone is set, the loop of both connections copies the other
// direction, and this one too if it can.
func (r *relay) copyFromClient(alone bool) {
	readErr, writeErr := r.copyOpening()
	switch {
	case readErr != nil || writeErr != nil:
	case !alone:
		readErr, writeErr = r.copyApart(&r.client, &r.server)
	case fiber.CopyThen(r.client.conn, r.server.conn, r.toServer, r.session.proxy.splicing, r.clientOver):
		return
	default:
		readErr, writeErr = r.client.conn.CopyTo(r.server.conn, r.toServer, r.session.proxy.splicing)
	}
	r.clientOver(readErr, writeErr)
}

// copyApart copies while another goroutine or loop copies the other direction. The order of the last pieces of both
// directions must be recorded correctly.
func (r *relay) copyApart(src, dst *side) (readErr, writeErr error) {
	to, byClient, moved := dst.conn, src == &r.client, r.countToClient
	if byClient {
		moved = r.countToServer
	}
	if r.stalled.limit > 0 {
		to = fiber.BeforeWrite(to, func() { r.stalled.moving(byClient) })
	}
	return src.conn.CopyTo(to, moved, r.session.proxy.splicing)
}

// copyFromServer copies from the server to the client, on a stack.
func (r *relay) copyFromServer() {
	defer r.directionOver() // also after a panic
	readErr, writeErr := r.copyApart(&r.server, &r.client)
	r.ended(&r.server, &r.client, serverEnd, readErr, writeErr)
}

// suspend suspends the session until both directions have ended. It returns false if they have, or if sessions on this
// connection cannot be suspended.
func (r *relay) suspend() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		r.resume = r.session.client.SuspendUntil()
	}
	return r.resume != nil
}

// stop stops the watches.
func (r *relay) stop() {
	r.session.watch.stop()
	r.mu.Lock()
	left := r.remaining
	r.mu.Unlock()
	if left != nil {
		left.watch.stop()
	}
}

// toServer counts n bytes from the client to the server, on the loop that copies both directions.
func (r *relay) toServer(n int) {
	r.countToServer(n)
	r.stalled.moving(true)
}

func (r *relay) countToServer(n int) {
	s := r.session
	before := min(n, s.counted)
	s.counted -= before
	s.client.Count(r.uncounted(n-before), 0)
}

// toClient counts n bytes from the server to the client, on the loop that copies both directions.
func (r *relay) toClient(n int) {
	r.countToClient(n)
	r.stalled.moving(false)
}

func (r *relay) countToClient(n int) {
	r.session.client.Count(0, r.uncounted(n))
	if !r.serverSent.Load() {
		r.serverSent.Store(true)
		r.stay()
		r.session.leased.Heard(time.Now()) // compared with times of the wall clock
	}
}

// clientOver is called when copying from the client has ended.
func (r *relay) clientOver(readErr, writeErr error) {
	defer r.directionOver()
	r.ended(&r.client, &r.server, clientEnd, readErr, writeErr)
}

// serverOver is called when copying from the server has ended.
func (r *relay) serverOver(readErr, writeErr error) {
	defer r.directionOver()
	r.ended(&r.server, &r.client, serverEnd, readErr, writeErr)
}

// directionOver counts an ended direction. The second call continues the session, on the current fiber if it is suspended.
func (r *relay) directionOver() {
	r.mu.Lock()
	r.running--
	resume := r.resume
	if r.running > 0 {
		resume = nil
	}
	r.mu.Unlock()
	if r.directions.Done(); resume != nil {
		resume()
	}
}

// uncounted returns n, or 0 if the listener's connection counts it, as it does under TLS.
func (r *relay) uncounted(n int) int64 {
	if r.session.cfg.TLS != nil {
		return 0
	}
	return int64(n)
}

// ended passes on how copying from src to dst has ended: the end of the stream as a FIN, a broken source at once as a
// reset. If the destination is broken, its earlier data may still be on its way to the source, so the other direction
// continues to its end, as long as it moves.
func (r *relay) ended(src, dst *side, end int32, readErr, writeErr error) {
	switch {
	case r.lostServer(src, readErr): // the session moves to another endpoint
	case errors.Is(readErr, io.EOF) && r.wasReset(src):
		r.fail(r.reasonGone(src), fmt.Errorf("read from %s: %w", src.name, syscall.ECONNRESET))
	case errors.Is(readErr, io.EOF) && r.ends.Or(end)|end == bothEnds: // Close does it
	case errors.Is(readErr, io.EOF):
		switch err := dst.conn.CloseWrite(); {
		case errors.Is(err, errors.ErrUnsupported):
			r.finish() // dst cannot be half closed
		case errors.Is(err, syscall.ECONNRESET): // from the end of TLS
			r.noteWrite(dst, fmt.Errorf("write to %s: %w", dst.name, err))
		}
	case readErr != nil:
		r.fail(r.reasonGone(src), fmt.Errorf("read from %s: %w", src.name, readErr))
	case errors.Is(writeErr, fiber.ErrPanicked):
		r.fail(listener.ReasonInternal, writeErr)
	default:
		r.noteWrite(dst, fmt.Errorf("write to %s: %w", dst.name, writeErr))
		r.watchLeft()
	}
}

// noteWrite records a failed write to dst. If dst is the server, before its first byte, the server's answer may still
// arrive, or the session may move, see lose.
func (r *relay) noteWrite(dst *side, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch now := &r.told[r.index(dst)]; {
	case *now != toldNothing:
	case errors.Is(err, syscall.ECONNRESET):
		*now = toldReset
	default:
		*now = toldOther
	}
	if r.err == nil && !r.finished {
		r.reason, r.err = r.reasonGone(dst), err
		r.opening.broken = dst == &r.server && !r.opening.spent
	}
}

// wasReset reports whether src, from which a read has seen the end of the stream, was reset before it sent close_notify or a FIN. The
// system tells that once: if a write has been told, reads only see an end. After a FIN a write is told EPIPE.
func (r *relay) wasReset(src *side) bool {
	if fiber.NotifiedEnd(src.conn) {
		return false // a reset may follow: many programs close TLS connections with tickets unread
	}
	taken := r.ends.Load() == 0 && resetTaken(src.conn) && r.ends.Load() == 0 // the other direction may be about to end src's stream
	r.mu.Lock()
	defer r.mu.Unlock()
	told := r.told[r.index(src)]
	return told == toldReset || told == toldNothing && taken // then the write has not returned yet
}

// index returns the index of a side in told.
func (r *relay) index(which *side) int {
	if which == &r.client {
		return 0
	}
	return 1
}

// reasonGone returns the error counter for a side that has broken off.
func (r *relay) reasonGone(which *side) string {
	if which == &r.client {
		return listener.ReasonClientGone
	}
	return listener.ReasonBackendGone
}

// fail records the first failure and ends both directions. The session can no longer move.
func (r *relay) fail(reason string, err error) {
	r.mu.Lock()
	if (r.err == nil || r.opening.broken) && !r.finished {
		r.reason, r.err, r.opening.broken = reason, err, false
	}
	r.mu.Unlock()
	r.interrupt()
}

// finish ends both directions normally.
func (r *relay) finish() {
	r.mu.Lock()
	r.finished = true
	r.mu.Unlock()
	r.interrupt()
}

// interrupt ends both directions by a deadline in the past.
func (r *relay) interrupt() {
	past := time.Unix(1, 0)
	_ = r.client.conn.SetDeadline(past)
	_ = r.server.conn.SetDeadline(past)
}

// outcome returns the first failure; nil if both streams have ended normally.
func (r *relay) outcome() (reason string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reason, r.err
}
