package pgproxy

import (
	"cmp"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/traffic"
)

// Usage is what the clients of one user and database have used of an upstream since the start of the Proxy. No number ever
// decreases. Beyond the first 100 combinations User and Database are traffic.Other.
type Usage struct {
	Upstream, User, Database string

	Leases                uint64 // of server connections
	Transactions, Queries uint64
	BytesIn, BytesOut     uint64 // from and to the clients, logins included
	// TransactionTime and QueryTime begin with the client's first message, so they include WaitTime, the time without a
	// server connection.
	TransactionTime, QueryTime, WaitTime time.Duration
}

// moved counts the bytes of clients that have left.
type moved struct{ in, out uint64 }

// add adds the bytes of a client so far.
func (m *moved) add(c *Client) {
	if conn := c.accepted(); conn != nil {
		m.in, m.out = m.in+conn.BytesIn(), m.out+conn.BytesOut()
	}
}

// movedBy returns the counter for a client that leaves. p.mu is held.
func (p *Proxy) movedBy(c *Client) *moved {
	m := p.moved[c.traffic]
	if m == nil {
		m = new(moved)
		p.moved[c.traffic] = m
	}
	return m
}

// accepted returns the client's connection without TLS.
func (c *Client) accepted() *listener.Conn {
	conn := net.Conn(c.Conn)
	for {
		if accepted, ok := conn.(*listener.Conn); ok {
			return accepted
		}
		wrapper, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		conn = wrapper.NetConn()
	}
}

// Usage returns what the clients have used so far, sorted by database, user and upstream.
func (p *Proxy) Usage() []Usage {
	bytes := p.bytes()
	list := make([]Usage, 0, len(bytes))
	for cell, n := range bytes {
		row := cell.Row()
		sum := func(timings ...int) time.Duration { h := traffic.Time(timings...)(&row); return h.Sum }
		list = append(list, Usage{
			Upstream: row.Labels[0], User: row.Labels[1], Database: row.Labels[2],
			Leases:       row.Timings[timeWaits].Count() + row.Counts[atOnce],
			Transactions: row.Timings[timeAlone].Count() + row.Timings[timeBlocks].Count(), Queries: uint64(queries(&row)),
			BytesIn: n.in, BytesOut: n.out,
			TransactionTime: sum(timeAlone, timeBlocks), QueryTime: sum(timeAlone, timeWithin), WaitTime: sum(timeWaits),
		})
	}
	slices.SortFunc(list, func(a, b Usage) int {
		return cmp.Or(cmp.Compare(a.Database, b.Database), cmp.Compare(a.User, b.User), cmp.Compare(a.Upstream, b.Upstream))
	})
	return list
}

// bytes returns the bytes of each cell. A client that leaves meanwhile is counted once: its count moves under p.mu.
func (p *Proxy) bytes() map[*traffic.Cell]moved {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[*traffic.Cell]moved, len(p.moved)+1)
	for cell, m := range p.moved {
		all[cell] = *m
	}
	for _, c := range p.clients {
		m := all[c.traffic]
		m.add(c)
		all[c.traffic] = m
	}
	return all
}

// RecentUsage returns what the clients had used about a minute ago, and how long ago that was: less than a minute after the
// start of the Proxy, and longer if it has had a Console only for less than that.
func (p *Proxy) RecentUsage() (then []Usage, ago time.Duration) { return p.history.oldest(time.Now()) }

// keepUsage records the usage for RecentUsage, every ten seconds, if there is a console to show it.
func (p *Proxy) keepUsage(now time.Time) {
	if p.settings.Load().Console.Backend != nil && p.history.due(now) {
		p.history.keep(now, p.Usage())
	}
}

// history is the usage of the last minute.
type history struct {
	mu      sync.Mutex
	samples []usageSample // oldest first, at least one
}

type usageSample struct {
	at    time.Time
	usage []Usage
}

// usageStep is how often the usage is recorded, and usageWindow how far back RecentUsage reaches: PgBouncer's stats_period.
const (
	usageStep   = 10 * time.Second
	usageWindow = time.Minute
)

// newHistory returns the history of a Proxy that begins now, without any usage.
func newHistory(now time.Time) history { return history{samples: []usageSample{{at: now}}} }

func (h *history) due(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return now.Sub(h.samples[len(h.samples)-1].at) >= usageStep
}

func (h *history) keep(now time.Time, usage []Usage) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old := 0
	for old < len(h.samples) && now.Sub(h.samples[old].at) > usageWindow {
		old++
	}
	h.samples = append(slices.Delete(h.samples, 0, old), usageSample{now, usage})
}

func (h *history) oldest(now time.Time) ([]Usage, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.samples[0].usage, now.Sub(h.samples[0].at)
}
