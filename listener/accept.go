package listener

import (
	"errors"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/headpond/headpond/fiber"
)

// A failing accept (out of file descriptors, mostly) is tried again after
// minBackoff, doubled up to maxBackoff: long enough not to spin, short enough
// to be back soon after something was closed.
const (
	minBackoff = 5 * time.Millisecond
	maxBackoff = time.Second
)

// acceptLoop accepts from l and runs serve for each connection, in a fiber or a
// goroutine of its own, until l fails for good or is closed; it returns that
// error.
func (s *Server) acceptLoop(l net.Listener, serve func(*Conn)) (err error) {
	fiber.RunOn(l, func() { err = s.acceptAll(l, serve) })
	return err
}

func (s *Server) acceptAll(l net.Listener, serve func(*Conn)) error {
	var delay time.Duration
	for {
		if s.room.full() && !s.isDraining() {
			delay = s.backOff(l, delay, errNoRoom)
			continue
		}
		raw, err := l.Accept()
		if err == nil {
			if delay > 0 {
				s.logLimited(ReasonAccept, slog.LevelInfo, "accepting again", "address", l.Addr().String())
				delay = 0
			}
			s.accepted.Add(1)
			s.receive(&Conn{stream: fiber.StreamOf(raw), accepted: time.Duration(NewID()) * time.Microsecond}, serve)
			continue
		}
		if !temporary(err) {
			return err
		}
		delay = s.backOff(l, delay, err)
	}
}

// receive starts what serves an accepted connection, unless its source is refused.
func (s *Server) receive(c *Conn, serve func(*Conn)) {
	cfg := s.config()
	if !cfg.owesHeader(c) { // else its source is known later
		switch err := s.checkSource(c, cfg); {
		case err == nil:
		case s.tells(err): // which may take a while
			serve = func(c *Conn) { s.refuseSource(c, err); _ = c.Close(); s.forget(c) }
		default:
			s.refuseSource(c, err)
			_ = c.Close()
			return
		}
	}
	if !s.track(c) {
		_ = c.Close()
		s.uncount(c)
		return
	}
	c.Go(func() { serve(c) })
}

// backOff waits after a temporary error and returns for how long. It logs
// while the delay grows, and then not until accepting has worked again. At the limit of open files
// that happens all the time, hence logLimited.
func (s *Server) backOff(l net.Listener, last time.Duration, err error) time.Duration {
	delay := min(max(2*last, minBackoff), maxBackoff)
	s.CountError(ReasonAccept)
	if delay != last {
		s.logLimited(ReasonAccept, slog.LevelWarn, "cannot accept a connection, trying again",
			"address", l.Addr().String(), "delay", delay, "error", err, "hint", hint(err))
	}
	fiber.Block(func() {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.draining:
		}
	})
	return delay
}

// hint says what an operator can do about err.
func hint(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, errNoRoom):
		return "raise the process's limit of open files (ulimit -n, LimitNOFILE) or lower max_conns: a session takes two to four"
	case errors.Is(err, syscall.ENFILE):
		return "the whole system is out of files: raise fs.file-max"
	}
	return "nothing, unless it persists"
}

// temporary reports whether accepting may work again later: resources are exhausted,
// or the error is the new connection's own (Linux
// returns its pending network error and a firewall's refusal, see accept(2)).
func temporary(err error) bool {
	if errors.Is(err, net.ErrClosed) {
		return false
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
