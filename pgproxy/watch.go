package pgproxy

import (
	"context"
	"sync"
	"time"
)

// watchInterval is how often the proxy looks for clients that left while a server works for
// them. Statements shorter than that are not looked at.
const watchInterval = time.Second

// watch cancels statements of clients that have gone, until ctx ends. The check costs nothing per
// request: a session only marks, by a number, that it waits for its server.
func (p *Proxy) watch(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var cancels sync.WaitGroup
	defer cancels.Wait()
	var still, looked []working
	for n := 1; ; n++ {
		p.ticks.move()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n%int(watchInterval/tick) != 0 {
			continue
		}
		still, looked = p.stillWorking(looked)
		for _, c := range abandoned(still) {
			c.Logger().Info("client left during a statement: canceling it")
			if w := c.worker.Load(); w != nil {
				cancels.Go(func() {
					ctx, stop := context.WithTimeout(ctx, cancelTimeout)
					defer stop()
					w.cancel(ctx)
				})
			}
		}
	}
}

// abandoned returns those clients that have gone. It is called without mu: a loop's connection is asked by a
// trip there, and a session on that loop may be waiting for mu.
func abandoned(still []working) (gone []*Client) {
	for _, w := range still {
		if w.client.Conn.PeerClosed() && w.client.activity.n.Load() == w.activity {
			gone = append(gone, w.client)
		}
	}
	return gone
}
