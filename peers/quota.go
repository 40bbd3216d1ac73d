package peers

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/tunnel"
)

// Limits limit one peer's use of a service. The zero Limits have no limit but Config.MaxStreams.
type Limits struct {
	// Conns is the number of connections that the peer may have open; more are refused with
	// ErrBusy. 0 = no limit.
	Conns int
	// Rate is the number of connections that the peer may open a second, and as a burst; more are
	// refused with ErrBusy. 0 = no limit.
	Rate int
	// BytesPerSecond is the rate of all connections of the peer together, in both directions.
	// Faster data waits. 0 = no limit.
	BytesPerSecond int
}

// verify returns an error for invalid limits.
func (l Limits) verify() error {
	for _, c := range []struct {
		name  string
		value int
	}{{"Conns", l.Conns}, {"Rate", l.Rate}, {"BytesPerSecond", l.BytesPerSecond}} {
		if c.value < 0 {
			return fmt.Errorf("PerPeer.%s %d is negative", c.name, c.value)
		}
	}
	return nil
}

// LimitStats counts the effects of Limits since the start.
type LimitStats struct {
	Refused uint64        // connections
	Waited  time.Duration // total time that connections waited because of BytesPerSecond
}

// maxQuotas bounds the number of quotas. Any peer can cause one if services are open to anyone.
const maxQuotas = 10_000

// overLimit says why a connection is refused. It wraps tunnel.ErrBusy.
type overLimit string

func (e overLimit) Error() string { return string(e) }
func (e overLimit) Unwrap() error { return tunnel.ErrBusy }

// quotas has the use of each service with Limits by each peer.
type quotas struct {
	mu    sync.Mutex // held for a few instructions
	all   map[quotaKey]*quota
	stats LimitStats
}

type quotaKey struct{ service, peer string }

// quota is the use of one service by one peer. Guarded by quotas.mu.
type quota struct {
	open  int
	calls allowance
	bytes allowance
	until time.Time // when it can be removed, if no connection is open
}

// use sets when the quota can be removed: wait and a second from now, when the allowances are full
// again.
func (k *quota) use(now time.Time, wait time.Duration) {
	if until := now.Add(wait + time.Second); until.After(k.until) {
		k.until = until
	}
}

// allowance is a token bucket that holds the tokens of one second. It may become negative.
type allowance struct {
	left float64
	at   time.Time // zero: it is full
}

// fill adds the tokens since the last call.
func (a *allowance) fill(rate int, now time.Time) {
	if a.at.IsZero() {
		a.left = float64(rate)
	} else {
		a.left = min(float64(rate), a.left+float64(rate)*now.Sub(a.at).Seconds())
	}
	a.at = now
}

// enter counts a new connection, or returns an error that says why it is refused.
func (q *quotas) enter(key quotaKey, limits Limits, now time.Time) (*quota, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k := q.all[key]
	if k == nil {
		if len(q.all) >= maxQuotas {
			q.tidy(now)
		}
		if len(q.all) >= maxQuotas {
			q.stats.Refused++
			return nil, overLimit(fmt.Sprintf("service %s is used by %d peers, the most whose use can be counted", key.service, len(q.all)))
		}
		k = &quota{}
		if q.all == nil {
			q.all = map[quotaKey]*quota{}
		}
		q.all[key] = k
	}
	if limits.Rate > 0 {
		k.calls.fill(limits.Rate, now)
	}
	switch {
	case limits.Conns > 0 && k.open >= limits.Conns:
		q.stats.Refused++
		return nil, overLimit(fmt.Sprintf("the peer has %d connections to service %s open, the most it may have", k.open, key.service))
	case limits.Rate > 0 && k.calls.left < 1:
		q.stats.Refused++
		return nil, overLimit(fmt.Sprintf("the peer opens more than %d connections a second to service %s", limits.Rate, key.service))
	}
	if limits.Rate > 0 {
		k.calls.left--
	}
	k.open++
	k.use(now, 0)
	return k, nil
}

// ended counts a connection that has ended.
func (q *quotas) ended(k *quota) {
	q.mu.Lock()
	defer q.mu.Unlock()
	k.open--
}

// tidy removes the quotas of peers without connections whose allowances are full. mu is held.
func (q *quotas) tidy(now time.Time) {
	for key, k := range q.all {
		if k.open == 0 && now.After(k.until) {
			delete(q.all, key)
		}
	}
}

// spend takes n bytes from a peer's allowance, and returns how long they must wait.
func (q *quotas) spend(k *quota, n, rate int, now time.Time) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	k.bytes.fill(rate, now)
	k.bytes.left -= float64(n)
	wait := time.Duration(max(0, -k.bytes.left/float64(rate)) * float64(time.Second))
	k.use(now, wait)
	q.stats.Waited += wait
	return wait
}

// count returns the counters.
func (q *quotas) count() LimitStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stats
}

// limited returns a function that calls connect and applies the limits of a service.
func (q *quotas) limited(s Service, connect func(context.Context) (net.Conn, error)) func(context.Context) (net.Conn, error) {
	if s.PerPeer == (Limits{}) {
		return connect
	}
	return func(ctx context.Context) (net.Conn, error) {
		k, err := q.enter(quotaKey{s.Name, tunnel.Caller(ctx)}, s.PerPeer, time.Now())
		if err != nil {
			return nil, err
		}
		c, err := connect(ctx)
		if err != nil {
			q.ended(k)
			return nil, err
		}
		m := &meteredConn{Stream: fiber.StreamOf(c), quotas: q, quota: k, rate: s.PerPeer.BytesPerSecond, closed: make(chan struct{})}
		m.close = sync.OnceFunc(func() {
			close(m.closed)
			q.ended(k)
		})
		return m, nil
	}
}

// meteredConn is a peer's connection to a service. Read and Write may block, because each runs on a
// goroutine.
type meteredConn struct {
	fiber.Stream
	quotas *quotas
	quota  *quota
	rate   int // bytes a second; 0: no limit
	closed chan struct{}
	close  func()
}

// Read implements net.Conn.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	c.wait(n)
	return n, err
}

// Write implements net.Conn.
func (c *meteredConn) Write(p []byte) (int, error) {
	c.wait(len(p))
	return c.Stream.Write(p)
}

// wait waits until n more bytes are allowed, or the connection is closed.
func (c *meteredConn) wait(n int) {
	if c.rate == 0 || n == 0 {
		return
	}
	pause := c.quotas.spend(c.quota, n, c.rate, time.Now())
	if pause == 0 {
		return
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.closed:
	}
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	c.close()
	return c.Stream.Close()
}
