package tcpproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// opening is the state that lets a session move to another endpoint: all that its client has sent. It is used until the
// server has sent something, or the client something that must not be sent twice. relay.mu guards it.
type opening struct {
	sent    []byte  // by the client, from the beginning
	spent   bool    // the session cannot move
	lost    bool    // the endpoint is lost: both directions are ending, and the session moves
	broken  bool    // a write to the server failed, see relay.err; the server's direction decides
	silence silence // how the server has ended its stream without a byte
	moved   int     // bytes written to the server, for counting
}

// silence is what a server had received when it ended its stream without having sent a byte.
type silence int

const (
	notSilent     silence = iota // the stream has not ended, or the server had received nothing of a ClientHello
	silentAtPart                 // part of a ClientHello: the client may have kept it waiting
	silentAtHello                // a whole ClientHello
)

// openingSize is the size of a piece of a ClientHello. Most have 300 bytes to 2 KiB.
const openingSize = 2 << 10

// openingBuffers holds *[openingSize]byte. A buffer is only held while there is something to read, if the connection
// allows that.
var openingBuffers = sync.Pool{New: func() any { return new([openingSize]byte) }}

// errLost ends copying from the client when the endpoint is lost.
var errLost = errors.New("the endpoint is lost")

// copyOpening copies from the client while the session may move. If both errors are nil, CopyTo copies the rest.
func (r *relay) copyOpening() (readErr, writeErr error) {
	for !r.isSpent() {
		err := r.client.conn.WaitReadable()
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			return err, nil
		}
		if readErr, writeErr = r.copyOpeningPiece(); readErr != nil || writeErr != nil {
			return readErr, writeErr
		}
	}
	return nil, nil
}

func (r *relay) isSpent() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opening.spent
}

func (r *relay) copyOpeningPiece() (readErr, writeErr error) {
	buf := openingBuffers.Get().(*[openingSize]byte) //nolint:forcetypeassert // it holds no others
	defer openingBuffers.Put(buf)
	n, readErr := r.client.conn.Read(buf[:])
	if n == 0 {
		r.spend(errors.Is(readErr, io.EOF))
		return readErr, nil
	}
	if !r.keep(buf[:n]) {
		return errLost, nil
	}
	r.stalled.moving(true)
	m, writeErr := r.server.conn.Write(buf[:n])
	r.countToServer(m)
	r.mu.Lock()
	r.opening.moved += m
	r.mu.Unlock()
	return nil, writeErr
}

// spend records whether the client has ended its stream: only the current endpoint may get that.
func (r *relay) spend(ended bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ended {
		r.opening.spent, r.opening.sent, r.opening.broken = true, nil, false
	}
}

// stay is called at the server's first byte: the session no longer moves, and what its client has sent is dropped.
func (r *relay) stay() { r.spend(true) }

// keep adds the client's next bytes. It returns false if they must not be sent to the endpoint, which is lost.
func (r *relay) keep(p []byte) (sends bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.opening
	switch {
	case f.spent:
		return true
	case !f.lost && len(f.sent) == 0 && !repeatable(p): // for protocols without TLS: nothing is copied
		f.spent = true
		return true
	}
	f.sent = append(f.sent, p...)
	if !f.lost && !repeatable(f.sent) {
		f.spent, f.sent = true, nil
	}
	return !f.lost
}

// lostServer reports whether reading from src failed because the endpoint is lost and the session moves. After a failed
// write the server's direction decides: an answer may have arrived before.
func (r *relay) lostServer(src *side, readErr error) bool {
	return readErr != nil && src == &r.server && r.lose(listener.ReasonBackendGone, readErr)
}

// endpointOut ends the session because of its endpoint, unless the session moves or has moved.
func (r *relay) endpointOut(why error) {
	if errors.Is(why, upstream.ErrRebalanced) {
		if r.isLost() {
			return
		}
	} else if r.lose(reasonOfCut(why), why) {
		return
	}
	r.session.cutOff(why)
}

// wasSilent returns how the server ended its stream without a byte.
func (r *relay) wasSilent() silence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opening.silence
}

func (r *relay) isLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opening.lost
}

// lose ends both directions, and reports whether the session moves. why and its error counter are recorded in case the
// server's first byte reaches the client after all. If the session does not move now, it never will: its client may be
// about to see the end. A server that ends its stream before it was sent anything may want to read only, so it is not
// lost.
func (r *relay) lose(reason string, why error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.opening.lost {
		return true
	}
	f := &r.opening
	ended := errors.Is(why, io.EOF)
	broken := f.broken
	f.broken = false // a later failure no longer replaces the failed write
	if f.spent || r.err != nil && !broken || r.finished || r.serverSent.Load() {
		f.spent, f.sent = true, nil
		return false
	}
	if ended {
		f.silence = silenceAt(f.sent)
	}
	if ended && f.silence == notSilent || !r.session.mayLeave(r.endpoint) || reason == listener.ReasonBackendGone && !r.session.proxy.mayMove(time.Now()) {
		f.spent, f.sent = true, nil
		return false
	}
	f.lost = true
	switch {
	case broken && ended: // the failed write says more than the end of the stream
	case reason == listener.ReasonBackendGone:
		r.reason, r.err = reason, fmt.Errorf("read from %s before its first byte: %w", r.server.name, why)
	default:
		r.reason, r.err = reason, why
	}
	r.interrupt()
	return true
}

// Of the sessions that begin within movesWindow, movesPercent may leave an endpoint that breaks off, or retrybudget.Floor
// if that is more: see Config.NoRetry.
const (
	movesWindow  = 20 * time.Second
	movesPercent = 20
)

// mayMove reports whether one more session may leave an endpoint that breaks off, and counts the answer.
func (p *Proxy) mayMove(now time.Time) bool {
	if p.moves.Take(now, p.begun.Load(), movesPercent) {
		return true
	}
	p.refused.Add(1)
	return false
}

// mayLeave reports whether there is time and another endpoint to try. An endpoint tried twice was the last choice.
func (s *session) mayLeave(endpoint string) bool {
	var tried [maxAttempts]string
	return len(s.tried) < maxAttempts-1 && !slices.Contains(s.tried, endpoint) && fiber.Now().Before(s.triesUntil) && s.target.upstream.Others(append(append(tried[:0], s.tried...), endpoint))
}

// moves reports, after run, whether the session moves, and the beginning of the client's stream. If the session was cut
// off meanwhile, it ends with that.
func (r *relay) moves() (sent []byte, moves bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.opening
	if !f.lost || f.spent || r.serverSent.Load() {
		return nil, false
	}
	if cut := r.session.isCut(); cut != nil {
		r.reason, r.err = reasonOfCut(cut), cut
		return nil, false
	}
	return f.sent, true
}

// leaveEndpoint ends the lease of an endpoint from which the session moves.
func (s *session) leaveEndpoint(r *relay) {
	reason, err := r.outcome()
	s.mu.Lock()
	s.relay = nil
	s.mu.Unlock()
	s.counted += r.opening.moved
	_ = r.client.conn.SetDeadline(time.Time{})
	_ = r.server.conn.SetLinger(0)
	s.endLease(r, reason, err)
	s.proxy.moved.Add(1)
	s.tried = append(s.tried, r.endpoint)
	s.departed = &departure{r.endpoint, reason, err}
	s.proxy.srv.LogLimited("moved", slog.LevelInfo, "session continues with another endpoint", "client", s.client.RemoteAddr().String(),
		"upstream", s.upstreamName(), "endpoint", r.endpoint, "error", err)
}

// departure is the last endpoint from which a session moved, and why.
type departure struct {
	endpoint, reason string
	err              error
}

// refuseMoved accounts for a session that moved and found no other endpoint, because of err. The first failure is the
// cause.
func (s *session) refuseMoved(err error) {
	left := s.departed
	s.broke(left.endpoint, left.reason, fmt.Errorf("%w; and then no other endpoint: %w", left.err, err))
}

// blames reports whether a failure counts against the session's endpoint. Repeated failures of one client count once.
func (s *session) blames() bool { return len(s.tried) == 0 }

// silenceAt returns the silence of a server that had received sent.
func silenceAt(sent []byte) silence {
	switch {
	case len(sent) == 0:
		return notSilent
	case wholeHello(sent):
		return silentAtHello
	}
	return silentAtPart
}

// wholeHello reports whether b, which is repeatable, is a whole ClientHello.
func wholeHello(b []byte) bool {
	const header = 5
	return len(b) > header && len(b)-header == int(binary.BigEndian.Uint16(b[3:]))
}

// repeatable reports whether b, what a client has sent first, may be sent to another server too: it is all or part of a
// TLS ClientHello in one record, as all usual clients send it, without early data.
func repeatable(b []byte) bool {
	const header, messageHeader = 5, 4 // RFC 8446, sections 5.1 and 4
	switch {
	case b[0] != handshakeRecord || len(b) > 1 && b[1] != 3 || len(b) > maxHello:
		return false
	case len(b) <= header:
		return true
	}
	size, message := int(binary.BigEndian.Uint16(b[3:])), b[header:]
	if message[0] != 1 || len(message) > size || size < messageHeader {
		return false
	}
	if len(message) < size {
		return true
	}
	return int(message[1])<<16|int(binary.BigEndian.Uint16(message[2:])) == size-messageHeader && !earlyData(message[messageHeader:])
}

// earlyData reports whether a ClientHello announces early data (RFC 8446, section 4.2.10), or is malformed.
func earlyData(hello []byte) bool {
	const version, random, extension = 2, 32, 42
	h := fields{rest: hello}
	h.skip(version + random)
	h.take(1) // session ID
	h.take(2) // cipher suites
	h.take(1) // compression methods
	if h.bad || len(h.rest) == 0 {
		return h.bad
	}
	all := fields{rest: h.take(2)}
	for !h.bad && !all.bad && len(all.rest) > 0 {
		kind := all.skip(2)
		all.take(2)
		if !all.bad && binary.BigEndian.Uint16(kind) == extension {
			return true
		}
	}
	return h.bad || all.bad || len(h.rest) > 0
}

// fields reads the fields of a message.
type fields struct {
	rest []byte
	bad  bool // one was longer than the message
}

// skip returns the next n bytes.
func (f *fields) skip(n int) (b []byte) {
	if f.bad = f.bad || n > len(f.rest); f.bad {
		return nil
	}
	b, f.rest = f.rest[:n], f.rest[n:]
	return b
}

// take returns a field that begins with its length in n bytes.
func (f *fields) take(lengthBytes int) []byte {
	n := 0
	for _, b := range f.skip(lengthBytes) {
		n = n<<8 | int(b)
	}
	return f.skip(n)
}
