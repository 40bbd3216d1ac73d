package httpproxy

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/duplex"
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
	head []byte // of the request, as text; it is parsed again for logs
	duplex.Tunnel
	counted int          // bytes from the client that were counted before, and are moved first
	running fiber.Group  // the directions
	parts   atomic.Int32 // the directions that run, and the session until it rests or waits
	resume  func()       // continues the resting session; called by the last part
	endedBy atomic.Pointer[string]
}

// Sides of a tunnel, for endedBy: the one that ended its stream first.
var sideClient, sideServer = "client", "server"

// beginTunnel starts both directions. It returns errRests if the session rests until the end of the tunnel
// (restInTunnel), or else the tunnel's outcome.
func (s *session) beginTunnel() error {
	t := s.ex.tunnel
	fromClient, fromServer := s.dropHeads()
	client, server := s.client.conn, s.server.conn
	_ = client.SetDeadline(time.Time{})
	_ = server.SetDeadline(time.Time{})
	if s.stream != nil {
		s.stream.uses(nil) // otherwise a reset of the client would end the server's connection as if nothing were missing
	}
	t.counted = len(fromClient)
	t.ClientGone, t.ServerGone, t.Silent, t.Close = httppool.ErrClientGone, httppool.ErrServerGone, httppool.ErrIdleTimeout, t.close
	t.Begin(s.ex.target.idle)
	t.parts.Store(3)
	t.running.Add(2)
	fiber.Go(func() {
		t.start(fiber.Ahead(client, fromClient), server, true, t.fromClient)
	})
	fiber.Go(func() {
		t.start(fiber.Ahead(server, fromServer), client, false, t.fromServer)
	})
	if client.Loop() == 0 {
		t.running.Wait()
		t.parts.Add(-1)
		return s.endTunnel(t.End())
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

// endTunnel ends the exchange with the outcome of its tunnel, which is nil if both sides have ended their streams.
func (s *session) endTunnel(err error) error {
	x := &s.ex
	t := x.tunnel
	if t.head != nil {
		_, _ = s.req.Parse(t.head) // no error: it was parsed before
		_, _, _ = s.canonical()
		x.result.BytesIn, x.result.BytesOut = t.Traffic()
		t.logEnd(err)
	}
	if s.stream != nil {
		s.stream.uses(nil)
		s.stream.cancels(nil)
	}
	s.server.drop()
	_ = x.lease.Value().Close()
	x.lease.Discard()
	if err != nil {
		return &httppool.Error{Endpoint: x.result.Endpoint, Step: "body", Reused: x.result.Reused, Err: err}
	}
	return nil
}

// logEnd logs why the tunnel ends: an access log shows neither which side ended a stream that has no error, nor how long
// both were silent before.
func (t *tunnel) logEnd(err error) {
	s, log := t.s, t.s.p.srv.Logger()
	if !log.Enabled(s.ctx, slog.LevelDebug) {
		return
	}
	by := ""
	if side := t.endedBy.Load(); side != nil {
		by = *side
	}
	log.Debug("upgraded connection ended", "client", s.lc.RemoteAddr().String(), "endpoint", s.ex.result.Endpoint, "ended_by", by,
		"bytes_in", s.ex.result.BytesIn, "bytes_out", s.ex.result.BytesOut, "duration", t.Lasted(), "silent", t.Silence(),
		"unended", t.parts.Load(), "error", err)
}

// start starts one direction: it copies src to dst until src ends, and passes the end on.
func (t *tunnel) start(src, dst fiber.Stream, toServer bool, moved func(int)) {
	over := func(readErr, writeErr error) {
		defer t.running.Done()
		defer t.part() // first: a session that waits for the directions has nothing to be resumed with
		if errors.Is(writeErr, fiber.ErrPanicked) {
			t.Reset(errPanicked)
			return
		}
		by := &sideServer
		if toServer {
			by = &sideClient
		}
		if readErr == io.EOF {
			t.endedBy.CompareAndSwap(nil, by)
		}
		if t.Ended(toServer, src, dst, readErr, writeErr) && toServer && t.s.stream != nil {
			t.followClient()
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
	t.s.stream.cancels(func(cause error) { // called with a mutex held that Reset takes, too
		client.Go(func() { t.Reset(cause) })
	})
}

// fromClient counts n bytes that went to the server.
func (t *tunnel) fromClient(n int) {
	t.Sent(true, n)
	again := min(n, t.counted)
	t.counted -= again
	t.s.count(n-again, 0)
}

// fromServer counts n bytes that went to the client.
func (t *tunnel) fromServer(n int) {
	t.Sent(false, n)
	t.s.count(0, n)
}

// close closes both connections; see duplex.Tunnel.
func (t *tunnel) close(err error, resetClient, resetServer bool) {
	s := t.s
	if resetServer {
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
	case resetClient:
		_ = s.lc.Raw().SetLinger(0)
	}
	_ = s.lc.Close()
}
