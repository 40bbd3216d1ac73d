package pgproxy

import (
	"context"
	"sync"
	"time"
)

// watchInterval is how often the proxy checks for clients that left while a server works for them, and for those that were
// idle for too long. Shorter statements are not checked.
const watchInterval = time.Second

// watch cancels statements of clients that have gone, and ends sessions of idle clients, until ctx ends. Requests pay nothing for this: a session only
// marks, by a number, that it waits for its server.
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
		p.keepUsage(time.Now())
		if limit := p.settings.Load().ClientIdleTimeout; limit > 0 {
			p.endIdle(limit)
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

// abandoned returns the clients that have gone. Proxy.mu must not be held: asking about a connection takes a trip to
// its loop, where a session may be waiting for mu.
func abandoned(still []working) (gone []*Client) {
	for _, w := range still {
		if w.client.Conn.PeerClosed() && w.client.activity.n.Load() == w.activity {
			gone = append(gone, w.client)
		}
	}
	return gone
}
