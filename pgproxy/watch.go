package pgproxy

import (
	"context"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
)

// watchInterval is how often the proxy checks for clients that left while a server works for them, and for those that were
// idle for too long. Shorter statements are not checked.
const watchInterval = time.Second

// endAfter is how long a server has to end the statement of a client that has left, from the first cancel request on. Then its connection is
// closed: the server may never answer. Were that sooner, a server that stalls would get more connections than the pool allows.
const endAfter = time.Minute

// departure is when a client was found to have left during a statement.
type departure struct {
	activity uint32
	at       time.Duration // by clock
}

// watch cancels statements of clients that have gone, and ends sessions of idle clients, until ctx ends. Requests pay
// nothing for this: a session only marks, by a number, that it waits for its server.
func (p *Proxy) watch(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var cancels sync.WaitGroup
	defer cancels.Wait()
	var still, looked []working
	var departed map[*Client]departure
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
		departed = p.endAbandoned(ctx, &cancels, abandoned(still), departed)
	}
}

// endAbandoned cancels the statements of clients that have gone, and closes the server connections that have not ended them in time. It returns
// when these clients have left, before being what it has returned the last time.
func (p *Proxy) endAbandoned(ctx context.Context, cancels *sync.WaitGroup, gone []*Client, before map[*Client]departure) map[*Client]departure {
	if len(gone) == 0 {
		return nil
	}
	departed := make(map[*Client]departure, len(gone))
	for _, c := range gone {
		now, d := clock(), before[c]
		if n := c.activity.n.Load(); d.activity != n {
			d = departure{activity: n, at: now}
			c.Logger().Info("client left during a statement: canceling it")
		}
		departed[c] = d
		w := c.worker.Load()
		switch {
		case w == nil:
		case w.session != nil && now-d.at >= time.Duration(p.endAfter.Load()):
			if c.flags.Or(clientLeft)&clientLeft == 0 {
				c.Logger().Warn("server connection closed: the server has not ended the canceled statement of a client that has left")
				c.CountError(listener.ReasonClientGone)
				c.cutOff()
			}
		default:
			cancels.Go(func() {
				ctx, stop := context.WithTimeout(ctx, cancelTimeout)
				defer stop()
				w.cancel(ctx)
			})
		}
	}
	return departed
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
