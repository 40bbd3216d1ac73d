package pgproxy

import (
	"context"
	"log/slog"

	"github.com/headpond/headpond/pgwire"
)

// cancel passes a cancel request on to the work of its client. Afterwards the connection is closed,
// which shows the requester that the request has been handled.
func (g *startup) cancel(ctx context.Context, m *pgwire.CancelRequest) {
	ctx, stop := context.WithTimeout(ctx, g.set.LoginTimeout)
	defer stop()
	if g.proxy.Cancel(ctx, m.ProcessID, m.Key) {
		return
	}
	if elsewhere := g.set.CancelElsewhere; elsewhere == nil || !elsewhere(ctx, m.ProcessID, m.Key) {
		g.proxy.srv.LogLimited("cancel", slog.LevelInfo, "cancel request for no client", // anybody can send many
			"client", g.accepted.RemoteAddr(), "process_id", m.ProcessID)
	}
}

// Cancel cancels the statement of the client with that key, which the client got when it logged in, and reports whether
// there is such a client. It returns once the client's server has handled the request, or ctx ends.
func (p *Proxy) Cancel(ctx context.Context, processID uint32, key []byte) bool {
	c := p.find(processID, key)
	if c == nil {
		return false
	}
	if w := c.worker.Load(); w != nil {
		w.cancel(ctx)
	}
	return true
}
