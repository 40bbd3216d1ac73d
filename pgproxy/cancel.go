package pgproxy

import (
	"context"

	"github.com/headpond/headpond/pgwire"
)

// cancel passes a cancel request on to what the client it means is doing. The connection is
// closed after that, which tells the client that the request has been dealt with.
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
