package pgpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/pool"
)

// Sizes used when [Config].Limits.MaxSize is 0. A PostgreSQL connection is a process on the server,
// so a service instance should use few.
const (
	DefaultMinIdle = 2
	DefaultMaxSize = 5
)

// closeTimeout bounds sending Terminate to the server, so that it does not delay a release.
const closeTimeout = 2 * time.Second

// ErrUnfinished is wrapped by the error of [Pool.With] when its function returned nil but left a
// transaction open or rows unread: the connection was closed and uncommitted work is lost.
var ErrUnfinished = errors.New("pgpool: the connection was released inside a transaction or with rows unread, and was closed")

// Config makes a Pool. ConnString or ConnConfig is required.
type Config struct {
	// Name appears in errors and statistics. Empty means host:port/database.
	Name string
	// ConnString is a URL or key=value string as libpq takes it. Ignored when ConnConfig is set.
	ConnString string
	// ConnConfig is used to open every connection; it must come from pgx.ParseConfig. It is copied.
	ConnConfig *pgx.ConnConfig
	// Limits are the pool's sizes and times. If MaxSize is 0 it becomes 5, and then a MinIdle of 0
	// becomes 2; with MaxSize set, MinIdle is taken unchanged. Every other zero has its meaning in
	// package pool.
	Limits pool.Limits
	// AfterConnect, optional, prepares each new connection: types, settings. An error, or
	// a panic, closes it and counts as a failed open.
	AfterConnect func(ctx context.Context, conn *pgx.Conn) error
	// ResetSession discards on release the session state that the holder left: settings,
	// temporary tables, cursors, LISTEN, advisory locks, roles; as DISCARD ALL does, but
	// prepared statements stay. It costs a round trip per release. Settings made by
	// AfterConnect are undone too: give those as ConnConfig.RuntimeParams.
	ResetSession bool
	// Hooks observe the pool, for tracing.
	Hooks pool.Hooks
	// LeakAfter and OnLeak report leases that are held for too long; see pool.Config.
	LeakAfter time.Duration
	OnLeak    func(pool.Leak)
}

// resetSession is DISCARD ALL without DEALLOCATE ALL.
// Source: https://www.postgresql.org/docs/current/sql-discard.html
const resetSession = "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; " +
	"SELECT pg_advisory_unlock_all(); DISCARD PLANS; DISCARD TEMP; DISCARD SEQUENCES"

// Pool pools connections to one PostgreSQL server. All methods are safe for concurrent use.
type Pool struct {
	pool *pool.Pool[*pgx.Conn]
}

// New makes a pool and starts to open MinIdle connections; it does not wait for them, and
// a server that is down is no error here. The error wraps pool.ErrConfig.
func New(cfg Config) (*Pool, error) {
	cc := cfg.ConnConfig
	if cc == nil {
		if cfg.ConnString == "" {
			return nil, fmt.Errorf("pgpool: %w: ConnString or ConnConfig is needed", pool.ErrConfig)
		}
		var err error
		if cc, err = pgx.ParseConfig(cfg.ConnString); err != nil {
			return nil, fmt.Errorf("pgpool: %w: ConnString: %w", pool.ErrConfig, err)
		}
	}
	cc = cc.Copy()
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("%s:%d/%s", cc.Host, cc.Port, cc.Database)
	}
	pc := pool.Config[*pgx.Conn]{
		Name:   cfg.Name,
		Open:   func(ctx context.Context) (*pgx.Conn, error) { return open(ctx, cc, cfg.AfterConnect) },
		Close:  closeConn,
		Check:  func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) },
		Limits: withDefaults(cfg.Limits),
		Hooks:  cfg.Hooks,

		LeakAfter: cfg.LeakAfter, OnLeak: cfg.OnLeak,
	}
	if cfg.ResetSession {
		pc.Reset = reset
	}
	p, err := pool.New(pc)
	if err != nil {
		return nil, fmt.Errorf("pgpool: %w", err)
	}
	return &Pool{pool: p}, nil
}

// reset discards the holder's session state, and the notifications that pgx has buffered for it.
func reset(ctx context.Context, conn *pgx.Conn) error {
	if err := conn.PgConn().Exec(ctx, resetSession).Close(); err != nil {
		return err
	}
	kept, stop := context.WithCancel(ctx)
	stop() // WaitForNotification then returns buffered notifications and does not wait
	for {
		if _, err := conn.WaitForNotification(kept); err != nil {
			return nil //nolint:nilerr // there are no more
		}
	}
}

func withDefaults(l pool.Limits) pool.Limits {
	if l.MaxSize == 0 {
		l.MaxSize = DefaultMaxSize
		l.MinIdle = cmp.Or(l.MinIdle, DefaultMinIdle)
	}
	return l
}

func open(ctx context.Context, cc *pgx.ConnConfig, after func(context.Context, *pgx.Conn) error) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil || after == nil {
		return conn, err
	}
	prepared := false
	defer func() { // also when it panics
		if !prepared {
			closeConn(conn)
		}
	}()
	if err := after(ctx, conn); err != nil {
		return nil, fmt.Errorf("AfterConnect: %w", err)
	}
	prepared = true
	return conn, nil
}

// closeConn sends Terminate and closes. For a connection whose query was cancelled it
// waits until pgx has sent the cancel request, so that the pool does not open another
// while the old backend still runs.
func closeConn(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // closed even with an error
	select {
	case <-conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// Acquire leases a connection until [Lease.Release] or [Lease.Discard]. It waits, first
// come first served, while all are in use. The error is pool's *pool.Error, which knows
// the state of the pool and wraps pool.ErrTimeout, ErrTooManyWaiters, ErrClosed, the
// context's error, or ErrOpen with PostgreSQL's own error.
func (p *Pool) Acquire(ctx context.Context) (Lease, error) {
	l, err := p.pool.Acquire(ctx)
	return Lease{l}, err
}

// With leases a connection, runs fn with it and gives it back. The error is Acquire's or
// fn's, or wraps [ErrUnfinished]. If fn panics, or its error wraps pool.ErrDiscard, the
// connection is closed.
func (p *Pool) With(ctx context.Context, fn func(conn *pgx.Conn) error) error {
	l, err := p.Acquire(ctx)
	if err != nil {
		return err
	}
	returned := false
	defer func() {
		if !returned {
			l.Discard()
		}
	}()
	err = fn(l.Conn())
	returned = true
	if errors.Is(err, pool.ErrDiscard) {
		l.Discard()
		return err
	}
	closed := l.Conn().IsClosed() // by fn: its error, if any, is the one to return
	if !l.release() && err == nil && !closed {
		return fmt.Errorf("%w (pool %q)", ErrUnfinished, p.pool.Stats().Name)
	}
	return err
}

// Update changes every limit of the running pool, with the defaults of [Config].
func (p *Pool) Update(l pool.Limits) error { return p.pool.Update(withDefaults(l)) }

// Stats returns a snapshot, in constant time.
func (p *Pool) Stats() pool.Stats { return p.pool.Stats() }

// Drain refuses new leases, waits for the release of all others and closes everything. When ctx
// ends first it returns ctx's error; leased connections are closed when they are released.
func (p *Pool) Drain(ctx context.Context) error { return p.pool.Drain(ctx) }

// Close refuses new leases and closes idle connections; leased ones are closed when they are
// released.
func (p *Pool) Close() { p.pool.Close() }
