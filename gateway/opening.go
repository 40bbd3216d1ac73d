package gateway

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// An address that is in use is tried again for startGrace at the start. Linux closes the sockets of a
// killed process with io_uring some 20 ms after the process has ended, and its successor may start
// sooner.
const (
	startGrace = time.Second
	startPause = 5 * time.Millisecond
)

// openListener makes the socket of a listener, see open. If its sessions run on the engine, so does
// the socket.
func (g *Gateway) openListener(p *plan, s *spec, old *service) (*socket, error) {
	l := &s.cfg
	what := fmt.Sprintf("listener %q", l.Name)
	listen := l.Listen
	if old != nil && old.cfg.Listen == listen && g.failure(old.socket) != nil {
		listen = withPort(listen, old.socket) // clients know the port that the system chose for port 0
	}
	sock, err := g.open(p, extend.ProtocolOf(l.Protocol), what, listen, s.perm, old)
	if err == nil {
		if err = p.permit(s.perm, l.Listen); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	if err == nil && onFibers(l, p.New) && !sock.awaits() {
		if err = sock.adopt(g.engine); err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
	}
	return sock, err
}

// open makes the socket for an address. If another listener of this gateway has the address, its
// socket is taken over, so that listeners may exchange names and addresses in one reload, and no
// client is refused meanwhile. p, whose addresses are distinct, takes it from its owner. kind is the
// protocol, nil for the admin page; old is the running service for which it is opened, if any.
func (g *Gateway) open(p *plan, kind *extend.Protocol, what, listen string, perm permission, old *service) (*socket, error) {
	datagrams := kind != nil && kind.Config.Datagrams
	from := g.holder(listen, datagrams, old)
	if from == nil {
		return g.bind(p, what, listen, datagrams, func() (*socket, error) { return bindFor(kind, what, listen, perm) })
	}
	sock, err := p.takeOver(from, what, listen)
	if err != nil {
		return nil, err
	}
	p.Commit = append(p.Commit, func() error { from.handOver(sock); return nil })
	return sock, nil
}

// bind binds an address that no socket of this gateway has. At the start it waits a while for the address.
func (g *Gateway) bind(p *plan, what, listen string, datagrams bool, open func() (*socket, error)) (*socket, error) {
	var sock *socket
	var err error
	if !datagrams {
		sock, err = g.inherited.take(what, listen)
	}
	if sock == nil && err == nil {
		sock, err = open()
	}
	if errors.Is(err, syscall.EADDRINUSE) && datagrams {
		if awaited := g.await(p, listen, err); awaited != nil {
			return awaited, nil
		}
	}
	for begin := time.Now(); g.cfg == nil && errors.Is(err, syscall.EADDRINUSE) && time.Since(begin) < startGrace; sock, err = open() {
		time.Sleep(startPause)
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = g.explainInUse(what, listen, datagrams, err)
	}
	if err != nil {
		return nil, err
	}
	p.opened = append(p.opened, sock)
	return sock, nil
}

// takeOver returns a second socket for what another one is bound to.
func (p *plan) takeOver(from *socket, what, listen string) (*socket, error) {
	sock, err := from.duplicate()
	if err != nil {
		return nil, fmt.Errorf("%s: take over %s: %w", what, listen, err)
	}
	p.opened = append(p.opened, sock)
	return sock, nil
}

// holder returns the socket that already listens on an address, or nil; datagrams selects UDP sockets.
func (g *Gateway) holder(listen string, datagrams bool, old *service) *socket {
	g.mu.Lock()
	defer g.mu.Unlock()
	anyPort := anyPort(listen) // each such listener gets its own port
	for _, s := range g.services {
		if s.cfg.Listen == listen && s.datagrams() == datagrams && s.socket.failed == nil && (s == old || !anyPort) {
			return s.socket
		}
	}
	if g.admin != nil && !datagrams && g.cfg.Admin == listen && !anyPort {
		return g.admin.socket
	}
	return nil
}

// explainInUse returns err if another program uses the address, and another error if this gateway does.
func (g *Gateway) explainInUse(what, listen string, datagrams bool, err error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ours := func(who, has string) error {
		return fmt.Errorf("%s: %w on %s: %s has it, as %s, and keeps it until the reload is done: free it with one reload and take it with the next, or restart: %w",
			what, ErrListen, listen, who, has, syscall.EADDRINUSE)
	}
	for _, s := range g.services {
		has := s.datagrams() == datagrams && s.socket.failed == nil || datagrams && s.beside != nil && s.beside.failed == nil
		if has && config.Overlap(s.cfg.Listen, listen) {
			return ours(fmt.Sprintf("listener %q", s.cfg.Name), s.cfg.Listen)
		}
	}
	if g.admin != nil && !datagrams && config.Overlap(g.cfg.Admin, listen) {
		return ours("the admin page", g.cfg.Admin)
	}
	return err
}

// datagrams reports whether the socket of a service is a UDP socket.
func (s *service) datagrams() bool { return extend.ProtocolOf(s.cfg.Protocol).Config.Datagrams }

// address returns the address that a socket listens on, with the port that the system chose for port
// 0.
func address(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "unix:" + l.Addr().String()
	}
	return l.Addr().String()
}
