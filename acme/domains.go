package acme

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// domains has the names for which certificates are wanted, and the state of their orders. It is safe
// for concurrent use.
type domains struct {
	mu   sync.Mutex
	want map[string]*domain
}

// domain is one name.
type domain struct {
	name     string
	stop     context.CancelFunc // ends its orders
	ordering bool
	failures int // consecutive orders that have failed
	obtained uint64
	failed   uint64
	err      error // of the last order
	tried    time.Time
}

// set replaces the wanted names. It returns the new ones, with the contexts for their orders, and
// those that are no longer wanted.
func (d *domains) set(ctx context.Context, names map[string]bool) (added map[string]context.Context, removed []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	added = map[string]context.Context{}
	for name, w := range d.want {
		if !names[name] {
			w.stop()
			removed = append(removed, name)
			delete(d.want, name)
		}
	}
	for name := range names {
		if d.want[name] == nil {
			w := &domain{name: name}
			added[name], w.stop = context.WithCancel(ctx)
			d.want[name] = w
		}
	}
	return added, removed
}

// begin records the start of an order, and returns how many have failed in succession; ok is false if
// the name is not wanted.
func (d *domains) begin(name string) (failures int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.want[name]
	if w == nil {
		return 0, false
	}
	w.ordering = true
	return w.failures, true
}

// end records the outcome of an order.
func (d *domains) end(name string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.want[name]
	if w == nil {
		return
	}
	w.ordering, w.err, w.tried = false, err, time.Now()
	if err != nil {
		w.failures++
		w.failed++
		return
	}
	w.failures = 0
	w.obtained++
}

// clearError records a certificate that came without an order of this gateway. It clears earlier errors.
func (d *domains) clearError(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := d.want[name]; w != nil {
		w.failures, w.err = 0, nil
	}
}

// has reports whether a name is wanted.
func (d *domains) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.want[name] != nil
}

// all returns copies, ordered by name.
func (d *domains) all() (all []domain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range slices.SortedFunc(maps.Values(d.want), func(a, b *domain) int { return strings.Compare(a.name, b.name) }) {
		all = append(all, *w)
	}
	return all
}
