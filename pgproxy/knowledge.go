package pgproxy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Catalogs is what a Postgres reads and believes of its database's catalogs, to know which statements may leave state in sessions.
type Catalogs int

// What it may read and believe.
const (
	// CatalogsNever reads nothing, the default: every function that is not PostgreSQL's is followed by a check, and what views, triggers, rules,
	// defaults, policies and operators call is not seen.
	CatalogsNever Catalogs = iota
	// CatalogsHidden reads which relations, types and functions call functions that may leave state, and has transactions that mention one be
	// followed by a check, beside those that are without it. So DDL that it does not know of is never the reason that a check is left out.
	CatalogsHidden
	// CatalogsTrusted leaves out the check after functions that leave nothing by their source. While DDL may have changed something, every
	// transaction is followed by a check.
	CatalogsTrusted
)

// String returns "false", "hidden" or "true".
func (c Catalogs) String() string {
	switch c {
	case CatalogsHidden:
		return "hidden"
	case CatalogsTrusted:
		return "true"
	}
	return "false"
}

// knowledge is what a backend knows of its database: the catalog that judge uses, and when it is out of date. Any goroutine may use it. The
// zero value knows nothing, and is never due.
//
// A session calls defining before the server gets a statement that may define something, and defined once that transaction is over. In between,
// and until the catalogs have been read again, the catalog is unsettled: every transaction is followed by a check. Both change epoch, so that a
// transaction that was judged earlier and ends later, for it has waited for a lock of the DDL, is followed by a check too. With hidden the last
// catalog stays meanwhile, and epoch is 0: it adds to what the text of statements says, and takes nothing away.
type knowledge struct {
	on     bool
	hidden bool                    // CatalogsHidden
	now    atomic.Pointer[catalog] // for judge; nil = it goes by the text of statements alone
	epoch  atomic.Uint64           // grows after now has become unsettled
	from   atomic.Pointer[string]  // the endpoint that was read; nil = a standby, or none
	next   atomic.Int64            // when the catalogs are to be read, by clock
	slow   atomic.Int32            // readings one after another that took too long

	mu       sync.Mutex // held for a few instructions
	open     int        // transactions between defining and defined
	changes  uint64     // ended ones
	earliest int64      // when the catalogs may be read again, by clock
	reading  bool
	hopeless bool     // the catalogs cannot be read
	read     *catalog // last; nil = none so far
	expiry   *time.Timer
}

// Times between two readings. Readings after DDL take a tenth of a server connection's time at most, the others a fiftieth.
const (
	catalogSoon  = 100 * time.Millisecond // from one reading to the next one, after DDL or a failure
	catalogSlack = 10                     // likewise, in durations of the reading, or of the wait for a lease if there was none
	catalogAge   = time.Minute            // likewise without DDL that the gateway has seen
	catalogShare = 50                     // likewise, in durations of the reading
)

// start makes the first reading due, unless nothing is to be read.
func (k *knowledge) start(what Catalogs) {
	k.on, k.hidden = what != CatalogsNever, what == CatalogsHidden
	if what == CatalogsTrusted {
		k.now.Store(unsettled)
	}
}

// due reports whether the catalogs are to be read.
func (k *knowledge) due(now time.Duration) bool { return k.on && int64(now) >= k.next.Load() }

// defining notes that a transaction may be about to define something.
func (k *knowledge) defining() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open++
	k.unsettle()
}

// defined notes the end of such a transaction.
func (k *knowledge) defined() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open--
	k.changes++
	k.unsettle()
}

// lost is defined for a transaction that may go on for a while.
func (k *knowledge) lost() { time.AfterFunc(catalogAge, k.defined) }

// retire makes the catalog unsettled for good: the backend reads the catalogs no more, and does not hear of DDL by others.
func (k *knowledge) retire() {
	if k.on {
		k.defining()
	}
}

// unsettle is for changed circumstances. mu is held.
func (k *knowledge) unsettle() {
	if k.hopeless { // there is nothing that could be wrong
		return
	}
	if !k.hidden {
		k.now.Store(unsettled)
		k.epoch.Add(1)
	}
	if !k.reading {
		k.next.Store(k.earliest)
	}
}

// begin reserves a reading; publish ends it. seen is for publish.
func (k *knowledge) begin(now time.Duration) (seen uint64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reading || int64(now) < k.next.Load() {
		return 0, false
	}
	k.reading = true
	k.next.Store(math.MaxInt64)
	return k.changes, true
}

// changed reports whether there has been any DDL: a standby may not have it yet.
func (k *knowledge) changed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changes > 0
}

// outcome is that of a reading.
type outcome struct {
	catalog  *catalog // nil = it failed
	from     string   // the endpoint, unless it is a standby
	hopeless bool     // and will fail again
}

// publish ends a reading that took from began to now.
func (k *knowledge) publish(o outcome, seen uint64, began, now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading = false
	k.earliest = int64(now + max(catalogSoon, catalogSlack*(now-began)))
	k.next.Store(k.earliest)
	if o.catalog == nil && !o.hopeless { // again soon
		return
	}
	if k.hopeless = o.hopeless; k.hopeless {
		k.read = nil
		k.now.Store(nil)
	} else {
		k.read = o.catalog
		k.readFrom(o.from)
		if !k.hidden && (seen != k.changes || k.open > 0) { // the end of the last one makes it due
			k.now.Store(unsettled)
		} else {
			k.now.Store(k.read)
		}
		if seen != k.changes {
			return
		}
	}
	age := max(catalogAge, catalogShare*(now-began))
	if k.hopeless {
		age *= 10
	}
	k.next.Store(int64(now + age))
	k.expire(age + catalogPatience)
}

// expire makes the catalog unsettled after a time unless another one has been read by then: nobody may have caused that, or it failed. mu is held.
func (k *knowledge) expire(after time.Duration) {
	if k.expiry != nil {
		k.expiry.Stop()
	}
	var own *time.Timer
	own = time.AfterFunc(after, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.expiry == own {
			k.unsettle()
		}
	})
	k.expiry = own
}

// readFrom notes which endpoint was read. mu is held.
func (k *knowledge) readFrom(endpoint string) {
	if k.hidden {
		return
	}
	if endpoint == "" {
		k.from.Store(nil)
		return
	}
	if was := k.from.Load(); was == nil || *was != endpoint {
		k.from.Store(&endpoint)
		k.epoch.Add(1) // for transactions on the other one
	}
}

// otherEpoch is that of transactions on servers that were not read: each is followed by a check.
const otherEpoch = math.MaxUint64

// epochOn returns epoch for a transaction that begins on a server.
func (k *knowledge) epochOn(s *serverState) uint64 {
	if from := k.from.Load(); from != nil && *from != s.endpoint && !s.standby() {
		return otherEpoch
	}
	return k.epoch.Load()
}

// last returns what was read last; nil = nothing.
func (k *knowledge) last() *catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.read
}
