package httpproxy

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// upgradeProtocol returns the protocol that the client wants to upgrade to; nil = none. A request with a body cannot upgrade: one of
// the sides might take the body for the new protocol. Neither can a request of HTTP/2, nor one for a protocol that carries
// HTTP requests, which would bypass this proxy's rules.
func (s *session) upgradeProtocol() []byte {
	if r := &s.req; r.Length == 0 && s.stream == nil && !httpwire.CarriesRequests(r.Upgrade) {
		return r.Upgrade
	}
	return nil
}

// upgrade passes on a 101 response, whose head takes n bytes of the server's buffer, and then the data of both sides
// until they have ended.
func (s *session) upgrade(n int) error {
	x := &s.ex
	var to []byte
	for i := range s.resp.Fields {
		if f := &s.resp.Fields[i]; f.Known == httpwire.Upgrade {
			to = f.Value
		}
	}
	if err := httpwire.CheckSwitch(s.upgradeProtocol(), to, s.resp.Upgrades); err != nil {
		return s.fail("receive", err)
	}
	x.result.Status, x.result.Upgraded = s.resp.Status, true
	x.upgraded, x.wrote = true, true
	s.noteFirst()
	s.measureAnswer()
	x.lease.OK() // the server has answered; the end of the tunnel does not count
	err := s.toClient(s.appendSwitching(s.outgoing(), to))
	s.releaseOut()
	s.server.take(n)
	if err == nil {
		err = s.tunnel()
	}
	s.server.drop()
	_ = x.lease.Value().Close()
	x.lease.Discard()
	if err != nil {
		err = &httppool.Error{Endpoint: x.result.Endpoint, Step: "body", Reused: x.result.Reused, Err: err}
	}
	return err
}

// appendSwitching appends the head of a 101 response for the client.
func (s *session) appendSwitching(dst, to []byte) []byte {
	w := headWriter{dst: append(dst, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"...)}
	w.begin("Upgrade")
	w.dst = append(w.dst, to...)
	w.end()
	for i := range s.resp.Fields {
		f := &s.resp.Fields[i]
		if s.resp.EndToEnd(f) && f.Known != httpwire.ContentLength {
			w.field(f)
		}
	}
	s.appendSetCookies(&w)
	return w.finish()
}

// tunnel carries bytes both ways between the ends of an upgraded connection. The direction from the client runs on a
// fiber of its own.
type tunnel struct {
	s       *session
	idle    time.Duration
	in      atomic.Int64 // bytes from the client
	out     atomic.Int64 // bytes from the server
	began   time.Time
	moved   atomic.Int64 // when the last byte came from either side, in ns since began; not affected by the wall clock
	counted int          // bytes from the client that were counted before, and are moved first
	timer   *time.Timer  // checks the idle limit of both directions together; nil = no limit
	ended   sync.Once    // the first failure ends both directions
	err     error        // the first failure; read it only when both directions have ended
}

// tunnel returns nil if both sides have ended their streams.
func (s *session) tunnel() error {
	x := &s.ex
	s.request() // now, because the head is dropped below
	s.keepHead()
	fromClient := append([]byte(nil), s.client.bytes()[x.size:]...)
	t := &tunnel{s: s, idle: x.target.idle, counted: len(fromClient), began: time.Now()}
	fromServer := append([]byte(nil), s.server.bytes()...)
	x.size = 0
	s.client.drop()
	s.server.drop()
	s.req, s.resp = httpwire.Request{}, httpwire.Response{Status: s.resp.Status} // drop references to buffers
	client, server := s.client.conn, s.server.conn
	_ = client.SetDeadline(time.Time{})
	_ = server.SetDeadline(time.Time{})
	t.watch()
	var up fiber.Group
	up.Go(func() {
		defer s.p.recovered(s.lc)
		returned := false
		defer func() {
			if !returned {
				t.fail(errPanicked)
			}
		}()
		t.carry(fiber.Ahead(client, fromClient), server, httppool.ErrClientGone, httppool.ErrServerGone, t.fromClient)
		returned = true
	})
	t.carry(fiber.Ahead(server, fromServer), client, httppool.ErrServerGone, httppool.ErrClientGone, t.fromServer)
	up.Wait()
	t.unwatch()
	x.result.BytesIn, x.result.BytesOut = t.in.Load(), t.out.Load()
	return t.err
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
		t.timer.Reset(t.idle) // only now, so that look finds the timer
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

// unwatch stops the watch: after it, look closes nothing, even if it is running.
func (t *tunnel) unwatch() {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.ended.Do(func() {})
}

// carry copies src to dst until src ends, and passes the end on. srcGone and dstGone are the errors that wrap failures
// of src and dst.
func (t *tunnel) carry(src, dst fiber.Stream, srcGone, dstGone error, moved func(int)) {
	switch readErr, writeErr := src.CopyTo(dst, moved, nil); {
	case readErr == io.EOF:
		if err := dst.CloseWrite(); errors.Is(err, errors.ErrUnsupported) {
			t.fail(nil) // dst cannot be half-closed
		}
	case readErr != nil:
		t.fail(fmt.Errorf("%w: %w", srcGone, readErr))
	default:
		t.fail(fmt.Errorf("%w: %w", dstGone, writeErr))
	}
}

// fail ends both directions; the first call sets the error.
func (t *tunnel) fail(err error) {
	t.ended.Do(func() {
		t.err = err
		_ = t.s.ex.lease.Value().Close()
		_ = t.s.lc.Close()
	})
}
