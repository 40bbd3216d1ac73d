package listener

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/ratelimit"
)

// halfClosedRate bounds, in protocols where the server may send first, the sessions of clients that
// have ended their stream without sending anything. Some of these clients wait for a banner, others
// have disconnected; the Server cannot tell. The bound protects backends from a flood of the
// latter. It is far more than scripts that half-close at once need, and sessions at this rate take
// less than a hundredth of a processor.
var halfClosedRate = ratelimit.Rate{Count: 100, Per: time.Second}

// acceptor is the state of the accept loop of one listener.
type acceptor struct {
	server         *Server
	serve          func(*Conn)
	cfg            *Config // the configuration that screen used for the last accepted connection
	addressChecked bool    // checkAddress was called

	screening fiber.Screen // a.screen, allocated once
}

// screen decides whether to refuse a connection before anything is allocated for it. Unless a PROXY
// header will name the source, it checks the address first. Then it refuses clients that have
// disconnected, so that a flood of them costs neither sessions nor connections to backends. It logs
// these on level debug, because health checks of load balancers connect and disconnect all the
// time.
func (a *acceptor) screen(from netip.AddrPort, arrived fiber.Arrival) (refuse bool) {
	s := a.server
	a.cfg = s.config()
	expected := a.cfg.expectsHeaderFrom(from.Addr())
	a.addressChecked = !expected
	if a.addressChecked {
		if err := s.checkAddress(from.Addr(), a.cfg); err != nil {
			s.accepted.Add(1)
			s.refuseSource(from.String(), err)
			return true
		}
	}
	if !s.clientGone(arrived, expected || a.cfg.ClientFirst) {
		return false
	}
	s.accepted.Add(1)
	s.gone.Add(1)
	s.Report(ReasonClientGone, slog.LevelDebug, "client disconnected before its connection was accepted", "client", from.String())
	return true
}

// clientGone reports whether the client of a new connection has disconnected. clientFirst says that the client sends first.
func (s *Server) clientGone(arrived fiber.Arrival, clientFirst bool) bool {
	switch arrived {
	case fiber.Broken:
		return true
	case fiber.EndedEmpty:
		return clientFirst || s.halfClosed.Take(struct{}{}, halfClosedRate, time.Since(began)) > 0
	}
	return false
}
