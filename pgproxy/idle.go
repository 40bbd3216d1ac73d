package pgproxy

import (
	"time"

	"github.com/headpond/headpond/listener"
)

// endIdle ends the sessions of clients that have been idle for longer than limit: see Config.ClientIdleTimeout. A client that
// has made no request yet is idle since the first call that finds it so.
func (p *Proxy) endIdle(limit time.Duration) {
	p.endIdleBefore(int64(p.ticks.now.Load()) - int64((limit+tick-1)/tick))
}

// endIdleBefore ends the sessions of clients that have been idle since before tick last.
func (p *Proxy) endIdleBefore(last int64) {
	now := p.ticks.now.Load()
	var late []*Client
	p.mu.Lock()
	for _, c := range p.clients {
		if c.state.Load() == clientIdle && !c.activity.n.CompareAndSwap(0, now<<1) && c.idleBefore(last) {
			late = append(late, c)
		}
	}
	p.mu.Unlock()
	for _, c := range late { // without mu: a deadline takes a lock of the connection's
		c.endIdle(last)
	}
}

// idleBefore reports whether the client's last request had been answered before tick last.
func (c *Client) idleBefore(last int64) bool {
	n := c.activity.n.Load()
	return n&1 == 0 && int64(n>>1) < last
}

// endIdle ends the session, unless the client has become active.
func (c *Client) endIdle(last int64) {
	if !c.idleBefore(last) || !c.state.CompareAndSwap(clientIdle, clientTimedOut) {
		return
	}
	c.CountError(listener.ReasonTimeout)
	_ = c.Conn.SetReadDeadline(unixPast)
}
