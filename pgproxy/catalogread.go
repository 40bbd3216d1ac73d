package pgproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// The gateway reads the catalogs of a backend's database with a lease of its own, on a goroutine. A
// session that gives its server connection back starts a reading that is due. No client waits for the
// reading, but the lease takes a server connection like any client's.

// Limits of a reading.
const (
	catalogLeaseTimeout = 30 * time.Second // wait for a lease
	catalogShortLease   = time.Second      // likewise, if another pair can read
	catalogTimeout      = 15 * time.Second // five queries, each within catalogQuery
	catalogQuery        = 2 * time.Second  // see catalogSQL; 10,000 partitions and 4,000 functions and views take a second in all
	catalogTries        = 3                // consecutive readings that take longer; after that there is too much to read
)

// learnIfDue reads the catalogs on a goroutine if a reading is due.
func (b *Postgres) learnIfDue(now time.Duration) {
	k := b.tables.knowledge
	if !k.due(now) || b.life.Err() != nil || b.pair != nil && int64(now) < b.readsAgain.Load() {
		return
	}
	if seen, ok := k.begin(now); ok {
		go b.learn(seen)
	}
}

// learn reads the catalogs. knowledge.begin has reserved the reading.
func (b *Postgres) learn(seen uint64) {
	k, began, o := b.tables.knowledge, clock(), outcome{}
	defer func() {
		if p := recover(); p != nil {
			o = outcome{hopeless: true}
			b.cfg.Logger.Error("panic while reading the catalogs", "upstream", b.cfg.Name, "panic", p, "stack", string(debug.Stack()))
		}
		k.publish(o, seen, began, clock())
	}()
	srv, lease, err := b.leaseForCatalog(b.life)
	if err != nil { // began is before the wait: at most a tenth of the time, a full pool has one more waiter
		if !b.leaveReading() {
			b.notRead("", fmt.Errorf("no server connection: %w", err))
		}
		return
	}
	began = clock() // the wait has used no server
	from, standby := srv.endpoint, srv.standby()
	rows, err := b.readRows(srv, lease)
	if err == nil && rows != nil {
		b.noteCallees(rows, from)
	}
	if rows == nil && err == nil { // the lease was on a standby: a later reading asks another server
		return
	}
	took := clock() - began
	var c *catalog
	if err == nil {
		rows.graph.also = traces(b.tables.also.Load()) & lasting
		c, err = rows.build(b.life)
	}
	if o = b.outcomeOf(c, err, from, took); !standby {
		o.from = from
	}
}

// readRows reads the catalogs, and gives the server connection back. If the server is a standby, which
// may lack the latest DDL, it returns no rows.
func (b *Postgres) readRows(srv *server, lease upstream.Lease[*server]) (rows *catalogReader, err error) {
	fit := false
	defer func() {
		if !fit {
			lease.Discard()
			return
		}
		srv.unnamed = 0 // any Query destroys it
		srv.releaseBuffers()
		srv.idleAt = clock()
		lease.Release()
	}()
	if srv.standby() && b.tables.knowledge.changed() {
		fit = true
		return nil, nil
	}
	rows, err = srv.readCatalog(b.life, b.tables.knowledge)
	fit = err == nil || srv.rolledBack(b.life, err)
	return rows, err
}

// outcomeOf returns the outcome of a reading that took a time, and logs once whatever users should
// know.
func (b *Postgres) outcomeOf(c *catalog, err error, from string, took time.Duration) outcome {
	k := b.tables.knowledge
	if err != nil && b.leaveReading() {
		return outcome{}
	}
	if err != nil {
		hopeless := isHopeless(err) || canceled(err) && took >= catalogQuery && k.slow.Add(1) >= catalogTries
		if hopeless && !k.unknown.Swap(true) {
			b.cfg.Logger.Log(b.life, k.logLevel(), "the catalogs cannot be read: session state is detected from the text of statements alone",
				"upstream", b.cfg.Name, "endpoint", from, "error", err)
		}
		if !hopeless {
			b.notRead(from, err)
		}
		return outcome{hopeless: hopeless}
	}
	failed, given := k.unread.Swap(0), k.unknown.Swap(false)
	if failed >= failuresBeforeLog || given {
		b.cfg.Logger.Info("the catalogs can be read again", "upstream", b.cfg.Name, "endpoint", from)
	}
	if c.adds, c.groups = k.adds, &k.calls; !c.adds {
		c.callees = nil
	}
	if c.ofEveryStatement() != 0 && !k.everything.Swap(true) {
		b.cfg.Logger.Warn("an operator, a cast or an operator class of the database calls a function that may leave state in sessions: the gateway checks every session after every transaction",
			"upstream", b.cfg.Name)
	}
	k.slow.Store(0)
	if last := k.last(); c.equal(last) {
		c = last // verdicts has results for this one
	}
	return outcome{catalog: c}
}

// noteCallees counts readings of the callees that fail, and logs it once when they are given up.
func (b *Postgres) noteCallees(rows *catalogReader, from string) {
	k := b.tables.knowledge
	switch {
	case rows.callees != nil:
		k.tries.Store(0)
		k.setDigest(rows.callees.digest)
	case rows.digest != "":
		k.setDigest(rows.digest)
	case rows.unread == nil:
	case !canceled(rows.unread):
		k.tries.Store(catalogTries - 1)
		fallthrough
	default:
		if k.tries.Add(1) == catalogTries {
			b.cfg.Logger.Log(b.life, k.logLevel(), "the functions of the database cannot be read: the server is asked for session state after each transaction that calls one",
				"upstream", b.cfg.Name, "endpoint", from, "error", rows.unread)
		}
	}
}

// failuresBeforeLog is the number of consecutive readings that fail before the failure is logged: a single
// one may be due to a restart of the server, or a full pool.
const failuresBeforeLog = 3

// notRead records that a reading has failed. It will be tried again.
func (b *Postgres) notRead(from string, err error) {
	k := b.tables.knowledge
	if b.life.Err() == nil && k.unread.Add(1) == failuresBeforeLog {
		meanwhile := "the gateway checks every session after every transaction"
		if k.adds {
			meanwhile = "the gateway goes by what it has read before"
		}
		b.cfg.Logger.Log(b.life, k.logLevel(), "the catalogs could not be read: "+meanwhile+" until they can be read", "upstream", b.cfg.Name, "endpoint", from, "error", err)
	}
}

// leaseForCatalog leases a live server connection.
func (b *Postgres) leaseForCatalog(ctx context.Context) (*server, upstream.Lease[*server], error) {
	wait := catalogLeaseTimeout
	if b.othersRead() {
		wait = catalogShortLease
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	for range maxStale {
		lease, err := b.up.Acquire(ctx)
		if err != nil {
			return nil, lease, err
		}
		srv := lease.Value()
		fit := srv.flags&leftAnything == 0 || srv.wipeLeft(resetTimeout) == nil
		if fit && srv.alive() {
			return srv, lease, nil
		}
		lease.Discard()
	}
	return nil, upstream.Lease[*server]{}, errAllDead
}

// isHopeless reports whether an error of readCatalog will come again: the server is not quite
// PostgreSQL, there is too much to read, or the gateway's role has no permission.
func isHopeless(err error) bool {
	if errors.Is(err, errCatalog) || errors.Is(err, errCatalogSize) || errors.Is(err, pgwire.ErrTooLarge) {
		return true
	}
	said, ok := errors.AsType[*pgwire.ErrorResponse](err)
	return ok && ordinary(err) && len(said.Code) == 5 && !slices.Contains([]string{"40", "53", "55", "57", "58"}, said.Code[:2])
}

// rolledBack ends the transaction after an error of readCatalog. It returns false if the server
// connection cannot be used any more.
func (s *server) rolledBack(ctx context.Context, err error) bool {
	if !ordinary(err) && !canceled(err) && !errors.Is(err, errCatalog) && !errors.Is(err, errCatalogSize) {
		return false
	}
	done := s.bounded(ctx, checkTimeout)
	return s.exec("ROLLBACK") == nil && done()
}

// bounded limits reads and writes to a time, and to the life of ctx. done ends the limit; it returns
// false if the limit was reached, after which the server connection cannot be used.
func (s *server) bounded(ctx context.Context, within time.Duration) (done func() bool) {
	_ = s.conn.SetDeadline(time.Now().Add(within))
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(unixPast) })
	return func() bool { return stop() && s.conn.SetDeadline(time.Time{}) == nil }
}

// Errors of rows. The server connection is still good.
var (
	errCatalog     = errors.New("unexpected row from the catalog query")
	errCatalogSize = fmt.Errorf("there are more than %d functions, relations and dependencies", maxCatalogRows)
)

// readCatalog reads the rows from the server, as many as a reading needs. After an error of the server, a transaction may
// be open.
func (s *server) readCatalog(ctx context.Context, k *knowledge) (*catalogReader, error) {
	done := s.bounded(ctx, catalogTimeout)
	r, err := s.readParts(ctx, k)
	if !done() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// readParts reads the rows of a catalog, with CatalogsEvident none if nothing evidently leaves state, and then those of
// callees if they are wanted.
func (s *server) readParts(ctx context.Context, k *knowledge) (r *catalogReader, err error) {
	if !k.evident {
		return s.readRows(catalogSQL(), false)
	}
	if r, err = s.readRows(probeSQL(), true); err != nil {
		return nil, err
	}
	found, err := r.finds(ctx)
	if err == nil && found {
		r, err = s.readRows(evidentCatalogSQL(), true)
	}
	if err == nil && k.wantsCallees() {
		if r.callees, err = s.readRows(calleesSQL(), false); ordinary(err) || canceled(err) || errors.Is(err, errCatalogSize) {
			r.callees, r.unread, err = nil, err, s.exec("ROLLBACK")
		}
	}
	return r, err
}

// readRows runs the queries of a reading.
func (s *server) readRows(sql string, evident bool) (*catalogReader, error) {
	r := &catalogReader{graph: newGraph(), sources: map[*node]source{}}
	r.graph.evident = evident
	var bad error
	err := s.query(sql, func(m *pgwire.DataRow) {
		if bad == nil {
			bad = r.row(m.Values)
		}
	})
	return r, cmp.Or(err, bad)
}

// finds reports whether the rows of probeSQL have something that evidently leaves state. If not, it removes all rows.
func (r *catalogReader) finds(ctx context.Context) (bool, error) {
	if err := r.graph.judgeBodies(ctx, r.sources); err != nil || r.suspicious {
		return true, err
	}
	for n := range r.sources {
		if n.left.throughCall()&(traceUnknown|traceSpoils) != 0 {
			return true, nil
		}
	}
	r.graph, r.sources = newGraph(), nil
	r.graph.evident = true
	return false, nil
}

// catalogReader adds rows to a graph.
type catalogReader struct {
	graph   *graph
	sources map[*node]source
	rows    int
	size    int // of the sources, in bytes

	suspicious bool // an object without a text evidently leaves state

	callees *catalogReader // with CatalogsEvident: rows for callees; nil = they have not been read
	unread  error          // why they could not be read

	digest string // the statement that asks for a digest
}

// build returns the catalog of all rows. It may take a second; no server connection is leased
// meanwhile.
func (r *catalogReader) build(ctx context.Context) (*catalog, error) {
	if err := r.graph.judgeBodies(ctx, r.sources); err != nil {
		return nil, err
	}
	c := r.graph.build()
	switch {
	case !r.graph.evident:
		c.callees = r.graph.callees()
	case r.callees != nil:
		of, err := r.callees.build(ctx)
		if err != nil {
			return nil, err
		}
		c.callees = of.callees
	}
	return c, nil
}

// maxSources bounds the source texts that are judged, in bytes. This much takes the server and the
// gateway a second.
const maxSources = 32 << 20

// maxCatalogRows bounds the rows that are kept while the catalogs are read, of some 250 bytes each.
const maxCatalogRows = 1 << 19

// row adds one row: its kind, and the values of that kind.
func (r *catalogReader) row(values [][]byte) error {
	if r.rows++; r.rows > maxCatalogRows {
		return errCatalogSize
	}
	if len(values) != 5 || len(values[0]) != 1 || values[1] == nil || values[2] == nil {
		return errCatalog
	}
	key, value := string(values[1]), string(values[2])
	switch values[0][0] {
	case 's': // see plansSQL
	case 'e': // see evidentTreeSQL
		r.suspicious = true
	case 'd':
		r.digest = digestOf(value)
	case 'q':
		r.graph.caches = value == "w"
	case 'f':
		r.function(key, r.graph.add(key, value, true), string(values[3]), values[4])
	case 'n':
		n := r.graph.add(key, value, false)
		n.datatype, n.view = key[0] == 'y', string(values[3]) == "v"
	case 'u':
		r.graph.use(key, value)
	case 't':
		r.addBuiltinCall(key, value)
	default:
		return errCatalog
	}
	return nil
}

// addBuiltinCall records that an object calls a function of PostgreSQL's own. oid is that of the function if
// a state check cannot report its traces, else 0.
func (r *catalogReader) addBuiltinCall(key, oid string) {
	left := traceUnknown | traceSpoils
	switch oid {
	case "0":
		left = traceUnknown
	case "1574": // nextval
		left = traceSequences
	case "1576": // setval
		left = traceSequences | traceSetval
	}
	r.graph.addTraces(key, left)
}

// runsText are functions of extensions in C that run a text of SQL although they are declared stable.
// Users are told to rename them.
var runsText = map[string]bool{"crosstab": true, "crosstab_hash": true, "connectby_text": true, "connectby_text_serial": true, "xpath_table": true}

// function records the row of a function, and its traces by its language and volatility, which a kind such as "plpgsql v
// 742" has, and its source. The source of a function in C is its name there.
func (r *catalogReader) function(key string, n *node, kind string, text []byte) {
	language, volatility, _ := strings.Cut(kind, " ")
	volatility, xmin, _ := strings.Cut(volatility, " ")
	n.row = rowKey([]byte(key[1:]), []byte(xmin))
	builtin, known := functions[n.name]
	if _, inC := functionsInC[n.name]; inC {
		builtin, known = 0, true
	}
	switch {
	case known && language == "c": // a function of an extension
		n.left = builtin
	case language == "aggregate" || language == "internals": // it uses other functions, or only the server calls it
	case r.graph.evident && language != "sql" && language != "plpgsql" && language != "atomic":
	case language == "c" || language == "internal":
		if volatility == "v" || runsText[string(text)] {
			n.left = traceUnknown
		}
	case (language == "sql" || language == "plpgsql") && text != nil && r.size+len(text) <= maxSources:
		r.size += len(text)
		r.sources[n] = source{string(text), language == "plpgsql"}
	case language == "atomic": // a parsed body of SQL: it uses other functions
	case !r.graph.evident: // a source that is too long, or another language
		n.left = traceUnknown
	}
}
