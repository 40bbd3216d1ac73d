package pgproxy

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
)

// pinPlaces bounds the pinned server connections of a backend: each takes a place. A client that has no server connection yet
// waits for its place, first come first served, as several programs do that migrate a database at once and take turns by an
// advisory lock. Any goroutine may use it.
type pinPlaces struct {
	n            atomic.Int64 // taken places; changed with mu held
	defaultLimit atomic.Int64 // the limit where Config.MaxPinned is 0; 0 = 1
	patience     atomic.Int64 // how long clients wait, a time.Duration; 0 = without limit

	mu      sync.Mutex // held for a few instructions
	waiters []*placeWaiter
	changed chan struct{} // closed when patience changes; nil = nobody waits for that
}

// placeWaiter waits for a place.
type placeWaiter struct {
	rules   *pinRules     // of the waiter's Proxy
	granted chan struct{} // closed once it has a place
}

// setLimits takes over the limits of the pool: half of its connections may be pinned by default, at least one.
func (p *pinPlaces) setLimits(of pool.Limits) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.defaultLimit.Store(int64(max(of.MaxSize/2, 1)))
	if p.patience.Swap(int64(of.AcquireTimeout)) != int64(of.AcquireTimeout) && p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
	p.serveLocked()
}

// limit returns how many places there are for the clients of a Proxy.
func (p *pinPlaces) limit(of *pinRules) int64 {
	return cmp.Or(of.max.Load(), p.defaultLimit.Load(), 1)
}

// take takes a place. It returns false if there is none.
func (p *pinPlaces) take(by *pinRules) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n.Load() >= p.limit(by) {
		return false
	}
	p.n.Add(1)
	return true
}

// giveBack gives a place back, to waiters first.
func (p *pinPlaces) giveBack() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n.Add(-1)
	p.serveLocked()
}

// serve gives places to waiters, after a limit has changed.
func (p *pinPlaces) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serveLocked()
}

// serveLocked is serve with mu held.
func (p *pinPlaces) serveLocked() {
	p.waiters = slices.DeleteFunc(p.waiters, func(w *placeWaiter) bool {
		if p.n.Load() >= p.limit(w.rules) {
			return false
		}
		p.n.Add(1)
		close(w.granted)
		return true
	})
}

// await takes a place, and waits for it until ctx ends, or for as long as clients wait. It returns false if there was none.
func (p *pinPlaces) await(ctx context.Context, by *pinRules) bool {
	w := &placeWaiter{by, make(chan struct{})}
	p.mu.Lock()
	if p.n.Load() < p.limit(by) {
		p.n.Add(1)
		p.mu.Unlock()
		return true
	}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	fiber.Block(func() {
		for began := time.Now(); p.waitFor(ctx, w, began); {
		}
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiters, w)
	if i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
	}
	return i < 0
}

// waitFor is one wait of await. It reports whether to wait again, because the limit of the time has changed.
func (p *pinPlaces) waitFor(ctx context.Context, w *placeWaiter, began time.Time) (again bool) {
	p.mu.Lock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	changed, limit := p.changed, time.Duration(p.patience.Load())
	p.mu.Unlock()
	if limit > 0 {
		var stop context.CancelFunc
		ctx, stop = context.WithDeadline(ctx, began.Add(limit))
		defer stop()
	}
	select {
	case <-changed:
		return true
	case <-w.granted:
	case <-ctx.Done():
	}
	return false
}

// placeWait says how a client's wait for a place has ended.
type placeWait byte

const (
	notWaited placeWait = iota
	hasPlace            // takePin will take it over
	inVain              // the client is refused
)

// pinLimit returns how many server connections of the backend may be pinned.
func (m *machine) pinLimit() int64 { return m.shared.pins.limit(m.rules) }

// takePin counts the server connection as pinned. It reports false if the limit is reached.
func (m *machine) takePin() bool {
	switch srv := m.server; {
	case srv.counted:
		return true
	case m.place == hasPlace:
		m.place = notWaited
	case !m.shared.pins.take(m.rules):
		return false
	}
	m.server.counted = true
	return true
}

// unpin reverts takePin and pin. It does nothing if neither was called.
func (m *machine) unpin() {
	srv := m.server
	if srv == nil {
		return
	}
	srv.parkLater = false
	if srv.pins != 0 {
		srv.pin(0)
		m.rules.pinned.Add(-1)
	}
	if srv.counted {
		srv.counted = false
		m.shared.pins.giveBack()
	}
}

// awaitsPlace takes a place for a statement that announces state that pins. It reports whether the client has to wait for one.
// left is judge's result for the statement. In a transaction or a pipeline the client does not wait: it would hold a server
// connection meanwhile.
func (m *machine) awaitsPlace(left traces) bool {
	if m.announced(left) == 0 || m.mode != Transaction || OnState(m.rules.on.Load()) != PinState || m.takePin() {
		return false
	}
	return m.place != inVain && m.st.tx == pgwire.TxIdle && !m.st.unsynced && m.st.canExecuteOwn()
}

// leavePlace ends the wait for a place.
func (m *machine) leavePlace() {
	if m.place == hasPlace {
		m.shared.pins.giveBack()
	}
	m.place = notWaited
}

// awaitPlace gives the server connection back and waits for a place, as long as for a server connection. If the client waits in
// vain, too many wait already, or it may not give its server connection back, the machine refuses its statement. An error other than errCanceled is the end
// of the session.
func (s *session) awaitPlace() error {
	m := &s.machine
	m.place = inVain
	if err := s.stopReading(); err != nil {
		return err
	}
	if !m.st.empty() { // requests of the gateway's own
		if err := s.awaitAnswers(); err != nil {
			return err
		}
	}
	s.leaseAt = time.Time{} // the transaction is still to come
	m.dropOwnSettings()
	if err := s.releaseIfAnswered(); err != nil || s.srv != nil {
		return err
	}
	if err := s.c.Writer.Flush(); err != nil {
		return clientWriteError(err)
	}
	if !s.b.up.BeginWait() {
		return nil
	}
	waits := s.beginWait()
	s.c.Working()
	if m.shared.pins.await(waits, m.rules) {
		m.place = hasPlace
	}
	s.c.Done()
	s.b.up.EndWait()
	s.cancelMu.Lock()
	s.acquiring = nil
	s.cancelMu.Unlock()
	if err := s.c.over(s.ctx); err != nil || waits.Err() == nil {
		return err
	}
	return errCanceled
}
