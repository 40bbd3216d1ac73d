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
}

// placeWaiter waits for a place.
type placeWaiter struct {
	limit   int64         // of the waiter's Proxy
	granted chan struct{} // closed once it has a place
}

// setLimits takes over the limits of the pool: half of its connections may be pinned by default, at least one.
func (p *pinPlaces) setLimits(of pool.Limits) {
	p.defaultLimit.Store(int64(max(of.MaxSize/2, 1)))
	p.patience.Store(int64(of.AcquireTimeout))
}

// take takes a place. It returns false if there is none.
func (p *pinPlaces) take(limit int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.n.Load() >= limit {
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
	p.waiters = slices.DeleteFunc(p.waiters, func(w *placeWaiter) bool {
		if p.n.Load() >= w.limit {
			return false
		}
		p.n.Add(1)
		close(w.granted)
		return true
	})
}

// await takes a place, and waits for it until ctx ends. It returns false if there was none.
func (p *pinPlaces) await(ctx context.Context, limit int64) bool {
	w := &placeWaiter{limit, make(chan struct{})}
	p.mu.Lock()
	if p.n.Load() < limit {
		p.n.Add(1)
		p.mu.Unlock()
		return true
	}
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	fiber.Block(func() {
		select {
		case <-w.granted:
		case <-ctx.Done():
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

// placeWait says how a client's wait for a place has ended.
type placeWait byte

const (
	notWaited placeWait = iota
	hasPlace            // takePin will take it over
	inVain              // the client is refused
)

// pinLimit returns how many server connections of the backend may be pinned.
func (m *machine) pinLimit() int64 {
	return cmp.Or(m.rules.max.Load(), m.shared.pins.defaultLimit.Load(), 1)
}

// takePin counts the server connection as pinned. It reports false if the limit is reached.
func (m *machine) takePin() bool {
	switch srv := m.server; {
	case srv.counted:
		return true
	case m.place == hasPlace:
		m.place = notWaited
	case !m.shared.pins.take(m.pinLimit()):
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
// vain, or may not give its server connection back, the machine refuses its statement. An error other than errCanceled is the end
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
	waits := s.beginWait()
	ctx, stop := waits, func() {}
	if limit := time.Duration(m.shared.pins.patience.Load()); limit > 0 {
		ctx, stop = context.WithTimeout(ctx, limit)
	}
	defer stop()
	s.c.Working()
	if m.shared.pins.await(ctx, m.pinLimit()) {
		m.place = hasPlace
	}
	s.c.Done()
	s.cancelMu.Lock()
	s.acquiring = nil
	s.cancelMu.Unlock()
	if err := s.c.over(s.ctx); err != nil || waits.Err() == nil {
		return err
	}
	return errCanceled
}
