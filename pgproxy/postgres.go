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
	// Settings: the address of a Unix socket is the path of the socket itself, such as
	// unix:/run/postgresql/.s.PGSQL.5432. Limits.MaxSize 0 = DefaultMaxSize. Health.Probe may be one of Probe,
	// upstream.TCPProbe.
	upstream.Settings
	// User, Password and DBName are used on every server connection, whatever the client's
	// are. DBName "" = User.
	User, Password, DBName string
	// TLS, if set, is required from the servers. Without a ServerName the endpoint's host is. A certificate without alternative names
	// is known by its common name, as libpq has it.
	TLS *tls.Config
	// Dial connects to an endpoint; nil uses package net.
	Dial func(ctx context.Context, endpoint string) (net.Conn, error)
	// AllowCleartext lets the password go in clear text, without TLS, over the network to a server
	// that asks for that. Over loopback, a Unix socket or TLS it may always.
	AllowCleartext bool
	// Params are settings of server connections, such as statement_timeout, given at startup. A client's
	// own settings take their place for that client; RESET goes back to them unless the client gave its own at startup. Not possible are user,
	// database, options, replication, and role and session_authorization, which a change of role undoes.
	Params []pgwire.Param
	// StatementCache is how many prepared statements a server connection keeps in transaction
	// mode; 0 = DefaultStatementCache.
	StatementCache int
	// ReadCatalogs says what the gateway reads and believes, in transaction mode, of which functions there are and what they do. It reads that
	// after the first login, after DDL and each minute, in one transaction, which takes longer the more functions and tables there are.
	ReadCatalogs Catalogs
	Logger       *slog.Logger // nil = slog.Default()
}

// Postgres is a Backend of pooled connections to PostgreSQL servers. Methods may be called from
// any goroutine.
type Postgres struct {
	cfg    PostgresConfig
	up     *upstream.Upstream[*server]
	tables tables

	listening  listening
	baseline   baseline // what the newest server connection reported
	retired    atomic.Bool
	life       context.Context // of what the backend does by itself, until it is drained, closed or retired
	end        context.CancelFunc
	unreadable atomic.Bool  // keep could not read the settings of a client, and has said so
	unseen     atomic.Bool  // likewise lookAt what a client has left
	unknown    atomic.Bool  // likewise learn what functions there are
	unread     atomic.Int32 // readings for learn that have failed, but for hopeless ones, since the last one that has not
	everything atomic.Bool  // likewise that every statement may leave something

	updating sync.Mutex // and Retire; the fields below are up's last settings
	with     upstream.Settings
}

// baseline is what a server connection reported: a list that is never changed in place.
type baseline struct {
	list atomic.Pointer[[]pgwire.Param]
}

// get returns nil if there has been no server connection.
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
	if cfg.User == "" {
		return nil, fmt.Errorf("%w: upstream %q: postgres.user is missing", ErrConfig, cfg.Name)
	}
	if cfg.StatementCache < 0 {
		return nil, fmt.Errorf("%w: upstream %q: StatementCache %d is negative", ErrConfig, cfg.Name, cfg.StatementCache)
	}
	for _, p := range cfg.Params {
		if err := checkServerParam(p); err != nil {
			return nil, fmt.Errorf("%w: upstream %q: %w", ErrConfig, cfg.Name, err)
		}
	}
	cfg.DBName, cfg.Logger = cmp.Or(cfg.DBName, cfg.User), cmp.Or(cfg.Logger, slog.Default())
	b := &Postgres{cfg: cfg}
	b.life, b.end = context.WithCancel(context.Background())
	b.tables.cannotListen = b.cannotListen
	b.with = withMaxSize(cfg.Settings)
	b.tables.pins.setUsual(b.with.Limits.MaxSize)
	b.tables.knowledge.start(cfg.ReadCatalogs)
	up, err := upstream.New(upstream.Config[*server]{
		Name: cfg.Name, Settings: b.with, Open: b.open, Close: b.close, Check: check,
		Interrupt: func(s *server, _ error) { s.interrupt() },
		Affinity:  func(s *server) int { return affinityOf(fiber.LoopOf(s.raw), s.kind) },
		Traffic:   endpointTraffic,
		Logger:    cfg.Logger,
	})
	if err != nil {
		b.end()
		return nil, err
	}
	b.up = up
	return b, nil
}

func withMaxSize(s upstream.Settings) upstream.Settings {
	s.Limits.MaxSize = cmp.Or(s.Limits.MaxSize, max(DefaultMaxSize, s.Limits.MinIdle))
	return s
}

// open connects for the pool.
func (b *Postgres) open(ctx context.Context, endpoint string) (*server, error) {
	s, err := connect(ctx, &b.cfg, endpoint)
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

// close closes for the pool.
func (b *Postgres) close(s *server) {
	s.stmts.clear()
	closeServer(s)
}

// Update changes the settings of a running backend. Connections to endpoints that stay are kept.
func (b *Postgres) Update(s upstream.Settings) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	s = withMaxSize(s)
	err := b.up.Update(s)
	if err == nil {
		b.with = s
		b.tables.pins.setUsual(s.Limits.MaxSize)
	}
	return err
}

// ChangeEndpoint is upstream.Upstream's.
func (b *Postgres) ChangeEndpoint(c upstream.Change) error {
	b.updating.Lock()
	defer b.updating.Unlock()
	err := b.up.ChangeEndpoint(c)
	b.with.Overrides = b.up.Overrides()
	return err
}

// Overrides is upstream.Upstream's.
func (b *Postgres) Overrides() []upstream.Override { return b.up.Overrides() }

// EndpointNames is upstream.Upstream's.
func (b *Postgres) EndpointNames() []string { return b.up.EndpointNames() }

// Name implements Backend.
func (b *Postgres) Name() string { return b.cfg.Name }

// Status implements Backend.
func (b *Postgres) Status() upstream.Status { return b.up.Status() }

// Drain implements Backend: no new leases; it waits until all leases are released, closes
// everything, and returns ctx's error if that ends first.
func (b *Postgres) Drain(ctx context.Context) error {
	b.listening.close()
	b.end()
	return b.up.Drain(ctx)
}

// retiredIdle is how long server connections of a retired backend may be idle: the servers' places are the other's now.
const retiredIdle = 5 * time.Second

// Retire marks this backend as replaced by another one, perhaps with another password. Its sessions continue as long as
// there are server connections for them, of which none is kept idle or opened ahead of demand any more. A session that
// gets none ends (57P01): its client reconnects to the new backend. Probes do not log in any more: servers may refuse
// the old password.
func (b *Postgres) Retire() {
	b.retired.Store(true)
	b.end()
	b.tables.knowledge.retire()
	b.updating.Lock()
	defer b.updating.Unlock()
	s := b.with
	s.Limits.MinIdle = 0
	if s.Limits.IdleTimeout <= 0 || s.Limits.IdleTimeout > retiredIdle {
		s.Limits.IdleTimeout = retiredIdle
	}
	if s.Health.Probe != nil {
		s.Health.Probe = upstream.TCPProbeBy(b.cfg.dial)
	}
	_ = b.up.Update(s) // it was valid, and fails only once closed
}

// Close closes idle server connections now and leased ones when they are released.
func (b *Postgres) Close() {
	b.listening.close()
	b.end()
	b.up.Close()
}

// Serve implements Backend.
func (b *Postgres) Serve(ctx context.Context, c *Client) error {
	if c.Replication != "" {
		return b.replicate(ctx, c)
	}
	s := newSession(ctx, b, c)
	defer s.close()
	err := s.serve()
	s.returned = true
	return err
}

// check is the pool's: it asks an idle server connection for an answer.
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
