package gateway

import (
	"context"
	"fmt"
	"net"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/extend"
)

// openBeside returns the second socket of a listener, such as that of HTTP/3, nil if it has none; first is its first socket. A working second
// socket at the address is kept if it is that of svc, the service that continues with s, and taken over if it is that of another service.
func (g *Gateway) openBeside(p *plan, s *spec, first *socket, svc *service) (*socket, error) {
	kind := extend.ProtocolOf(s.cfg.Protocol)
	if kind.Beside == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	open := kind.Beside(&s.cfg)
	if open == nil {
		return nil, nil //nolint:nilnil // as documented
	}
	what, listen := fmt.Sprintf("listener %q", s.cfg.Name), withPort(s.cfg.Listen, first)
	if svc != nil && svc.beside != nil && g.failure(svc.beside) == nil && withPort(svc.cfg.Listen, svc.socket) == listen {
		return svc.beside, nil
	}
	if from := g.besideAt(listen); from != nil {
		return p.takeOver(from, what, listen)
	}
	return g.bind(p, what, listen, true, func() (*socket, error) {
		l, err := open(context.Background(), listen)
		if err != nil {
			return nil, fmt.Errorf("%s: %w on UDP %s: %s%w", what, ErrListen, listen, adviceToBind(listen, true, err), err)
		}
		return &socket{Listener: l}, nil
	})
}

// withPort returns the host of an address with the port that a socket really has.
func withPort(listen string, sock *socket) string {
	host, _, err := net.SplitHostPort(listen)
	_, port, err2 := net.SplitHostPort(address(sock))
	if err != nil || err2 != nil {
		return listen // a Unix socket
	}
	return net.JoinHostPort(host, port)
}

// besideAt returns the second socket of the listener at that address, nil if there is none.
func (g *Gateway) besideAt(listen string) *socket {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.services {
		if s.beside != nil && s.beside.failed == nil && withPort(s.cfg.Listen, s.socket) == listen {
			return s.beside
		}
	}
	return nil
}

// changeBeside gives a service that continues another second socket, or none.
func (g *Gateway) changeBeside(p *plan, svc *service, next *socket) {
	if next == svc.beside {
		return
	}
	if svc.beside != nil {
		p.retiredSockets = append(p.retiredSockets, svc.beside)
		if d, ok := svc.beside.Listener.(extend.Drainer); ok && g.failure(svc.beside) == nil {
			p.Retired = append(p.Retired, &extend.Retired{
				Kind: admin.RetiringListener, Name: svc.cfg.Name, Protocol: string(svc.cfg.Protocol), Sessions: "clients of a removed socket",
				Active: d.Active, Drain: d.Drain,
			})
		}
	}
	if next != nil {
		p.starts = append(p.starts, start{svc, next})
	}
	p.Commit = append(p.Commit, func() error {
		g.mu.Lock()
		defer g.mu.Unlock()
		svc.beside = next
		return nil
	})
}
