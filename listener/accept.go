package listener

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/headpond/headpond/fiber"
)

// After a temporary error, mostly a lack of file descriptors, the Server accepts again after
// minBackoff. The delay doubles with each further error, up to maxBackoff, so that accepting
// continues soon after a descriptor was closed.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
)

// acceptLoop accepts from l and runs serve for each connection, each in its own fiber or goroutine,
// until l fails for good or is closed; it returns that error.
func (s *Server) acceptLoop(l net.Listener, serve func(*Conn)) (err error) {
	s.accepting.Add(1)
	defer s.accepting.Add(-1)
	fiber.RunOn(l, func() { err = s.acceptAll(l, serve) })
	return err
}

func (s *Server) acceptAll(l net.Listener, serve func(*Conn)) error {
	a := &acceptor{server: s, serve: serve}
	a.screening = a.screen
	var delay time.Duration
	for {
		if s.room.full() && !s.isClosing() {
			delay = s.backOff(l, delay, errNoRoom)
			continue
		}
		err := a.acceptOne(l)
		switch {
		case err == nil:
			if delay > 0 {
				s.LogLimited(ReasonAccept, slog.LevelInfo, "accepting connections again", "address", l.Addr().String())
				delay = 0
			}
		case temporary(err):
			delay = s.backOff(l, delay, err)
		default:
			return err
		}
	}
}

// errPanicked is the error of an Accept that panicked.
var errPanicked = errors.New("listener: accepting panicked")

// acceptOne accepts one connection and starts its session. A panic, mostly a bug of l, is logged
// with its stack and ends at most this connection. The Server continues to accept.
func (a *acceptor) acceptOne(l net.Listener) (err error) {
	s := a.server
	var c *Conn
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.Report(ReasonInternal, slog.LevelError, "accepting a connection panicked", "address", l.Addr().String(),
			"panic", p, "stack", string(debug.Stack()))
		if c == nil {
			err = fmt.Errorf("%w: %v", errPanicked, p)
			return
		}
		_ = c.Close()
		s.forget(c)
	}()
	raw, err := fiber.AcceptScreened(l, a.screening)
	if err != nil {
		return err
	}
	if !s.room.keeps(raw) {
		return errNoRoom
	}
	s.accepted.Add(1)
	c = &Conn{stream: fiber.StreamOf(raw), accepted: time.Duration(NewID()) * time.Microsecond}
	a.dispatch(c)
	return nil
}

// dispatch starts the fiber or goroutine that serves a screened connection, or refuses the
// connection because of its source.
func (a *acceptor) dispatch(c *Conn) {
	s := a.server
	if !a.cfg.expectsHeader(c) { // otherwise the header names the source
		switch err := s.checkSource(c, a.cfg, a.addressChecked); {
		case err == nil:
		case s.getsReason(err): // sending may wait
			a.start(c, func(c *Conn) { s.sendRefusal(c, err) })
			return
		default:
			s.refuse(c, err)
			_ = c.Close()
			return
		}
	}
	a.start(c, a.serve)
}

// start runs serve on its own fiber or goroutine, unless the server is draining.
func (a *acceptor) start(c *Conn, serve func(*Conn)) {
	if s := a.server; !s.track(c) {
		_ = c.Close()
		s.uncount(c)
		return
	}
	c.Go(func() { serve(c) })
}

// sendRefusal sends the reason to the client of a connection that checkSource refused, and closes
// the connection.
func (s *Server) sendRefusal(c *Conn, err error) {
	defer func() {
		_ = c.Close()
		s.forget(c)
	}()
	defer s.recoverSession(c)
	s.refuse(c, err)
}

// backOff waits after a temporary error and returns the delay. It logs each delay that is longer
// than the last one. At the limit of open files errors and successes alternate quickly, so the
// number of lines is limited (LogLimited).
func (s *Server) backOff(l net.Listener, last time.Duration, err error) time.Duration {
	delay := min(max(2*last, minBackoff), maxBackoff)
	s.CountError(ReasonAccept)
	if delay != last {
		s.LogLimited(ReasonAccept, slog.LevelWarn, "cannot accept a connection, trying again",
			"address", l.Addr().String(), "delay", delay, "error", err, "hint", hint(err))
	}
	fiber.Block(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.closing:
		}
	})
	return delay
}

// hint returns advice for an operator about err.
func hint(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, errNoRoom):
		return "raise the process's limit of open files (ulimit -n, LimitNOFILE) or lower max_conns: a session takes two to four"
	case errors.Is(err, syscall.ENFILE):
		return "the whole system is out of files: raise fs.file-max"
	}
	return "nothing, unless it persists"
}

// temporary reports whether accepting may work again later: resources are exhausted, or the error
// concerns only the new connection. Linux returns a pending network error of the new connection,
// and a firewall's refusal (see accept(2)).
func temporary(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
	}
	if errors.Is(err, errPanicked) {
		return true
	}
	for _, e := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS,
		syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR, syscall.EPERM, syscall.EPROTO,
		syscall.ENOPROTOOPT, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		syscall.EHOSTUNREACH} {
		if errors.Is(err, e) {
			return true
		}
	}
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && t.Temporary()
}
