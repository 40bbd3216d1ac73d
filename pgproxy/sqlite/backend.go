package sqlite

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"github.com/headpond/headpond/upstream"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// Defaults of Config.
const (
	DefaultAcquireTimeout    = 30 * time.Second
	DefaultIdleInTransaction = time.Minute
	DefaultStallTimeout      = time.Minute
	// DefaultMaxMessage leaves room for a large blob as a parameter.
	DefaultMaxMessage = 64 << 20
)

// Config describes a Backend. Only Path is required.
type Config struct {
	// Name is the upstream's name in status and metrics; default Path.
	Name string
	// Path of the database file; it is created if it does not exist.
	Path string
	// Limits bounds the readers (MaxSize 0 = number of CPUs, at least 4). AcquireTimeout (0 = 30 s)
	// and MaxWaiters also apply to the queue for the writer.
	Limits pool.Limits
	// BusyTimeout is how long to wait for a lock held by another process. 0 = 5 s.
	BusyTimeout time.Duration
	// ReadOnly opens the file read-only.
	ReadOnly bool
	// IdleInTransaction ends a session that holds the writer or a snapshot and
	// sends nothing for that long (SQLSTATE 25P03). 0 = 1 minute. A client can
	// shorten it by SET idle_in_transaction_session_timeout.
	IdleInTransaction time.Duration
	// StatementTimeout interrupts statements that run longer, including the time to send the rows.
	// 0 = unlimited. A client can shorten it by SET.
	StatementTimeout time.Duration
	// StallTimeout ends a session that holds a connection and whose client does not read. While
	// other sessions wait for a connection it is a twelfth. 0 = 1 minute.
	StallTimeout time.Duration
	// MaxMessage bounds a client's message, in bytes. A client's prepared statements are bounded by
	// four times that, and so are its portals. 0 = 64 MiB.
	MaxMessage int
	// MaxMemory bounds the memory, in bytes, that SQLite uses for the statements of all clients
	// together (SQLSTATE 53200). One value is bounded by a fourth of it (54000). 0 = 512 MiB,
	// negative = unlimited. SQLite has one heap per process: all Backends, and other users of
	// SQLite in the process, share the sum of their limits.
	MaxMemory int64
	// Logger gets errors of the file; default slog.Default.
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.Limits.AcquireTimeout, DefaultAcquireTimeout)
	set(&c.IdleInTransaction, DefaultIdleInTransaction)
	set(&c.StallTimeout, DefaultStallTimeout)
	c.MaxMessage = cmp.Or(c.MaxMessage, DefaultMaxMessage)
	c.MaxMemory = cmp.Or(c.MaxMemory, DefaultMaxMemory)
	c.Name = cmp.Or(c.Name, c.Path)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Backend serves PostgreSQL clients from a SQLite file. It is safe for use by
// several goroutines.
type Backend struct {
	cfg     Config
	db      *sqlitepool.DB
	states  sync.Map // *sqlite.Conn → *connState
	wide    sync.Map // columnKey of columns that hold larger integers than their declared type → true
	senders senderList
	started time.Time
	conns   int64       // maximum number of connections
	bounded atomic.Bool // allowMemory was called for this backend
	// answers counts the answers sent to all clients, see session.yieldToOthers.
	answers atomic.Uint64
	// generation counts changes of the schema made through this backend.
	generation atomic.Uint64
}

var _ pgproxy.Backend = (*Backend)(nil)

// New opens the file. Errors are those of sqlitepool.Open: a missing directory, a file that is not
// a database, invalid limits.
func New(cfg Config) (*Backend, error) {
	b := &Backend{cfg: cfg.withDefaults(), started: time.Now()}
	db, err := sqlitepool.Open(cfg.Path, sqlitepool.Config{
		Readers: b.cfg.Limits,
		Writer:  pool.Limits{AcquireTimeout: b.cfg.Limits.AcquireTimeout, MaxWaiters: b.cfg.Limits.MaxWaiters, OpenTimeout: b.cfg.Limits.OpenTimeout},

		BusyTimeout: cfg.BusyTimeout, ReadOnly: cfg.ReadOnly,
		Setup: b.setup, Teardown: b.teardown,
	})
	if err != nil {
		return nil, fmt.Errorf("sqlite upstream %q: %w", b.cfg.Name, err)
	}
	b.db = db
	if b.cfg.MaxMemory > 0 {
		b.conns = int64(db.Stats().Readers.MaxSize + 1)
		b.bounded.Store(true)
		allowMemory(b.cfg.MaxMemory, b.conns, db.CacheSize())
	}
	if db.ReadOnly() && !cfg.ReadOnly {
		b.cfg.Logger.Warn("sqlite file is not writable, serving it read-only", "path", cfg.Path)
	}
	return b, nil
}

// setup prepares a new connection: PostgreSQL's functions and catalogs, and limits.
func (b *Backend) setup(conn *sqlite.Conn) error {
	cs := newConnState(conn, &b.wide)
	if err := b.registerFunctions(cs); err != nil {
		return fmt.Errorf("register functions: %w", err)
	}
	if err := createCatalog(conn); err != nil {
		return fmt.Errorf("create catalog views: %w", err)
	}
	if err := setDefensive(conn, true); err != nil {
		return err
	}
	if err := conn.SetAuthorizer(cs); err != nil {
		return err
	}
	if value := b.cfg.MaxMemory / valueShare; value > 0 {
		conn.Limit(sqlite.LimitLength, int32(min(value, math.MaxInt32)))
	}
	b.states.Store(conn, cs)
	return nil
}

func (b *Backend) teardown(conn *sqlite.Conn) {
	if cs, ok := b.states.LoadAndDelete(conn); ok {
		cs.(*connState).evict(0)
	}
}

func (b *Backend) state(conn *sqlite.Conn) *connState {
	cs, _ := b.states.Load(conn)
	return cs.(*connState)
}

// Serve runs one client's session until the client disconnects or ctx ends. It runs in a goroutine of its own: SQLite
// computes and reads files, which would block a fiber's loop.
func (b *Backend) Serve(ctx context.Context, c *pgproxy.Client) (err error) {
	if c.Replication != "" {
		return c.Fatal(pgwire.StateFeatureNotSupported, "a SQLite file has no replication connections", "")
	}
	fiber.Block(func() { err = b.run(ctx, c) })
	return err
}

func (b *Backend) run(ctx context.Context, c *pgproxy.Client) error {
	c.Reader.MaxBody = b.cfg.MaxMessage
	ctx, end := c.Killable(ctx)
	defer end()
	p := newParker(b)
	s := &session{
		meter: c.Meter(),
		b:     b, c: c, ctx: pool.WithParker(ctx, p), parker: p,
		settings:   defaults(c.User),
		statements: map[string]*prepared{}, portals: map[string]*portal{},
	}
	s.guard.s = s
	return s.serve()
}

// Name is Config.Name.
func (b *Backend) Name() string { return b.cfg.Name }

// Status reports the two pools as endpoints "sqlite:PATH#writer" and
// "sqlite:PATH#readers"; a read-only file has readers only.
func (b *Backend) Status() upstream.Status {
	stats := b.db.Stats()
	st := upstream.Status{Name: b.cfg.Name, Balance: upstream.First.String()}
	add := func(part string, p pool.Stats) {
		e := upstream.EndpointStatus{Address: "sqlite:" + b.cfg.Path + part, Healthy: true, Leases: int64(p.InUse + p.Waiting), Pool: p}
		if p.LastOpenError != nil {
			e.Healthy, e.LastError = false, p.LastOpenError.Error()
		}
		st.Endpoints = append(st.Endpoints, e)
	}
	if !b.db.ReadOnly() {
		add("#writer", stats.Writer)
	}
	add("#readers", stats.Readers)
	return st
}

// Drain closes the connections when no session uses them any more. It returns ctx's error if ctx
// ends first.
func (b *Backend) Drain(ctx context.Context) error {
	err := b.db.Drain(ctx)
	if err == nil && b.bounded.CompareAndSwap(true, false) {
		allowMemory(-b.cfg.MaxMemory, -b.conns, b.db.CacheSize())
	}
	return err
}

// Exec runs a script in SQLite's dialect in one transaction, to create a schema or sample data
// before clients connect.
func (b *Backend) Exec(ctx context.Context, script string) error {
	err := b.db.Write(ctx, func(conn *sqlite.Conn) error { return sqlitex.ExecuteScript(conn, script, nil) })
	b.generation.Add(1)
	return err
}

// keyOf is the value of pg_backend_pid.
func keyOf(key pgwire.BackendKeyData) int64 { return int64(key.ProcessID) }
