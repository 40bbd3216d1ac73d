package pgproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// DefaultMaxSize is how many server connections an endpoint's pool may have when
// PostgresConfig.Limits.MaxSize is 0. A PostgreSQL server does best with a few for each core.
const DefaultMaxSize = 20

// PostgresConfig describes a Backend of PostgreSQL servers that hold the same database.
type PostgresConfig struct {
	// Name appears in errors, logs and metrics.
	Name string
	// Settings are the upstream's. The address of a Unix socket is the path of the socket itself, such as
	// unix:/run/postgresql/.s.PGSQL.5432. Limits.MaxSize 0 = DefaultMaxSize. Health.Probe may be the result of Probe,
	// or upstream.TCPProbe. With a Target, the gateway keeps a connection of its own to each server, to ask for its role.
	upstream.Settings
	// LoginAs says whose user and database the server connections of clients have; the zero value is AsUpstream.
	LoginAs LoginAs
	// User, Password and DBName are used on every server connection, whatever the client's are. DBName "" = User.
	//
	// With AsClient, User and Password are for the gateway's own work only: Secret, Probe and a Target. Without these they
	// may be missing. DBName is then the database of all clients, and of that work; "" = the one that each client asks for, and "postgres".
	User, Password, DBName string
	// MaxPairs bounds the pairs of user and database that exist at a time with AsClient; 0 = DefaultMaxPairs. A pair
	// without sessions ends after Limits.IdleTimeout, at least a minute, or when another one needs its place.
	MaxPairs int
	// TLS, if set, is required from the servers. The default ServerName is the endpoint's host. As with libpq, the
	// common name counts for a certificate without alternative names.
	TLS *tls.Config
	// ChannelBinding says whether the gateway logs in by SCRAM-SHA-256-PLUS to servers with TLS. BindingRequire fails if a
	// server asks for something else, or for nothing; it needs TLS.
	ChannelBinding ChannelBinding
	// Dial connects to an endpoint; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// AllowCleartext allows the password in clear text over the network without TLS, to a server that asks for it.
	// Over loopback, a Unix socket or TLS that is always allowed.
	AllowCleartext bool
	// secret is what logs in as a client's user; nil = nothing is known, or User is the upstream's.
	secret *loginSecret
	// Params are settings of server connections, such as statement_timeout, given at startup. A client's own settings
	// replace them for that client; RESET restores them unless the client gave its own at startup. Not allowed are
	// user, database, options, replication, and role and session_authorization, which a change of role undoes.
	Params []pgwire.Param
	// StatementCache is how many prepared statements a server connection keeps in transaction
	// mode; 0 = DefaultStatementCache.
	StatementCache int
	// ReadCatalogs says which information about functions the gateway reads from the servers and relies on, in
	// transaction mode. It reads after the first login, after DDL and every minute, in one transaction, which takes
	// longer the more functions and tables there are.
	ReadCatalogs Catalogs
	Logger       *slog.Logger // nil = slog.Default()
}

// Postgres is a Backend of pooled connections to PostgreSQL servers. Methods may be called from
// any goroutine.
//
// With AsClient there is one Postgres for the upstream, which runs no sessions, and one for each of its pairs: see
// pairs.go.
type Postgres struct {
	cfg    PostgresConfig
	whole  *upstream.Upstream[*server]
	up     *upstream.Tenant[*server] // the pools of this Postgres
	tables tables
	*pair  // nil = this is the upstream's
	pairs  pairs
	stalls stalls // of pairs; a pair has none of its own

	listening  listening
	renewals   *renewals // a pair has those of the backend
	secrets    secretConn
	baseline   baseline // what the newest server connection reported
	retired    atomic.Bool
	follows    atomic.Pointer[Postgres] // see Follow; nil = none
	life       context.Context          // ends when the backend is drained, closed or retired; for the backend's own work
	end        context.CancelFunc
	unreadable atomic.Bool // keep could not read a client's settings, and has logged that
	unseen     atomic.Bool // lookAt could not read what a client has left, and has logged that
	checks     checks

	updating sync.Mutex // also held by Retire; guards the fields below, up's last settings
	with     upstream.Settings
}

// baseline is what a server connection reported at startup: a list that is never changed in place.
type baseline struct {
	list  atomic.Pointer[[]pgwire.Param]
	doubt func(endpoint string) // Upstream.Doubt of the backend's; immutable
}

// get returns nil before the first server connection.
func (b *baseline) get() []pgwire.Param {
	if p := b.list.Load(); p != nil {
		return *p
	}
	return nil
}

func (b *baseline) set(list []pgwire.Param) { b.list.Store(&list) }

var _ Backend = (*Postgres)(nil)

// NewPostgres returns a Backend and starts warming Limits.MinIdle connections for each endpoint.
// Errors wrap ErrConfig or upstream.ErrConfig.
func NewPostgres(cfg PostgresConfig) (*Postgres, error) {
	if err := cfg.verify(); err != nil {
		return nil, fmt.Errorf("%w: upstream %q: %w", ErrConfig, cfg.Name, err)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.LoginAs == AsUpstream {
		cfg.DBName = cmp.Or(cfg.DBName, cfg.User)
	}
	b := &Postgres{cfg: cfg, renewals: new(renewals)}
	b.pairs.all, b.pairs.catalogs = map[uint64]*Postgres{}, map[string]*sharedCatalog{}
	b.life, b.end = context.WithCancel(context.Background())
	b.secrets.use, b.secrets.turns = make(chan struct{}, 1), newTurns()
	context.AfterFunc(b.life, b.closeSecretServer)
	b.tables.cannotListen, b.tables.readers.added = b.cannotListen, b.logReader
	b.with = withMaxSize(cfg.Settings)
	b.noteLimits()
	b.tables.knowledge = new(knowledge)
	if cfg.LoginAs == AsUpstream {
		b.tables.knowledge.start(cfg.ReadCatalogs)
	}
	open, try := b.open, upstream.Probe(nil)
	if cfg.LoginAs == AsClient {
		open, try = nil, Probe(cfg)
	}
	b.baseline.doubt = func(endpoint string) { b.whole.Doubt(endpoint) }
	up, err := upstream.New(upstream.Config[*server]{
		Name: cfg.Name, Settings: b.with, Open: open, Close: b.close, Check: check, Try: try,
		Interrupt: func(s *server, _ error) { s.interrupt() },
		Affinity:  func(s *server) int { return affinityOf(fiber.LoopOf(s.raw), s.kind) },
		AskRole:   func(endpoint string) upstream.RoleAsker { return &roleAsker{b: b, endpoint: endpoint} },
		RoleOf:    roleOf,
		Traffic:   endpointTraffic,
		Logger:    cfg.Logger,
	})
	if err != nil {
		b.end()
		return nil, err
	}
	b.whole, b.up = up, up.Own()
	return b, nil
}

// verify returns the first problem of c, but for those of Settings.
func (c *PostgresConfig) verify() error {
	switch {
	case c.LoginAs < AsUpstream || c.LoginAs > AsClient:
		return fmt.Errorf("LoginAs %d is unknown", int(c.LoginAs))
	case c.LoginAs == AsUpstream && c.User == "":
		return errors.New("postgres.user is missing")
	case c.User == "" && c.Password != "":
		return errors.New("there is a Password, and no User")
	case c.User == "" && c.Target != upstream.TargetAny:
		return fmt.Errorf("the target %v needs a User, to ask the servers for their roles", c.Target)
	case c.MaxPairs < 0:
		return fmt.Errorf("MaxPairs %d is negative", c.MaxPairs)
	case c.MaxPairs > 0 && c.LoginAs == AsUpstream:
		return errors.New("MaxPairs needs LoginAs: AsClient")
	case c.ChannelBinding < BindingPrefer || c.ChannelBinding > BindingRequire:
		return fmt.Errorf("ChannelBinding %d is unknown", int(c.ChannelBinding))
	case c.ChannelBinding == BindingRequire && c.TLS == nil:
		return errors.New("ChannelBinding: BindingRequire needs TLS")
	case c.StatementCache < 0:
		return fmt.Errorf("StatementCache %d is negative", c.StatementCache)
	}
	for _, p := range c.Params {
		if err := checkServerParam(p); err != nil {
			return err
		}
	}
	return nil
}

func withMaxSize(s upstream.Settings) upstream.Settings {
	s.Limits.MaxSize = cmp.Or(s.Limits.MaxSize, max(DefaultMaxSize, s.Limits.MinIdle))
	return s
}

// open opens a server connection for the pool.
func (b *Postgres) open(ctx context.Context, endpoint string) (*server, error) {
	s, err := b.connect(ctx, endpoint)
	if err == nil {
		s.newest, s.stmts.texts = &b.baseline, &b.tables.texts
		s.kind = appliedSettings{s.view, s.settings}.kind()
		s.newest.set(s.baseline)
		if err = b.listening.compare(ctx, s); err != nil {
			b.close(s)
			return nil, err
		}
	}
	return s, err
}

// close closes a server connection of the pool.
func (b *Postgres) close(s *server) {
	s.stmts.clear()
	closeServer(s)
}

// Update changes the settings of a running backend. Connections to endpoints that remain are kept.
func (b *Postgres) Update(s upstream.Settings) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	s = withMaxSize(s)
	err := b.whole.Update(s)
	if err == nil {
		b.with = s
		b.noteLimits()
	}
	return err
}

// noteLimits notes what depends on the limits of the pools. The caller holds updating.
func (b *Postgres) noteLimits() {
	limits := b.with.Limits
	b.tables.pins.setLimits(limits)
	b.setPairIdle(limits.IdleTimeout)
	b.eachPair(func(p *Postgres) { p.tables.pins.setLimits(limits) })
}

// ChangeEndpoint calls the method of upstream.Upstream.
func (b *Postgres) ChangeEndpoint(c upstream.Change) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	err := b.whole.ChangeEndpoint(c)
	b.with.Overrides = b.whole.Overrides()
	return err
}

// Overrides calls the method of upstream.Upstream.
func (b *Postgres) Overrides() []upstream.Override { return b.whole.Overrides() }

// EndpointNames calls the method of upstream.Upstream.
func (b *Postgres) EndpointNames() []string { return b.up.EndpointNames() }

// Pause calls the method of upstream.Upstream. Connections outside of the pool continue: the listening one, and those of
// replication.
func (b *Postgres) Pause(limit time.Duration) error { return b.whole.Pause(limit) }

// Resume calls the method of upstream.Upstream.
func (b *Postgres) Resume() bool { return b.whole.Resume() }

// Name implements Backend.
func (b *Postgres) Name() string { return b.cfg.Name }

// Status implements Backend.
func (b *Postgres) Status() upstream.Status { return b.whole.Status() }

// Drain implements Backend. It grants no new leases, waits until all leases are released, closes everything, and
// returns ctx's error if ctx ends first.
func (b *Postgres) Drain(ctx context.Context) error {
	b.listening.close()
	b.end()
	if b.pair != nil {
		return b.up.Drain(ctx)
	}
	return errors.Join(b.drainPairs(ctx), b.whole.Drain(ctx))
}

// Retire marks this backend as replaced by another one, perhaps with another password. Its sessions continue as long
// as there are server connections for them, but none is kept idle or opened ahead of demand any more. A session that
// gets no connection ends (57P01), so that its client reconnects to the new backend. Probes no longer log in, because
// servers may refuse the old password.
func (b *Postgres) Retire() {
	b.retired.Store(true)
	b.end()
	b.tables.knowledge.retire()
	b.updating.Lock()
	defer b.updating.Unlock()
	b.retirePairs()
	s := b.with.Retired()
	if s.Health.Probe != nil {
		s.Health.Probe = upstream.TCPProbeBy(b.cfg.dial)
	}
	_ = b.whole.Update(s) // it was valid, and fails only once closed
	b.setPairIdle(s.Limits.IdleTimeout)
	if b.follows.Load() == nil {
		b.whole.Resume() // operators reach the new backend only
	}
}

// Follow is called before Retire if the backend is paused, and next, which replaces it, too: it stays paused until Resume,
// and then logs in to the servers as next does, so that sessions that wait continue there. It reports whether that is
// possible: both log in for their clients in the same way. Update sets the endpoints.
func (b *Postgres) Follow(next *Postgres) bool {
	if b.cfg.LoginAs != next.cfg.LoginAs {
		return false
	}
	b.follows.Store(next)
	return true
}

// login returns how to log in to the servers now, for connections of pools.
func (b *Postgres) login() *PostgresConfig {
	whole := b
	if b.pair != nil {
		whole = b.of
	}
	next := whole.follows.Load()
	if next == nil {
		return &b.cfg
	}
	cfg := next.cfg
	if b.pair != nil {
		cfg.User, cfg.Password, cfg.DBName = b.cfg.User, b.cfg.Password, b.cfg.DBName
	}
	return &cfg
}

// Close closes idle server connections now and leased ones when they are released.
func (b *Postgres) Close() {
	b.listening.close()
	b.end()
	if b.pair != nil {
		b.up.Close()
		return
	}
	for _, p := range b.closePairs() {
		p.Close()
	}
	b.whole.Close()
}

// Serve implements Backend.
func (b *Postgres) Serve(ctx context.Context, c *Client) (err error) {
	if c.Replication != "" {
		return b.replicate(ctx, c)
	}
	if b.cfg.LoginAs == AsUpstream {
		return b.serve(ctx, c)
	}
	var p *Postgres
	if c.Session != nil { // it was suspended, and has kept its pair
		p = b.pairOf(c.Login)
	} else if p, err = b.enter(ctx, c); err != nil {
		s := &session{b: b, c: c, ctx: ctx}
		if c.over(ctx) != nil { // it was killed, or the drain has ended, during the wait
			return s.ended(err)
		}
		return s.refuse(err)
	}
	defer func() {
		if err != ErrSuspended { //nolint:errorlint // returned as it is
			b.leave(p)
		}
	}()
	return p.serve(ctx, c)
}

// serve is Serve for a Postgres that runs sessions.
func (b *Postgres) serve(ctx context.Context, c *Client) error {
	s := newSession(ctx, b, c)
	defer s.close()
	err := s.serve()
	s.returned = true
	return err
}

// check asks an idle server connection of the pool for an answer.
func check(ctx context.Context, s *server) error {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(unixPast) })
	err := s.exec("")
	s.unnamed = 0 // any Query destroys it
	s.releaseBuffers()
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	return nil
}
