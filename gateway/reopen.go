package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/extend"
)

// An address whose socket has failed is opened again after reopenPause, doubled up to maxReopenPause while it keeps failing: soon enough that
// clients hardly notice a single failure, and rarely enough that a lasting one costs nothing. A socket that was served for longer than
// maxReopenPause begins with reopenPause again.
const (
	reopenPause    = time.Second
	maxReopenPause = 30 * time.Second
)

// pauseAfter returns how long to wait before the next attempt, after a number of earlier failures in a row.
func pauseAfter(failures int) time.Duration {
	pause := reopenPause
	for ; failures > 0 && pause < maxReopenPause; failures-- {
		pause *= 2
	}
	return min(pause, maxReopenPause)
}

// startSocket serves sock, or has it opened if it is awaited.
func (g *Gateway) startSocket(s *service, sock *socket) {
	if sock.awaited.IsZero() {
		g.startService(s, sock)
		return
	}
	g.tasks.Go(func() { g.reopen(s, sock, 0) })
}

// startService serves sock until it fails, is retired or the proxy drains.
func (g *Gateway) startService(s *service, sock *socket) {
	g.mu.Lock()
	sock.served = time.Now()
	g.mu.Unlock()
	g.logger.Info("listening", "listener", s.cfg.Name, "protocol", s.cfg.Protocol, "address", address(sock), "network", sock.Addr().Network(), "tls", s.cert != nil)
	sock.deferAccept(extend.ProtocolOf(s.cfg.Protocol).Config.ClientFirst) // another protocol, or process, may have had it
	proxy := s.proxy
	g.tasks.Go(func() {
		err := proxy.Serve(sock.Listener) // adopted by the engine, so that accepting is a fiber too
		if err == nil || sock.retired.Load() {
			return
		}
		g.stopped(s, sock, err)
	})
}

// stopped records that a socket has failed, and has it opened again.
func (g *Gateway) stopped(s *service, sock *socket, err error) {
	g.mu.Lock()
	draining, name := g.draining, s.cfg.Name
	if !draining {
		sock.failed = err
		if time.Since(sock.served) > maxReopenPause {
			sock.failures = 0
		}
	}
	failures := sock.failures
	g.mu.Unlock()
	if draining {
		return
	}
	g.logger.Error("listener stopped", "listener", name, "address", address(sock), "network", sock.Addr().Network(), "error", err, "again_in", pauseAfter(failures))
	g.tasks.Go(func() { g.reopen(s, sock, failures) })
}

// reopen is a goroutine that opens the address of a failed socket again, until that succeeds, a reload does it, or the gateway ends.
func (g *Gateway) reopen(svc *service, sock *socket, failures int) {
	for done := false; !done; failures++ {
		if sock.awaits() {
			wait(g.hard, awaitPause)
		} else {
			wait(g.hard, pauseAfter(failures))
		}
		if !g.lockRunning() {
			return
		}
		done = g.tryReopen(svc, sock, failures+1)
		g.reloading.Unlock()
	}
}

// tryReopen opens a failed socket of a service again, and reports whether that is done, or the service does not need it any more. It leaves
// the service's other socket alone, which may have failed, too, and whose address may be taken. reloading is held.
func (g *Gateway) tryReopen(svc *service, sock *socket, failures int) (done bool) {
	if !slices.Contains(g.services, svc) || !slices.Contains(svc.sockets(), sock) {
		return true
	}
	p := &plan{Plan: extend.Plan{Old: g.cfg, New: g.cfg}}
	perm, err := permissionOf(&svc.cfg)
	switch s := (&spec{cfg: svc.cfg, perm: perm}); {
	case err != nil:
	case sock == svc.socket:
		_, err = g.changeFirst(p, s, svc)
	default:
		err = g.changeSecond(p, s, svc, svc.socket)
	}
	if err != nil {
		p.abort()
		g.notReopened(svc, sock, err, pauseAfter(failures))
		return false
	}
	g.mu.Lock()
	for _, s := range p.starts {
		s.socket.failures = failures
	}
	g.mu.Unlock()
	for _, apply := range p.Commit {
		if err := apply(); err != nil {
			g.logger.Error("a socket that was opened again could not be served", "listener", svc.cfg.Name, "error", err)
		}
	}
	for _, s := range p.starts {
		g.startSocket(s.service, s.socket)
	}
	for _, s := range p.retiredSockets {
		s.retire()
	}
	return true
}

// notReopened records why an address could not be opened again. The log has each reason once.
func (g *Gateway) notReopened(svc *service, sock *socket, err error, again time.Duration) {
	g.mu.Lock()
	known := sock.refused != nil && sock.refused.Error() == err.Error()
	sock.refused = err
	g.mu.Unlock()
	if !known {
		g.logger.Error("cannot listen again, will retry", "listener", svc.cfg.Name, "address", address(sock), "network", sock.Addr().Network(), "error", err, "again_in", again)
	}
}

// stillFailed reports whether a reload may keep a socket of svc that had failed before and cannot be opened now because of err, for instance
// because another program has its address. Otherwise one failed socket would prevent every change of the configuration. The gateway keeps trying
// to open it. sock may be nil.
func (g *Gateway) stillFailed(p *plan, s *spec, svc *service, sock *socket, err error) bool {
	if sock == nil || g.failure(sock) == nil || !errors.Is(err, ErrListen) {
		return false
	}
	p.change("listener %s still stopped on %s", s.cfg.Name, place(sock))
	p.Commit = append(p.Commit, func() error {
		g.mu.Lock()
		sock.refused = err
		g.mu.Unlock()
		g.logger.Warn("cannot listen again, will retry", "listener", svc.cfg.Name, "address", address(sock), "network", sock.Addr().Network(), "error", err)
		return nil
	})
	return true
}

// place names the address of a socket for operators, such as TCP 127.0.0.1:80.
func place(sock *socket) string {
	if network := sock.Addr().Network(); network != "unix" {
		return strings.ToUpper(network) + " " + address(sock)
	}
	return address(sock)
}

// failure returns why a socket has failed; nil: it has not.
func (g *Gateway) failure(sock *socket) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return sock.failed
}

// hasFailed reports whether a socket of a service has failed.
func (g *Gateway) hasFailed(svc *service) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(svc.failures()) > 0
}

// failures describes the sockets that have failed, for operators. mu is held.
func (s *service) failures() (all []string) {
	for _, sock := range s.sockets() {
		if sock.failed == nil || sock.awaits() {
			continue
		}
		text := fmt.Sprintf("listener %q stopped on %s: %v", s.cfg.Name, place(sock), sock.failed)
		if sock.refused != nil {
			text += fmt.Sprintf("; it cannot be opened again: %v", sock.refused)
		}
		all = append(all, text)
	}
	return all
}
