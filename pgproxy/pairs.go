package pgproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// LoginAs says as whom the gateway logs in to servers for its clients.
type LoginAs int

const (
	// AsUpstream logs in as PostgresConfig.User to PostgresConfig.DBName, for all clients. The default.
	AsUpstream LoginAs = iota
	// AsClient logs in as each client's user, to the database that the client asks for. Clients of the same pair of user
	// and database that have proven the same secret share server connections; no others do. The gateway logs in with what
	// it knows of the user's password: the Users or the AuthQuery of the client's Proxy have it, or the client's SCRAM
	// proof reveals it.
	AsClient
)

// String returns the name that the configuration uses.
func (a LoginAs) String() string {
	if a == AsClient {
		return "client"
	}
	return "upstream"
}

// DefaultMaxPairs is how many pairs of user and database may exist at a time. Each has a pool at each endpoint, and takes
// some 10 KB; the server's max_connections is reached long before.
const DefaultMaxPairs = 1000

// leastPairIdle is the least time for which a pair stays after its last session: programs that connect for each request
// find server connections.
const leastPairIdle = time.Minute

// pairName is a user and a database: the bytes that the client sent, because PostgreSQL's names are exact.
type pairName struct{ user, database string }

// String returns the name for people: user@database.
func (n pairName) String() string { return readable(n.user) + "@" + readable(n.database) }

// readable returns a name as it is, or quoted if it could be taken for something else.
func readable(name string) string {
	if name == "" || !utf8.ValidString(name) || strings.ContainsFunc(name, func(c rune) bool { return !unicode.IsPrint(c) || strings.ContainsRune("@ ()\"", c) }) {
		return strconv.Quote(name)
	}
	return name
}

// pair is what the Postgres of a pair has besides that of an upstream. Clients of the same user and database share one if
// they have proven the same secret, and so do those that have proven none. Nobody else gets its server connections.
//
// Each Proxy says what the secret of a user is, and may change its mind: a pair changes its secret with it, once a server
// has accepted the new one. Its sessions stay, as those on direct connections do.
type pair struct {
	pairName
	of     *Postgres // the upstream's
	number uint64
	label  string // for people; no other pair has it
	secret atomic.Pointer[loginSecret]
	opened atomic.Bool // a server has accepted a login
	// readsAgain is when the pair may read the catalogs again, by clock: what its user may or does can make that fail.
	readsAgain atomic.Int64
	trial      chan struct{} // full while a server is asked about a new secret

	// The fields below are guarded by pairs.mu.
	from     map[*Proxy]bool // whose clients have proven secret last; each Proxy is in one pair of a name, besides one with an unproven secret and one with none
	sessions int
	usedAt   time.Duration // when the last session ended, by clock
	expiry   *time.Timer   // ends the pair; nil = it does not end by itself
}

// pairs are the pairs of a backend with AsClient.
type pairs struct {
	mu       sync.Mutex                // held for a few instructions; taken after Postgres.updating
	all      map[uint64]*Postgres      // by number
	last     uint64                    // the number of the newest pair
	catalogs map[string]*sharedCatalog // by database
	idle     time.Duration             // how long a pair stays without sessions; 0 = for ever
	least    time.Duration             // the least of idle; 0 = leastPairIdle
	closed   bool                      // there will be no further pair
	ending   sync.WaitGroup            // pairs whose connections are being closed
}

// sharedCatalog is the knowledge of the pairs of a database: DDL of one of them matters to all.
type sharedCatalog struct {
	knowledge knowledge
	users     int
}

// errPairs is wrapped by the error about MaxPairs.
var errPairs = errors.New("too many pairs of user and database")

// nameOf returns as whom a client's sessions log in.
func (b *Postgres) nameOf(l *Login) pairName {
	return pairName{l.User, cmp.Or(b.cfg.DBName, l.Database)}
}

// configOf returns how to log in for a client, outside of the pools.
func (b *Postgres) configOf(l *Login) PostgresConfig {
	cfg := b.cfg
	if cfg.LoginAs == AsClient {
		name := b.nameOf(l)
		cfg.User, cfg.Password, cfg.DBName, cfg.secret = name.user, "", name.database, l.secret
	}
	return cfg
}

// enter returns the pair of a client for one session, which leave ends. Until then the pair does not end. On a fiber it
// does not hold the loop.
func (b *Postgres) enter(ctx context.Context, c *Client) (p *Postgres, err error) {
	if p = b.entered(c.Login); p != nil {
		return p, nil
	}
	ctx, end := c.Killable(ctx)
	defer end()
	ctx, cancel := context.WithCancel(ctx) // also when the client leaves
	defer cancel()
	c.OnCancel(func(context.Context) { cancel() })
	c.Working()
	defer c.Done()
	fiber.Block(func() { p, err = b.enterNew(ctx, c.Login) })
	return p, err
}

// pairOf returns the pair that a client's session has entered. It is nil only if there is no such session.
func (b *Postgres) pairOf(l *Login) *Postgres {
	b.pairs.mu.Lock()
	defer b.pairs.mu.Unlock()
	return b.pairs.all[l.pair]
}

// serves reports whether another client with the same startup packet, which has proven secret, may use l: all its clients
// have one pair.
func (l *Login) serves(secret *loginSecret) bool {
	if !l.secret.equal(secret) {
		return false
	}
	if !l.asClient() {
		return true
	}
	ps := &postgresOf(l.backend).pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[l.pair]
	return p == nil || p.secret.Load().equal(secret)
}

// entered is enter for a pair that there is; otherwise it returns nil.
func (b *Postgres) entered(l *Login) *Postgres {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return nil
	}
	p := ps.all[l.pair]
	if p == nil {
		p = b.find(l)
	}
	if p == nil {
		return nil
	}
	l.pair = p.number
	p.sessions++
	if p.expiry != nil {
		p.expiry.Stop()
	}
	return p
}

// named returns the pairs of a name. The caller holds pairs.mu.
func (ps *pairs) named(name pairName) iter.Seq[*Postgres] {
	return func(yield func(*Postgres) bool) {
		for _, p := range ps.all {
			if p.pairName == name && !yield(p) {
				return
			}
		}
	}
}

// find returns the pair for a Login; nil = it has to be made, or see outdated. The caller holds pairs.mu.
func (b *Postgres) find(l *Login) *Postgres {
	if b.outdated(l) != nil {
		return nil
	}
	var found *Postgres
	for p := range b.pairs.named(b.nameOf(l)) {
		if p.secret.Load().equal(l.secret) && (found == nil || p.from[l.proxy]) {
			found = p
		}
	}
	if found != nil {
		found.join(l.proxy)
	}
	return found
}

// outdated returns the pair that has another secret of the same user, by the same Proxy; nil = none. A pair whose secret no
// server has accepted is not for those who prove the next one: its own clients may be anybody. The caller holds pairs.mu.
func (b *Postgres) outdated(l *Login) *Postgres {
	for p := range b.pairs.named(b.nameOf(l)) {
		secret := p.secret.Load()
		if l.secret == nil || secret == nil || !p.from[l.proxy] || secret.equal(l.secret) || secret.unproven != l.secret.unproven {
			continue
		}
		if p.opened.Load() {
			return p
		}
		delete(p.from, l.proxy)
	}
	return nil
}

// join adds a Proxy whose clients have proven the pair's secret. The caller holds pairs.mu.
func (p *pair) join(x *Proxy) {
	maps.DeleteFunc(p.from, func(other *Proxy, _ bool) bool { return other.isDraining() })
	p.from[x] = true
}

// enterNew is enter for a pair that has to be made, or get another secret. It may wait for an Update, and for a server.
func (b *Postgres) enterNew(ctx context.Context, l *Login) (*Postgres, error) {
	b.pairs.mu.Lock()
	p := b.outdated(l)
	b.pairs.mu.Unlock()
	if p != nil {
		if err := p.changeSecretLater(ctx, l); err != nil {
			return nil, err
		}
	}
	b.updating.Lock()
	defer b.updating.Unlock()
	if p := b.entered(l); p != nil {
		return p, nil
	}
	if err := b.makeRoom(); err != nil {
		return nil, err
	}
	p = b.newPair(l)
	if err := p.start(); err != nil {
		p.end()
		b.dropCatalog(p.database)
		return nil, err
	}
	ps := &b.pairs
	ps.mu.Lock()
	closed := ps.closed
	if !closed {
		p.sessions, l.pair, ps.all[p.number] = 1, p.number, p
	}
	ps.mu.Unlock()
	if closed {
		p.Close()
		return nil, b.errClosed()
	}
	return p, nil
}

// changeSecretLater is changeSecret, in a pause at its end: the server may be stopped.
func (b *Postgres) changeSecretLater(ctx context.Context, l *Login) error {
	for {
		if err := b.whole.AwaitResume(ctx); err != nil {
			return err
		}
		err := b.changeSecret(ctx, l)
		if err == nil || b.whole.Status().PausedUntil.IsZero() {
			return err
		}
	}
}

// changeSecret gives the pair the secret that a client has proven, if a server accepts it: a secret that the gateway has
// before the server, or for too long, must not end the sessions of the pair. Server connections that were opened with the
// old one are closed as soon as no client has them.
func (b *Postgres) changeSecret(ctx context.Context, l *Login) error {
	ctx, stop := context.WithTimeout(ctx, l.proxy.settings.Load().LoginTimeout)
	defer stop()
	select {
	case b.trial <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("upstream %q: waiting for a login of another client: %w", b.cfg.Name, context.Cause(ctx))
	}
	defer func() { <-b.trial }()
	ps := &b.of.pairs
	if !b.isOutdated(l) {
		return nil
	}
	cfg := b.of.configOf(l)
	srv, err := b.of.connectApart(ctx, &cfg)
	if err != nil {
		return err
	}
	closeServer(srv)
	ps.mu.Lock()
	b.secret.Store(l.secret)
	b.from = map[*Proxy]bool{l.proxy: true}
	ps.mu.Unlock()
	b.up.Renew()
	return nil
}

// isOutdated reports whether the pair is still the one that outdated returns.
func (b *Postgres) isOutdated(l *Login) bool {
	ps := &b.of.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return b.of.outdated(l) == b
}

// ownDatabase is the database of the gateway's own connections unless another one is configured. As PostgreSQL's programs
// do, it uses the one that every server has.
const ownDatabase = "postgres"

// own returns the configuration of the gateway's own connections.
func (c PostgresConfig) own() PostgresConfig {
	if c.LoginAs == AsClient {
		c.LoginAs, c.DBName = AsUpstream, cmp.Or(c.DBName, ownDatabase)
	}
	return c
}

// newPair returns a pair that is not in use yet. The caller holds updating.
func (b *Postgres) newPair(l *Login) *Postgres {
	name := b.nameOf(l)
	p := &Postgres{cfg: b.cfg, renewals: b.renewals, pair: &pair{
		pairName: name, of: b, trial: make(chan struct{}, 1), from: map[*Proxy]bool{l.proxy: true},
	}}
	p.number, p.label = b.identify(name, l.secret == nil)
	p.cfg.User, p.cfg.Password, p.cfg.DBName = name.user, "", name.database
	p.secret.Store(l.secret)
	p.baseline.doubt = b.baseline.doubt
	p.life, p.end = context.WithCancel(b.life)
	p.tables.cannotListen, p.tables.readers.added = p.cannotListen, p.logReader
	p.tables.pins.setLimits(b.with.Limits)
	p.tables.knowledge = b.takeCatalog(name.database)
	p.tables.also.Store(b.tables.also.Load())
	p.retired.Store(b.retired.Load())
	return p
}

// identify returns the number of a new pair, and its label: the name, and what tells it from those of the same name.
func (b *Postgres) identify(name pairName, trusted bool) (number uint64, label string) {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.last++
	if trusted {
		return ps.last, name.String() + " (trusted)"
	}
	labels := map[string]bool{}
	for p := range ps.named(name) {
		labels[p.label] = true
	}
	label = name.String()
	for n := 2; labels[label]; n++ {
		label = fmt.Sprintf("%s (%d)", name, n)
	}
	return ps.last, label
}

// start makes the pair's pools.
func (b *Postgres) start() (err error) {
	b.whole = b.of.whole
	b.up, err = b.whole.NewTenant(upstream.TenantConfig[*server]{
		Name: b.label, Open: b.open, Close: b.close, Check: check,
	})
	if errors.Is(err, upstream.ErrTooManyTenants) {
		err = fmt.Errorf("%w: %w", errPairs, err)
	}
	return err
}

// makeRoom ends the pair that has been without sessions for the longest time if there are as many pairs as there may be.
func (b *Postgres) makeRoom() error {
	most := cmp.Or(b.cfg.MaxPairs, DefaultMaxPairs)
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		return b.errClosed()
	}
	if len(ps.all) < most {
		return nil
	}
	var unused *Postgres
	for _, p := range ps.all {
		if p.sessions == 0 && (unused == nil || p.usedAt < unused.usedAt) {
			unused = p
		}
	}
	if unused == nil {
		return fmt.Errorf("%w: %d, all of them with sessions", errPairs, most)
	}
	b.endPair(unused)
	return nil
}

func (b *Postgres) errClosed() error {
	return fmt.Errorf("upstream %q: %w", b.cfg.Name, pool.ErrClosed)
}

// leave ends a session's use of a pair. A pair to which no server has let anybody log in ends at once: with auth trust,
// clients may claim any name.
func (b *Postgres) leave(p *Postgres) {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.sessions--
	if p.sessions > 0 || ps.closed {
		return
	}
	p.usedAt = clock()
	switch {
	case !p.opened.Load():
		b.endPair(p)
	case ps.idle > 0 && p.expiry == nil:
		p.expiry = time.AfterFunc(ps.idle, func() { b.expire(p) })
	case ps.idle > 0:
		p.expiry.Reset(ps.idle)
	}
}

// expire ends a pair that has been without sessions for long enough.
func (b *Postgres) expire(p *Postgres) {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if !ps.closed && ps.all[p.number] == p && p.sessions == 0 && clock()-p.usedAt >= ps.idle {
		b.endPair(p)
	}
}

// endUnused ends a pair if it has no sessions.
func (b *Postgres) endUnused(p *Postgres) {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if !ps.closed && ps.all[p.number] == p && p.sessions == 0 {
		b.endPair(p)
	}
}

// endPair ends a pair without sessions. The caller holds pairs.mu, and pairs are not closed.
func (b *Postgres) endPair(p *Postgres) {
	ps := &b.pairs
	delete(ps.all, p.number)
	if p.expiry != nil {
		p.expiry.Stop()
	}
	b.dropCatalogLocked(p.database)
	ps.ending.Go(p.Close)
}

// takeCatalog returns the knowledge of a database, for a pair; dropCatalog ends the use.
func (b *Postgres) takeCatalog(database string) *knowledge {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	c := ps.catalogs[database]
	if c == nil {
		c = new(sharedCatalog)
		c.knowledge.start(b.cfg.ReadCatalogs)
		if b.retired.Load() {
			c.knowledge.retire()
		}
		ps.catalogs[database] = c
	}
	c.users++
	return &c.knowledge
}

// dropCatalog undoes takeCatalog.
func (b *Postgres) dropCatalog(database string) {
	b.pairs.mu.Lock()
	defer b.pairs.mu.Unlock()
	b.dropCatalogLocked(database)
}

// dropCatalogLocked is dropCatalog with pairs.mu held.
func (b *Postgres) dropCatalogLocked(database string) {
	c := b.pairs.catalogs[database]
	if c.users--; c.users == 0 {
		delete(b.pairs.catalogs, database)
		c.knowledge.stop()
	}
}

// othersRead reports whether another pair with sessions can read the catalogs of the database.
func (b *Postgres) othersRead() (others bool) {
	if b.pair == nil {
		return false
	}
	now := int64(clock())
	b.of.eachPair(func(p *Postgres) {
		others = others || p != b && p.database == b.database && p.sessions > 0 && now >= p.readsAgain.Load()
	})
	return others
}

// leaveReading is called when the pair could not read the catalogs. It reports whether that says nothing, because another
// pair can read them: the user may lack a permission, have settings that slow queries down, or use all of its connections.
func (b *Postgres) leaveReading() bool {
	if !b.othersRead() {
		return false
	}
	b.readsAgain.Store(int64(clock() + catalogAge))
	return true
}

// PairStatus is a snapshot of one pair of user and database, of an upstream with AsClient.
type PairStatus struct {
	User, Database string
	Pool           pool.Stats // of all endpoints together
}

// PairList describes the pairs that there are, in no order. A user and a database may have several: one for each secret that
// clients prove, and one for clients whom nobody has asked for a password. It is empty without AsClient.
func (b *Postgres) PairList() []PairStatus {
	var all []*Postgres
	b.eachPair(func(p *Postgres) { all = append(all, p) })
	list := make([]PairStatus, len(all))
	for i, p := range all {
		list[i] = PairStatus{p.user, p.database, p.up.Stats()}
	}
	return list
}

// retirePairs does for each pair what Retire does for the upstream. The caller holds updating.
func (b *Postgres) retirePairs() {
	b.eachPair(func(p *Postgres) {
		p.retired.Store(true)
		p.tables.knowledge.retire()
	})
}

// pinAlso notes kinds of state that pin clients on request.
func (b *Postgres) pinAlso(kinds uint32) {
	b.tables.also.Or(kinds)
	b.eachPair(func(p *Postgres) { p.tables.also.Or(kinds) })
}

// servePins gives places to clients that wait to be pinned, after max_pinned has changed.
func (b *Postgres) servePins() {
	b.tables.pins.serve()
	b.eachPair(func(p *Postgres) { p.tables.pins.serve() })
}

// eachPair calls do for every pair, with pairs.mu held.
func (b *Postgres) eachPair(do func(p *Postgres)) {
	b.pairs.mu.Lock()
	defer b.pairs.mu.Unlock()
	for _, p := range b.pairs.all {
		do(p)
	}
}

// setPairIdle sets how long pairs stay without sessions: as long as server connections may be idle. 0 = for ever, or
// until another pair needs the place.
func (b *Postgres) setPairIdle(timeout time.Duration) {
	ps := &b.pairs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.idle = timeout; timeout > 0 {
		ps.idle = max(timeout, cmp.Or(ps.least, leastPairIdle))
	}
}

// closePairs refuses further pairs, and returns those that there are.
func (b *Postgres) closePairs() (all []*Postgres) {
	b.pairs.mu.Lock()
	b.pairs.closed = true
	b.pairs.mu.Unlock()
	b.eachPair(func(p *Postgres) {
		if p.expiry != nil {
			p.expiry.Stop()
		}
		all = append(all, p)
	})
	return all
}

// drainPairs drains all pairs.
func (b *Postgres) drainPairs(ctx context.Context) error {
	all := b.closePairs()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, p := range all {
		wg.Go(func() { errs[i] = p.Drain(ctx) })
	}
	ended := make(chan struct{})
	go func() {
		b.pairs.ending.Wait()
		close(ended)
	}()
	wg.Wait()
	select {
	case <-ended:
	case <-ctx.Done():
		errs = append(errs, fmt.Errorf("upstream %q: connections of pairs that have ended are being closed: %w", b.cfg.Name, ctx.Err()))
	}
	return errors.Join(errs...)
}

// serverWide are the classes of a server's errors at login that are about the server, not about the user or database. 53300
// is about neither: pairs may fill a server, which works for those that have connections.
var serverWide = []string{"08", "0A", "53", "57", "58", "XX"}

// pairError is an error of a login that is about the pair.
type pairError struct{ error }

func (e pairError) Unwrap() []error { return []error{upstream.ErrTenant, e.error} }

// pairsOwn reports whether an error of a login is about the pair: the endpoint serves other pairs.
func pairsOwn(err error) bool {
	if said, ok := errors.AsType[*loginError](err); ok {
		return said.gateways || said.Code == pgwire.StateTooManyConnections ||
			len(said.Code) == 5 && !slices.Contains(serverWide, said.Code[:2])
	}
	_, method := errors.AsType[methodError](err)
	return method || isStall(err) || errors.Is(err, pgwire.ErrAuth)
}
