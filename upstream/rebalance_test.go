package upstream_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/upstream"
)

// TestMostCrowded moves leases in random sets until there is nothing to move: that has an end, and at the end no endpoint exceeds its share
// while another has room.
func TestMostCrowded(t *testing.T) {
	for range 2000 {
		n, excess := 1+rand.IntN(6), rand.IntN(50)
		loads, weights := make([]int64, n), make([]int, n)
		var total, weight int64
		for i := range n {
			loads[i] = rand.Int64N(40)
			weights[i] = rand.IntN(4) // 0: of a later priority
			weights[0] = max(weights[0], 1)
			total += loads[i]
		}
		for _, w := range weights {
			weight += int64(w)
		}
		was := slices.Clone(loads)
		for moves := int64(0); ; moves++ {
			i := upstream.MostCrowded(loads, weights, excess)
			if i < 0 {
				break
			}
			if moves > total {
				t.Fatalf("%v with weights %v and %d%%: no end", was, weights, excess)
			}
			loads[i]--
			loads[leastBusy(loads, weights)]++
		}
		room := false
		for i := range loads {
			room = room || (loads[i]+1)*weight <= total*int64(weights[i])
		}
		for i := range loads {
			share := float64(total*int64(weights[i])) / float64(weight)
			if room && float64(loads[i]) >= share*(1+float64(excess)/100)+1.001 {
				t.Fatalf("%v became %v with weights %v and %d%%", was, loads, weights, excess)
			}
		}
	}
}

// leastBusy is where a balancer puts the next lease.
func leastBusy(loads []int64, weights []int) int {
	best := -1
	for i := range loads {
		if weights[i] > 0 && (best < 0 || loads[i]*int64(weights[best]) < loads[best]*int64(weights[i])) {
			best = i
		}
	}
	return best
}

// movers are leases that move when they are interrupted.
type movers struct {
	t     *testing.T
	u     *upstream.Upstream[*conn]
	mu    sync.Mutex
	held  []upstream.Lease[*conn] // oldest first
	order upstream.RebalanceOrder
	moved int
}

func (m *movers) interrupt(c *conn, why error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	there := func(l upstream.Lease[*conn]) bool { return l.Endpoint() == c.endpoint }
	i := slices.IndexFunc(m.held, there)
	if m.order == upstream.NewestFirst {
		for j := i + 1; j < len(m.held); j++ {
			if there(m.held[j]) {
				i = j
			}
		}
	}
	if !errors.Is(why, upstream.ErrRebalanced) || i < 0 || m.held[i].Value() != c {
		panic("interrupted for another reason, or out of order")
	}
	m.held[i].Discard()
	m.held = append(slices.Delete(m.held, i, i+1), acquire(m.t, m.u))
	m.moved++
}

// want compares how many were moved so far, and how many are at an endpoint.
func (m *movers) want(moved int, endpoint string, there int) {
	m.t.Helper()
	synctest.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, l := range m.held {
		if l.Endpoint() == endpoint {
			n++
		}
	}
	if m.moved != moved || n != there {
		m.t.Errorf("%d leases were moved and %d are at %s, want %d and %d", m.moved, n, endpoint, moved, there)
	}
}

// TestRebalance adds an endpoint beside one with long leases: they move there in the order that is set, no faster than they may, until each has
// its share.
func TestRebalance(t *testing.T) {
	t.Run("oldest", func(t *testing.T) { testRebalance(t, upstream.OldestFirst) })
	t.Run("newest", func(t *testing.T) { testRebalance(t, upstream.NewestFirst) })
}

func testRebalance(t *testing.T, order upstream.RebalanceOrder) {
	synctest.Test(t, func(t *testing.T) {
		m := &movers{t: t, order: order}
		cfg := newBackends().config("a:1")
		cfg.Limits.MaxSize, cfg.Interrupt = 100, m.interrupt
		cfg.Rebalance = upstream.Rebalance{PerMinute: 6, Excess: 20, Order: order}
		u := start(t, cfg)
		m.u = u
		update := func(addrs ...string) {
			t.Helper()
			cfg.Endpoints = upstream.Endpoints(addrs...)
			if err := u.Update(cfg.Settings); err != nil {
				t.Fatal(err)
			}
		}
		for range 20 {
			m.held = append(m.held, acquire(t, u))
		}
		time.Sleep(10*time.Minute + time.Second)
		m.want(0, "a:1", 20)
		update("a:1", "b:1")
		time.Sleep(time.Minute - time.Second)
		m.want(6, "b:1", 6)
		time.Sleep(10 * time.Minute)
		m.want(8, "b:1", 8) // 12 of 20 are the share and a fifth
		cfg.Rebalance.PerMinute = 0
		update("a:1", "b:1", "c:1")
		time.Sleep(10 * time.Minute)
		m.want(8, "c:1", 0)
		for _, l := range m.held {
			l.Discard()
		}
	})
}
