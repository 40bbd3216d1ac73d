package pgproxy

import (
	"context"

	"github.com/headpond/headpond/pgwire"
)

// cancel passes a cancel request on to the work of its client. Afterwards the connection is closed,
// which shows the requester that the request has been handled.
func (g *startup) cancel(ctx context.Context, m *pgwire.CancelRequest) {
	c := g.proxy.find(m.ProcessID, m.Key)
	if c == nil {
		g.log().Info("cancel request for no client", "process_id", m.ProcessID)
		return
	}
	w := c.worker.Load()
	if w == nil {
		return
	}
	ctx, stop := context.WithTimeout(ctx, g.set.LoginTimeout)
	defer stop()
	w.cancel(ctx)
}
