package pgproxy

import (
	"context"
	"sync"
	"time"
)

// watchInterval is how often the proxy looks for clients that left while a server works for
// them. Statements shorter than that are not looked at.
const watchInterval = time.Second

// watch cancels statements nobody waits for any more, until ctx ends. Looking costs nothing per
// request: a session only says, by a number, that it waits for its server.
func (p *Proxy) watch(ctx context.Context) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	var cancels sync.WaitGroup
	defer cancels.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, c := range p.abandoned() {
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

// abandoned returns the clients that have gone although their server has been working since the
// last look. The connections are looked at without mu: a loop's is asked by a trip there, and a
// session on that loop may be waiting for mu.
func (p *Proxy) abandoned() (gone []*Client) {
	var working []*Client
	p.mu.Lock()
	for _, c := range p.clients {
		turn := c.turn.Load()
		if turn&1 == 1 && turn == c.seen {
			working = append(working, c)
		}
		c.seen = turn
	}
	p.mu.Unlock()
	for _, c := range working {
		if turn := c.turn.Load(); hungUp(c.Conn) && turn&1 == 1 && turn == c.turn.Load() {
			gone = append(gone, c)
		}
	}
	return gone
}
