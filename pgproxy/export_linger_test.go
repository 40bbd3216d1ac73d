package pgproxy

import (
	"slices"
	"time"
)

// LingerFirst, LingerLeast and LingerMost are times for which a server connection lingers.
const (
	LingerFirst = lingerFirst
	LingerLeast = lingerLeast
	LingerMost  = lingerMost
)

// fakeLingering is the server connection that lingers for a Machine.
type fakeLingering struct {
	srv    *FakeServer // nil = none
	leases int         // srv's, as long as no other Machine has leased it
}

// take leases the server connection that lingers for the machine, if nobody else has had it, or the first one that is free.
func (d *Machine) take() {
	at, free := 0, d.Pool.Free
	for i, srv := range free {
		if l := d.lingering; srv == l.srv && srv.leases == l.leases {
			at = i
		}
	}
	d.lingering = fakeLingering{}
	d.srv = free[at]
	d.srv.leases++
	d.Pool.Free = slices.Concat(free[:at], free[at+1:])
}

// leave ends the machine's lease, and says what is to linger for it.
func (d *Machine) leave(fit bool) {
	m := &d.m
	m.leaveServer()
	if wait, lingers := m.lingers(); fit && lingers {
		d.lingering = fakeLingering{d.srv, d.srv.leases}
		d.Log("%s lingers for %v", d.srv.Name, wait)
	}
	m.forgetServer()
}

// Readers are programs that read values of sequences in later transactions.
type Readers struct{ r readers }

// Note records that a program has read such values, after an insert.
func (r *Readers) Note(user, database, application string) {
	r.r.note(program{user, database, application}, drawsByInsert)
}

// Added has f called for each program that is told of.
func (r *Readers) Added(f func(user, database, application string)) {
	r.r.added = func(p program) { f(p.user, p.database, p.application) }
}

// Known reports whether a program is one of them, and under which name.
func (r *Readers) Known(user, database, application string) bool {
	return r.r.of(program{user, database, application}) != nil
}

// Pays spends credit of a program that is one of them.
func (r *Readers) Pays(user, database, application string) bool {
	return r.r.of(program{user, database, application}).pays(drawsByInsert)
}

// Came records after which time a client has come back, and returns for how long others have to wait then.
func (r *Readers) Came(user, database, application string, gap time.Duration) time.Duration {
	one := r.r.of(program{user, database, application})
	if gap > 0 {
		one.came(gap)
	}
	return one.patience()
}

// Len returns the number of programs.
func (r *Readers) Len() int {
	list := r.r.list.Load()
	if list == nil {
		return 0
	}
	return len(*list)
}

// MaxReaders and MaxApplications bound Readers, and CreditMost what a program has.
const (
	MaxReaders      = maxReaders
	MaxApplications = maxApplications
	CreditMost      = creditMost + creditEarned
)

// Asked has a client of the pool have asked for values of sequences.
func (p *FakePool) Asked() { p.shared().asked.Store(true) }
