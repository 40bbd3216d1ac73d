package pgproxy

import (
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Catalogs says whether a Postgres reads its database's catalogs to find statements that may leave
// state in sessions, and how far it trusts them.
type Catalogs int

// The values of Catalogs.
const (
	// CatalogsNever, the default, reads nothing: a check follows every call of a function that is not
	// PostgreSQL's own, and calls by views, triggers, rules, defaults, policies and operators are not
	// seen.
	CatalogsNever Catalogs = iota
	// CatalogsEvident reads which relations, types and functions evidently leave state: by the text of a function in SQL
	// or PL/pgSQL, or as a view, a default, a check or the like that calls one of PostgreSQL's own functions. What a
	// function runs by EXECUTE, and functions in other languages, do not count. A check follows transactions that mention
	// one of them, and all transactions that CatalogsNever checks, except after calls of functions whose source shows that
	// they leave no state: these are asked for by name, and a check follows only if they have changed since they were read.
	// Where nothing is evident, a reading is two queries, and those about functions once a client has called one. After DDL that
	// may have statements call functions that they do not show, a check follows every transaction until the next reading, which is soon.
	CatalogsEvident
	// CatalogsHidden is CatalogsEvident for relations, types and functions that call functions that may leave state.
	//
	// CatalogsHidden and CatalogsTrusted also read whether sequences have a CACHE. If so, no client gets values that
	// another one's CACHE has left, see catalog.caches; such values are lost, and most users set a CACHE to save them.
	CatalogsHidden
	// CatalogsTrusted omits the check after functions whose source shows that they leave no state, and does not ask for them. While
	// DDL may have changed the catalogs, a check follows every transaction.
	CatalogsTrusted
)

// String returns "false", "evident", "hidden" or "true".
func (c Catalogs) String() string {
	switch c {
	case CatalogsEvident:
		return "evident"
	case CatalogsHidden:
		return "hidden"
	case CatalogsTrusted:
		return "true"
	}
	return "false"
}

// knowledge is a backend's knowledge of its database: the catalog that judge uses, and whether it is
// out of date. Any goroutine may use it. The zero value knows nothing, and a reading is never due.
//
// A session calls defining before the server gets a statement that may define something, and defined
// after that transaction. In between, and until the catalogs have been read again, now is
// outdatedCatalog: a check follows every transaction. Both changes of now increase epoch, so that a
// check also follows a transaction that was judged earlier and ends later because it waited for a lock
// of the DDL. With adds, now keeps the last catalog instead: such a catalog adds to the traces of texts,
// and what it says of calls is asked for again, see calls.go. Only after statements with traceHides,
// before the first reading, and after retire is now a catalog for which a check follows every transaction, see beWary.
type knowledge struct {
	on      bool
	adds    bool                    // CatalogsEvident or CatalogsHidden: the catalog only adds checks
	evident bool                    // CatalogsEvident
	now     atomic.Pointer[catalog] // for judge; nil = the text of statements alone decides
	epoch   atomic.Uint64           // increases after now is set to outdatedCatalog or a wary catalog
	from    atomic.Pointer[string]  // the endpoint that was read; nil = a standby, or no endpoint
	next    atomic.Int64            // when the next reading is due, by clock
	slow    atomic.Int32            // consecutive readings that took too long
	caches  atomic.Bool             // catalog.caches of the last catalog
	calls   callGroups              // for catalog.callees
	wanted  atomic.Bool             // with evident: clients call functions for which callees are needed
	tries   atomic.Int32            // with evident: readings of callees that have failed
	ddl     atomic.Uint64           // increases whenever a transaction that may define something begins or ends
	doubted atomic.Bool             // there may have been DDL since the last catalog was read, or be some
	digest  atomic.Pointer[string]  // the statement that asks for a digest; nil = none yet

	unknown    atomic.Bool  // it has been logged that the catalogs cannot be read
	unread     atomic.Int32 // readings that have failed, but for hopeless ones, since the last success
	everything atomic.Bool  // it has been logged that every statement may leave something

	mu       sync.Mutex // held for a few instructions
	open     int        // transactions between defining and defined
	changes  uint64     // such transactions that have ended
	earliest int64      // when the catalogs may be read again, by clock
	hiding   int        // transactions between beginHiding and defined
	hid      uint64     // changes at the end of the last one of them
	wary     bool       // with adds: now is a wary catalog
	patience int64      // until when it stays one although readings fail, by clock
	soonest  int64      // earliest if wary
	reading  bool
	failed   int      // consecutive readings that failed and may succeed later
	hopeless bool     // the catalogs cannot be read
	read     *catalog // the last one; nil = none so far
	expiry   *time.Timer
}

// Times between two readings. Readings after DDL use a server connection for a tenth of the time at
// most, other readings for a fiftieth.
const (
	catalogSoon  = 100 * time.Millisecond // from one reading to the next one, after DDL or a failure
	catalogCalm  = time.Second            // likewise, after DDL with CatalogsEvident: users have not asked for readings
	catalogSlack = 10                     // likewise, as a multiple of the reading's duration, or of the wait for a lease if there was none
	catalogAge   = time.Minute            // likewise, if the gateway has seen no DDL
	catalogShare = 50                     // likewise, as a multiple of the reading's duration
)

// start makes the first reading due, unless the catalogs are not to be read.
func (k *knowledge) start(what Catalogs) {
	k.on, k.adds, k.evident = what != CatalogsNever, what == CatalogsEvident || what == CatalogsHidden, what == CatalogsEvident
	switch {
	case what == CatalogsTrusted:
		k.now.Store(outdatedCatalog)
	case k.adds:
		k.beWary()
	}
}

// logLevel returns the level of messages about failed readings. Users may not have asked for what CatalogsEvident reads.
func (k *knowledge) logLevel() slog.Level {
	if k.evident {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// wantsCallees reports whether a reading includes callees.
func (k *knowledge) wantsCallees() bool { return k.wanted.Load() && k.tries.Load() < catalogTries }

// want makes a reading of the callees due, if they have not been read yet: a check of any kind has followed a transaction.
// soon means that they will have been read soon.
func (k *knowledge) want() (soon bool) {
	if !k.evident {
		return false
	}
	c := k.now.Load()
	if c != nil && c.wary { // the check may be for that
		return true
	}
	if k.wanted.Load() || k.wanted.Swap(true) {
		return (c == nil || c.callees == nil) && k.wantsCallees()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.earliest = 0; !k.hopeless { // clients are waiting for checks
		k.markOutdated()
	}
	return !k.hopeless
}

// setDigest sets the statement that asks for a digest.
func (k *knowledge) setDigest(sql string) {
	if was := k.digest.Load(); was == nil || *was != sql {
		k.digest.Store(&sql)
	}
}

// changedUnseen makes a reading due, after DDL that the gateway has not seen.
func (k *knowledge) changedUnseen() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.markOutdated()
}

// due reports whether a reading is due.
func (k *knowledge) due(now time.Duration) bool { return k.on && int64(now) >= k.next.Load() }

// defining records that a transaction may be about to define something.
func (k *knowledge) defining() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open++
	k.doubt()
	k.markOutdated()
}

// defined records the end of such a transaction, after beginHiding if hides is true.
func (k *knowledge) defined(hides bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open--
	k.changes++
	if hides {
		k.hiding--
		k.hid, k.patience = k.changes, int64(clock()+catalogAge)
		k.beWary()
	}
	k.doubt()
	k.markOutdated()
}

// beginHiding follows defining for a transaction that may be about to make statements call functions that they do not show.
func (k *knowledge) beginHiding() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hiding++
	k.beWary()
}

// beWary has a check follow every transaction, also those that were judged earlier, until a reading has begun after the end of
// all transactions that hide, and has been published; see lessWary for readings that fail. mu is held.
func (k *knowledge) beWary() {
	if !k.adds || k.hopeless || k.unreadable() {
		return
	}
	if !k.wary {
		k.wary = true
		k.now.Store(k.read.wariest())
	}
	k.epoch.Add(1)
}

// unreadable reports whether the catalogs have never been read, in spite of several attempts: then texts decide. mu is held.
func (k *knowledge) unreadable() bool { return k.read == nil && k.failed >= failuresBeforeLog }

// lessWary ends what beWary has begun if readings have failed for a long time. mu is held.
func (k *knowledge) lessWary(now time.Duration) {
	if k.wary && (k.unreadable() || k.read != nil && k.hiding == 0 && int64(now) >= k.patience) {
		k.wary = false
		k.now.Store(k.read)
	}
}

// again returns when the catalogs may be read again, by clock. Readings that end checks come soon. mu is held.
func (k *knowledge) again() int64 {
	if k.wary && k.hiding == 0 {
		return min(k.soonest, k.earliest)
	}
	return k.earliest
}

// doubt records that what the last catalog says of calls may be wrong. mu is held.
func (k *knowledge) doubt() {
	k.doubted.Store(true)
	k.ddl.Add(1)
}

// lost is defined for a transaction that may still run on the server.
func (k *knowledge) lost(hides bool) { time.AfterFunc(catalogAge, func() { k.defined(hides) }) }

// retire has a check follow every transaction for good: the backend does not read the catalogs any more, nor learn of
// DDL by other backends.
func (k *knowledge) retire() {
	if k.on {
		k.defining()
		k.beginHiding()
	}
}

// markOutdated makes the catalog out of date. mu is held.
func (k *knowledge) markOutdated() {
	if k.hopeless { // no catalog was read that could be wrong
		return
	}
	if !k.adds {
		k.now.Store(outdatedCatalog)
		k.epoch.Add(1)
	}
	if !k.reading {
		k.next.Store(k.again())
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

// outcome is the result of a reading.
type outcome struct {
	catalog  *catalog // nil = it failed
	from     string   // the endpoint, unless it is a standby
	hopeless bool     // and will fail again
}

// publish ends a reading that lasted from began to now, and uses its outcome.
func (k *knowledge) publish(o outcome, seen uint64, began, now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reading = false
	soon, slack := catalogSoon, catalogSlack
	if k.evident && o.catalog != nil {
		soon, slack = catalogCalm, catalogShare
	}
	k.earliest = int64(now + max(soon, time.Duration(slack)*(now-began)))
	k.soonest = int64(now + max(catalogSoon, catalogSlack*(now-began)))
	if o.catalog == nil && !o.hopeless { // try again soon, but a server that closes the connection, perhaps no PostgreSQL, is left alone for longer
		k.failed++
		k.lessWary(now)
		if k.next.Store(k.again()); k.evident && k.failed >= failuresBeforeLog && !k.wary {
			k.next.Store(int64(now + catalogAge))
		}
		return
	}
	k.failed, k.wary = 0, false
	if k.hopeless = o.hopeless; k.hopeless {
		k.read = nil
		k.now.Store(nil)
		k.caches.Store(false)
	} else {
		k.read = o.catalog
		k.caches.Store(o.catalog.caches)
		k.readFrom(o.from)
		switch doubted := seen != k.changes || k.open > 0; {
		case !k.adds && doubted: // the end of the last such transaction makes a reading due
			k.now.Store(outdatedCatalog)
		case k.hiding > 0 || seen < k.hid:
			k.beWary()
		default:
			k.now.Store(k.read)
		}
		k.doubted.Store(seen != k.changes || k.open > 0)
		if seen != k.changes {
			k.next.Store(k.again())
			return
		}
	}
	age := max(catalogAge, catalogShare*(now-began))
	if k.hopeless {
		age *= 10
	}
	k.next.Store(int64(now + age))
	k.expire(age + catalogLeaseTimeout)
}

// expire makes the catalog out of date after a time, unless another one has been read by then: perhaps
// no session has started a reading, or the reading failed. mu is held.
func (k *knowledge) expire(after time.Duration) {
	if k.expiry != nil {
		k.expiry.Stop()
	}
	var own *time.Timer
	own = time.AfterFunc(after, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.expiry == own {
			k.markOutdated()
		}
	})
	k.expiry = own
}

// readFrom records which endpoint was read. mu is held.
func (k *knowledge) readFrom(endpoint string) {
	if k.adds {
		return
	}
	if endpoint == "" {
		k.from.Store(nil)
		return
	}
	if was := k.from.Load(); was == nil || *was != endpoint {
		k.from.Store(&endpoint)
		k.epoch.Add(1) // for transactions on the previous endpoint
	}
}

// otherEpoch is the epoch of transactions on servers that were not read: a check follows each of them.
const otherEpoch = math.MaxUint64

// epochOn returns epoch for a transaction that begins on a server.
func (k *knowledge) epochOn(s *serverState) uint64 {
	if from := k.from.Load(); from != nil && *from != s.endpoint && !s.standby() {
		return otherEpoch
	}
	return k.epoch.Load()
}

// stop ends the timer, if nobody uses the knowledge any more.
func (k *knowledge) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.expiry != nil {
		k.expiry.Stop()
	}
}

// last returns the catalog that was read last; nil = none.
func (k *knowledge) last() *catalog {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.read
}
