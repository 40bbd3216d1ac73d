package listener

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
)

// rejectTime bounds RejectConn.
const rejectTime = time.Second

// serveConn runs an accepted connection: admission, PROXY header, session.
func (s *Server) serveConn(c *Conn) {
	admitted := false
	defer func() {
		if !admitted {
			_ = c.Close()
			s.forget(c)
		}
	}()
	defer s.recoverSession(c)
	_ = s.config().TCP.Apply(c.stream) // an error means that the connection is closed: the session will see that
	if !s.admit(c) {
		return
	}
	admitted, c.server = true, s
	s.runSession(c, func(ctx context.Context, c *Conn) {
		if s.begin(c) {
			s.handler.ServeConn(ctx, c)
		}
	})
}

// runSession runs a session until it ends or suspends.
func (s *Server) runSession(c *Conn, part func(context.Context, *Conn)) {
	defer s.suspendOrEnd(c)
	defer s.recoverSession(c)
	part(s.sessionContext(), c)
}

// suspendOrEnd runs when the session's function has returned. It arranges that a suspended session
// is resumed, and closes the connection of any other.
func (s *Server) suspendOrEnd(c *Conn) {
	switch {
	case !c.is(connSuspended):
	case c.is(connResumedByCall):
		if c.flags.Or(connReturned)&connResumeCalled != 0 {
			c.Go(c.resume)
		}
		return
	case !c.OnReadable(c.resume):
		c.Go(c.resume)
		return
	default:
		return
	}
	s.uncount(c) // before release admits the next connection
	s.connLimit.release()
	_ = c.Close()
	s.forget(c)
}

// resume resumes a suspended session.
func (c *Conn) resume() {
	c.flags.And(^(connSuspended | connResumedByCall | connReturned | connResumeCalled))
	c.server.runSession(c, c.session.(Resumer).Resume) //nolint:forcetypeassert // Suspend has checked it
}

// sessionContext returns the context of a session. On a fiber it carries a
// Parker, so that waiting for a pool does not hold the loop.
func (s *Server) sessionContext() context.Context {
	if p := fiber.NewParker(); p != nil {
		return pool.WithParker(s.ctx, p)
	}
	return s.ctx
}

// admit waits until the connection limit admits c. It returns false if c was rejected, or if the
// client reset the connection, or ended its stream without sending anything, while it waited. Such
// a client gets no session, so that a flood of them opens no connections to backends. Nor does one
// whose connection an operator has ended meanwhile.
func (s *Server) admit(c *Conn) bool {
	cfg := s.config()
	waited, err := s.connLimit.acquire(cfg.QueueTimeout)
	if c.is(connClosed) {
		if err == nil {
			s.connLimit.release()
		}
		return false
	}
	if err == nil && waited && c.clientGone() {
		s.connLimit.release()
		s.gone.Add(1)
		s.Report(ReasonClientGone, slog.LevelInfo, "client disconnected while it waited for the connection limit", "client", c.RemoteAddr().String())
		return false
	}
	if err == nil {
		return true
	}
	s.rejected.Add(1)
	reason, level := ReasonRejected, slog.LevelWarn
	if errors.Is(err, ErrDraining) { // the connection limit is not the reason
		reason, level = ReasonDrained, slog.LevelInfo
	} else {
		s.lastRejected.Store(time.Now().UnixNano())
	}
	s.Report(reason, level, "connection rejected", "client", c.RemoteAddr().String(),
		"max_conns", cfg.MaxConns, "max_queue", cfg.MaxQueue, "error", err)
	s.explain(c, err)
	return false
}

// explain sends the reason to a rejected client, if the Handler is a Rejecter.
func (s *Server) explain(c *Conn, reason error) {
	r, ok := s.handler.(Rejecter)
	if !ok || errors.Is(reason, ErrDraining) {
		return
	}
	select {
	case s.rejects <- struct{}{}:
	default:
		return
	}
	defer func() { <-s.rejects }()
	defer s.recoverSession(c)
	_ = c.SetDeadline(time.Now().Add(rejectTime))
	r.RejectConn(c, reason)
	closeGently(c)
}

// closeGently ends the sending direction and waits until the client closes. Closing a socket with
// unread input would reset the connection, and the client might not get the message.
func closeGently(c *Conn) {
	if c.CloseWrite() != nil {
		return
	}
	buf := make([]byte, 512)
	for range 64 { // a client that keeps sending is disconnected
		if _, err := c.Read(buf); err != nil {
			return
		}
	}
}

// begin reads the PROXY header if there must be one, and marks the session as running. It returns
// false if the connection gets no session.
func (s *Server) begin(c *Conn) bool {
	cfg := s.config()
	if cfg.expectsHeader(c) {
		s.uncount(c) // the configuration may have changed since c was accepted
		err := readProxyHeader(c, cfg.ProxyTimeout)
		switch {
		case c.is(connClosed): // an operator has ended it
			return false
		case err != nil:
			s.rejectNoHeader(c, err)
			return false
		}
		if err := s.checkSource(c, cfg, false); err != nil {
			s.refuse(c, err)
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || c.is(connClosed) { // by an operator
		return false
	}
	c.flags.Or(connServing)
	s.unbegun--
	return true
}

// rejectNoHeader counts and logs a connection without a valid PROXY header. A client that
// disconnected without sending anything counts like one that screen refuses, which disconnected a
// moment earlier.
func (s *Server) rejectNoHeader(c *Conn, err error) {
	client := c.stream.RemoteAddr().String()
	if errors.Is(err, errNoByte) {
		s.gone.Add(1)
		s.Report(ReasonClientGone, slog.LevelDebug, "client disconnected before its PROXY header", "client", client)
		return
	}
	s.rejected.Add(1)
	if !s.IsDraining() { // otherwise the drain has closed the connection
		s.Report(ReasonProxyHeader, slog.LevelWarn, "connection rejected", "client", client, "error", err)
	}
}

func (s *Server) recoverSession(c *Conn) {
	if p := recover(); p != nil {
		c.flags.And(^(connSuspended | connResumedByCall))
		s.Report(ReasonInternal, slog.LevelError, "session panicked", "client", c.RemoteAddr().String(),
			"panic", p, "stack", string(debug.Stack()))
	}
}

// track registers an accepted connection. It returns false if the server drains.
func (s *Server) track(c *Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return false
	}
	s.conns = append(s.conns, c)
	s.unbegun++
	c.index = int32(len(s.conns))
	s.room.open.Add(1)
	return true
}

// forget removes a closed connection from the register. A second call does nothing.
func (s *Server) forget(c *Conn) {
	s.uncount(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.index == 0 {
		return
	}
	if !c.is(connServing) {
		s.unbegun--
	}
	last := len(s.conns) - 1
	moved := s.conns[last]
	s.conns[c.index-1], moved.index = moved, c.index
	s.conns[last], c.index, c.session = nil, 0, nil
	s.conns = s.conns[:last]
	s.room.open.Add(-1)
	s.in.Add(c.in.Load())
	s.out.Add(c.out.Load())
	s.noteEmpty()
}

// noteEmpty wakes Drain when the last connection is gone. mu must be held.
func (s *Server) noteEmpty() {
	if s.stopped && !s.emptied && len(s.conns) == 0 {
		s.emptied = true
		close(s.empty)
	}
}
