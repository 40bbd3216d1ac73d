package listener

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/ratelimit"
)

// halfClosedRate bounds how many clients a second that have ended their stream without a byte get a
// session where the server may speak first. Some of these wait for a banner. The others have gone,
// and nothing but a bound keeps a flood of them from the backends. Scripts that half-close at once
// need far less, and sessions at this rate take less than a hundredth of a processor.
var halfClosedRate = ratelimit.Rate{Count: 100, Per: time.Second}

// acceptor is the accept loop of one listener.
type acceptor struct {
	server         *Server
	serve          func(*Conn)
	cfg            *Config // the configuration that screen applied to the last accepted connection
	addressChecked bool    // checkAddress was called

	screening fiber.Screen // screen, allocated once
}

// screen decides about an accepted connection before anything is allocated for it. It checks the limits of the
// connection's source first, unless a PROXY header will name the source. Then it refuses clients that have gone, so
// that a flood of them costs neither sessions nor connections to backends. The log has them on level debug only: the
// health checks of balancers connect and disconnect all the time.
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
