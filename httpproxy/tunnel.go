package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// tunnel is an upgrade: first what was asked for, then the bytes both ways between two connections, or streams of them.
// While nothing arrives neither direction has a stack (fiber.CopyThen), and the session rests.
type tunnel struct {
	s      *session
	to     string             // the protocol, or those that the client offers
	socket bool               // it is WebSocket
	alone  bool               // the connection to the server was opened for it, see reopenForUpgrade
	key    [webSocketKey]byte // that the server was sent instead of a client's; zero = none

	// Once the server has agreed.
	head    []byte // of the request, as text; it is parsed again for logs
	idle    time.Duration
	in      atomic.Int64 // bytes from the client
	out     atomic.Int64 // bytes from the server
	began   time.Time
	moved   atomic.Int64 // when the last byte came from either side, in ns since began; not affected by the wall clock
	counted int          // bytes from the client that were counted before, and are moved first
	timer   *time.Timer  // checks the idle limit of both directions together; nil = no limit
	ended   sync.Once    // the first failure ends both directions
	err     error        // the first failure; read it only when both directions have ended
	running fiber.Group  // the directions
	parts   atomic.Int32 // the directions that run, and the session until it rests or waits
	resume  func()       // continues the resting session; called by the last part

	clientWhole, serverWhole atomic.Bool // each has got the other one's end, after all that came before it
	endedBy                  atomic.Pointer[string]
}

// Sides of a tunnel, for endedBy: the one that ended its stream first.
var sideClient, sideServer = "client", "server"

// beginTunnel starts both directions. It returns errRests, after which restOfTunnel continues, or else the tunnel's outcome.
func (s *session) beginTunnel() error {
	t := s.ex.tunnel
	fromClient, fromServer := s.dropHeads()
	client, server := s.client.conn, s.server.conn
	_ = client.SetDeadline(time.Time{})
	_ = server.SetDeadline(time.Time{})
	if s.stream != nil {
		s.stream.uses(nil) // otherwise a reset of the client would end the server's connection as if nothing were missing
	}
	t.idle, t.counted, t.began = s.ex.target.idle, len(fromClient), time.Now()
	t.watch()
	t.parts.Store(3)
	t.running.Add(2)
	fiber.Go(func() {
		t.start(fiber.Ahead(client, fromClient), server, httppool.ErrClientGone, httppool.ErrServerGone, t.fromClient, &t.serverWhole)
	})
	fiber.Go(func() {
		t.start(fiber.Ahead(server, fromServer), client, httppool.ErrServerGone, httppool.ErrClientGone, t.fromServer, &t.clientWhole)
	})
	if client.Loop() == 0 {
		t.running.Wait()
		t.parts.Add(-1)
		return s.endTunnel()
	}
	return errRests
}

// dropHeads frees the buffers of both sides, and returns what they have of the new protocol.
func (s *session) dropHeads() (fromClient, fromServer []byte) {
	x := &s.ex
	x.id, x.raw, x.captured, x.asked = bytes.Clone(x.id), nil, nil, nil
	if s.stream != nil {
		x.tunnel.head = appendText(nil, &s.req)
	} else {
		x.tunnel.head = bytes.Clone(s.client.bytes()[:x.size])
	}
	s.held.add(cap(x.tunnel.head) - cap(s.reqText))
	fromClient, fromServer = bytes.Clone(s.client.bytes()[x.size:]), bytes.Clone(s.server.bytes())
	x.size = 0
	s.client.drop()
	s.server.drop()
	s.req, s.resp = httpwire.Request{}, httpwire.Response{Status: s.resp.Status}
	s.reqText, s.respText = nil, nil
	return fromClient, fromServer
}

// restInTunnel makes the session rest until the tunnel has ended; false = it cannot.
func (s *session) restInTunnel() bool {
	t := s.ex.tunnel
	if s.stream == nil {
		if t.resume = s.lc.SuspendUntil(); t.resume == nil {
			t.running.Wait()
			t.parts.Add(-1)
			return false
		}
		s.leases = nil // it belongs to the fiber
	} else {
		t.resume = s.stream.resumes()
	}
	s.rests = true
	t.part()
	return true
}

// part is called when a part ends. The session continues on the loop of its client.
func (t *tunnel) part() {
	if t.parts.Add(-1) == 0 {
		t.s.client.conn.Go(t.resume)
	}
}

// endTunnel returns the outcome of a tunnel: nil if both sides have ended their streams.
func (s *session) endTunnel() error {
	x := &s.ex
	t := x.tunnel
	t.unwatch()
	if t.head != nil {
		_, _ = s.req.Parse(t.head) // no error: it was parsed before
		_, _, _ = s.canonical()
	}
	x.result.BytesIn, x.result.BytesOut = t.in.Load(), t.out.Load()
	t.logEnd()
	if s.stream != nil {
		s.stream.uses(nil)
		s.stream.cancels(nil)
	}
	s.server.drop()
	_ = x.lease.Value().Close()
	x.lease.Discard()
	if t.err != nil {
		return &httppool.Error{Endpoint: x.result.Endpoint, Step: "body", Reused: x.result.Reused, Err: t.err}
	}
	return nil
}

// logEnd logs why the tunnel ends: an access log shows neither which side ended a stream that has no error, nor how long
// both were silent before.
func (t *tunnel) logEnd() {
	s, log := t.s, t.s.p.srv.Logger()
	if !log.Enabled(s.ctx, slog.LevelDebug) {
		return
	}
	by := ""
	if side := t.endedBy.Load(); side != nil {
		by = *side
	}
	lasted := time.Since(t.began)
	log.Debug("upgraded connection ended", "client", s.lc.RemoteAddr().String(), "endpoint", s.ex.result.Endpoint, "ended_by", by,
		"bytes_in", t.in.Load(), "bytes_out", t.out.Load(), "duration", lasted, "silent", lasted-time.Duration(t.moved.Load()),
		"unended", t.parts.Load(), "error", t.err)
}

// start starts one direction: it copies src to dst until src ends, and passes the end on. srcGone and dstGone are the
// errors that wrap failures of src and dst. whole is set when dst has got the end.
func (t *tunnel) start(src, dst fiber.Stream, srcGone, dstGone error, moved func(int), whole *atomic.Bool) {
	over := func(readErr, writeErr error) {
		defer t.part()
		defer t.running.Done()
		switch {
		case errors.Is(writeErr, fiber.ErrPanicked):
			t.reset(errPanicked)
		case readErr == io.EOF:
			if whole.Store(true); whole == &t.serverWhole {
				t.endedBy.CompareAndSwap(nil, &sideClient)
			} else {
				t.endedBy.CompareAndSwap(nil, &sideServer)
			}
			if err := dst.CloseWrite(); errors.Is(err, errors.ErrUnsupported) {
				_ = src.CloseWrite()
				t.fail(nil) // dst cannot be half-closed
			}
			if t.s.stream != nil && whole == &t.serverWhole {
				t.followClient()
			}
		case readErr != nil:
			t.reset(fmt.Errorf("%w: %w", srcGone, readErr))
		default:
			t.reset(fmt.Errorf("%w: %w", dstGone, writeErr))
		}
	}
	if fiber.CopyThen(src, dst, moved, nil, over) {
		return
	}
	readErr, writeErr := error(nil), fiber.ErrPanicked
	defer func() { over(readErr, writeErr) }()
	defer t.s.p.recovered(t.s.lc)
	readErr, writeErr = src.CopyTo(dst, moved, nil)
}

// followClient has the tunnel end with the client's stream, which nobody reads any more.
func (t *tunnel) followClient() {
	client := t.s.client.conn
	t.s.stream.cancels(func(cause error) { // called with a mutex held that reset takes, too
		client.Go(func() { t.reset(cause) })
	})
}

// fromClient counts n bytes that went to the server.
func (t *tunnel) fromClient(n int) {
	t.in.Add(int64(n))
	again := min(n, t.counted)
	t.counted -= again
	t.s.count(n-again, 0)
	t.moved.Store(int64(time.Since(t.began)))
}

// fromServer counts n bytes that went to the client.
func (t *tunnel) fromServer(n int) {
	t.out.Add(int64(n))
	t.s.count(0, n)
	t.moved.Store(int64(time.Since(t.began)))
}

// watch starts the check of the idle limit, which holds also while neither side reads the other's data.
func (t *tunnel) watch() {
	if t.idle > 0 {
		t.timer = time.AfterFunc(math.MaxInt64, t.check)
		t.timer.Reset(t.idle) // only now, so that check finds the timer
	}
}

// check ends the tunnel if no byte has moved for the idle limit, and otherwise sets the timer again. The timer calls it.
func (t *tunnel) check() {
	if left := t.idle - time.Since(t.began) + time.Duration(t.moved.Load()); left > 0 {
		t.timer.Reset(left)
		return
	}
	t.fail(httppool.ErrIdleTimeout)
}

// unwatch stops the watch: after it, check closes nothing, even if it is running.
func (t *tunnel) unwatch() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.ended.Do(func() {})
}

// reset is fail after one side, or the proxy itself, has failed. A side must not take what it got for the whole, unless it is: then a reset
// could cost it what it has not read.
func (t *tunnel) reset(err error) { t.end(err, true) }

// fail ends both directions; the first call, or that of reset, sets the error.
func (t *tunnel) fail(err error) { t.end(err, false) }

func (t *tunnel) end(err error, resets bool) {
	t.ended.Do(func() {
		s := t.s
		t.err = err
		if resets && !t.serverWhole.Load() {
			_ = s.server.conn.SetLinger(0)
		}
		_ = s.ex.lease.Value().Close()
		switch {
		case s.stream != nil && err == nil:
			s.stream.cutOff(net.ErrClosed)
			return
		case s.stream != nil:
			s.stream.cutOff(err)
			return
		case resets && !t.clientWhole.Load():
			_ = s.lc.Raw().SetLinger(0)
		}
		_ = s.lc.Close()
	})
}
