package suite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"

	_ "modernc.org/sqlite" // database/sql's driver "sqlite"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
)

// sqliteConns is one way to use a SQLite file in a program.
type sqliteConns interface {
	// read runs a query and reads all rows.
	read(ctx context.Context, query string, args ...any) error
	// write runs a statement in its own transaction.
	write(ctx context.Context, query string, args ...any) error
	opened() int64
	close()
}

// sqliteWay opens a file. Every way has as many readers as the study's pool has connections, waits for locks, and uses
// a write-ahead log with synchronous=NORMAL.
type sqliteWay struct {
	name string
	open func(path string) (sqliteConns, error)
}

// sqliteCache is the page cache of each connection, in bytes. It is the same for all arms and close to sqlitepool's
// default.
const sqliteCache = 10 << 20

// sqliteCacheKiB is sqliteCache as a value of PRAGMA cache_size.
var sqliteCacheKiB = fmt.Sprint(-sqliteCache >> 10)

// sqliteWays are the compared ways; mattn is added if it is linked in.
var sqliteWays = []sqliteWay{
	{"sqlitepool", openSQLitePool},
	{"sqlitepool-query", func(path string) (sqliteConns, error) {
		c, err := openSQLitePool(path)
		return oursQuery{c.(ours)}, err
	}},
	{"zombiezen", openZombiezen},
	{"databasesql", func(path string) (sqliteConns, error) { return openDatabaseSQL("sqlite", modernDSN(path), false) }},
	{"databasesql-prepared", func(path string) (sqliteConns, error) { return openDatabaseSQL("sqlite", modernDSN(path), true) }},
}

func modernDSN(path string) string {
	return "file:" + path + "?_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_pragma=foreign_keys(on)&_pragma=cache_size(" + sqliteCacheKiB + ")"
}

// ask runs a statement that the connection keeps compiled.
func ask(c *sqlite.Conn, query string, args []any) error {
	return sqlitex.Execute(c, query, &sqlitex.ExecOptions{Args: args, ResultFunc: func(*sqlite.Stmt) error { return nil }})
}

// ours is sqlitepool.
type ours struct{ *sqlitepool.DB }

func openSQLitePool(path string) (sqliteConns, error) {
	db, err := sqlitepool.Open(path, sqlitepool.Config{Readers: limits, CacheSize: sqliteCache})
	return ours{db}, err
}

func (o ours) read(ctx context.Context, query string, args ...any) error {
	return o.Read(ctx, func(c *sqlite.Conn) error { return ask(c, query, args) })
}

func (o ours) write(ctx context.Context, query string, args ...any) error {
	return o.Write(ctx, func(c *sqlite.Conn) error { return ask(c, query, args) })
}

func (o ours) opened() int64 { return openedBy(func() pool.Stats { return o.Stats().Readers })() }
func (o ours) close()        { o.Close() }

// oursQuery is sqlitepool without a snapshot, like the other arms.
type oursQuery struct{ ours }

func (o oursQuery) read(ctx context.Context, query string, args ...any) error {
	return o.Query(ctx, func(c *sqlite.Conn) error { return ask(c, query, args) })
}

// zombiezen is the driver's own pool. It begins no snapshot and does not check released
// connections.
type zombiezen struct{ pool *sqlitex.Pool }

func openZombiezen(path string) (sqliteConns, error) {
	p, err := sqlitex.NewPool(path, sqlitex.PoolOptions{
		PoolSize: limits.MaxSize,
		PrepareConn: func(c *sqlite.Conn) error {
			return errors.Join(sqlitex.ExecuteTransient(c, "PRAGMA synchronous=NORMAL", nil), sqlitex.ExecuteTransient(c, "PRAGMA foreign_keys=ON", nil),
				sqlitex.ExecuteTransient(c, "PRAGMA cache_size="+sqliteCacheKiB, nil))
		},
	})
	return zombiezen{p}, err
}

func (z zombiezen) read(ctx context.Context, query string, args ...any) error {
	c, err := z.pool.Take(ctx)
	if err != nil {
		return err
	}
	defer z.pool.Put(c)
	return ask(c, query, args)
}

func (z zombiezen) write(ctx context.Context, query string, args ...any) (err error) {
	c, err := z.pool.Take(ctx)
	if err != nil {
		return err
	}
	defer z.pool.Put(c)
	end, err := sqlitex.ImmediateTransaction(c)
	if err != nil {
		return err
	}
	defer end(&err)
	return ask(c, query, args)
}

func (z zombiezen) opened() int64 { return int64(limits.MaxSize) }
func (z zombiezen) close()        { _ = z.pool.Close() }

// standard is database/sql in the usual set-up for SQLite: one connection that writes, several that read.
type standard struct {
	readers, writer *sql.DB
	prepared        bool
	statements      sync.Map // *sql.Stmt by text: of the readers and of the writer
}

func openDatabaseSQL(driver, dsn string, prepared bool) (sqliteConns, error) {
	writer, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	readers, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, errors.Join(err, writer.Close())
	}
	writer.SetMaxOpenConns(1)
	readers.SetMaxOpenConns(limits.MaxSize)
	readers.SetMaxIdleConns(limits.MaxSize)
	return &standard{readers: readers, writer: writer, prepared: prepared}, nil
}

// statement prepares each text once. A text is used with only one of the two pools.
func (s *standard) statement(ctx context.Context, db *sql.DB, query string) (*sql.Stmt, error) {
	if st, ok := s.statements.Load(query); ok {
		return st.(*sql.Stmt), nil
	}
	st, err := db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if first, loaded := s.statements.LoadOrStore(query, st); loaded {
		return first.(*sql.Stmt), st.Close()
	}
	return st, nil
}

func (s *standard) read(ctx context.Context, query string, args ...any) error {
	ask := func() (*sql.Rows, error) { return s.readers.QueryContext(ctx, query, args...) }
	if s.prepared {
		st, err := s.statement(ctx, s.readers, query)
		if err != nil {
			return err
		}
		ask = func() (*sql.Rows, error) { return st.QueryContext(ctx, args...) }
	}
	rows, err := ask()
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
	}
	return rows.Err()
}

func (s *standard) write(ctx context.Context, query string, args ...any) error {
	var st *sql.Stmt
	if s.prepared {
		var err error
		if st, err = s.statement(ctx, s.writer, query); err != nil {
			return err
		}
	}
	tx, err := s.writer.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if s.prepared {
		_, err = tx.StmtContext(ctx, st).ExecContext(ctx, args...)
	} else {
		_, err = tx.ExecContext(ctx, query, args...)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

func (s *standard) opened() int64 { return int64(s.readers.Stats().OpenConnections) }

func (s *standard) close() {
	s.statements.Range(func(_, st any) bool { _ = st.(*sql.Stmt).Close(); return true })
	_ = errors.Join(s.readers.Close(), s.writer.Close())
}

// sqliteUse is a workload of W3f: what each of its goroutines repeats.
type sqliteUse struct {
	id, title  string
	goroutines int
	op         func(ctx context.Context, c sqliteConns) error
}

const (
	sqliteByKey  = "SELECT abalance FROM pgbench_accounts WHERE aid = ?"
	sqliteUpdate = "UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = ?"
	sqliteInsert = "INSERT INTO pgbench_history (aid, delta) VALUES (?, 1)"
)

func lookUpKey(ctx context.Context, c sqliteConns) error {
	return c.read(ctx, sqliteByKey, 1+rand.IntN(sqliteRows)) //nolint:gosec // any key will do
}

var sqliteUses = []sqliteUse{
	{"W3f/key", "look-up by key", 1, lookUpKey},
	{"W3f/select1", "SELECT 1", 1, func(ctx context.Context, c sqliteConns) error { return c.read(ctx, "SELECT 1") }},
	{"W3f/mixed", "90 % look-ups and 10 % updates by key, 16 goroutines", 16, func(ctx context.Context, c sqliteConns) error {
		if rand.IntN(10) > 0 { //nolint:gosec // any order will do
			return lookUpKey(ctx, c)
		}
		return c.write(ctx, sqliteUpdate, 1+rand.IntN(sqliteRows)) //nolint:gosec // any key will do
	}},
	{"W3f/insert", "an insert in a transaction, 16 goroutines", 16, func(ctx context.Context, c sqliteConns) error {
		return c.write(ctx, sqliteInsert, 1+rand.IntN(sqliteRows)) //nolint:gosec // any key will do
	}},
}

// sqliteBeside is W3f: sqlitepool beside the packages that it replaces. Each has its own file.
func (e *Env) sqliteBeside() run.Group {
	g := run.Group{Name: "SQLite in a program", Prepare: e.sqliteFile}
	for _, way := range sqliteWays {
		g.Arms = append(g.Arms, run.Arm{Name: way.name, Start: func(ctx context.Context) (run.Stopper, error) {
			return e.startSQLiteWay(ctx, way)
		}})
	}
	for _, use := range sqliteUses {
		g.Cases = append(g.Cases, run.Case{
			Info: result.Case{
				ID: use.id, Suite: "sql", Conns: use.goroutines, Metrics: libraryMetrics, Title: "SQLite library: " + use.title,
				Note: "The context can be canceled. sqlitepool reads from a snapshot (Read), sqlitepool-query without one, as the others do (Query). databasesql is that pool over modernc.org/sqlite, whose SQLite sqlitepool and zombiezen use, too; " +
					"with its statements prepared, and not; mattn is it over the driver that needs cgo, with its statements prepared. Every connection keeps 10 MiB of pages",
			},
			Baselines: []string{"databasesql-prepared"},
			Open: func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
				c := s.(sqliteArm)
				l := library{each: 1, opened: c.opened, op: func(ctx context.Context) error { return use.op(ctx, c) }}
				return &callMeter{library: l, goroutines: use.goroutines}, nil
			},
		})
	}
	return g
}

// sqliteArm is an arm of W3f.
type sqliteArm struct {
	sqliteConns
	path string
}

// Stop implements run.Stopper.
func (a sqliteArm) Stop() {
	a.close()
	_ = os.Remove(a.path)
}

func (e *Env) startSQLiteWay(ctx context.Context, way sqliteWay) (run.Stopper, error) {
	data, err := os.ReadFile(e.sqlite)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(e.Starter.Group.Dir, "bench-"+way.name+".db")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, err
	}
	c, err := way.open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", way.name, err)
	}
	a := sqliteArm{c, path}
	if err := c.read(ctx, sqliteByKey, 1); err != nil { // opens the connection: an error here ends the arm, not every round
		a.Stop()
		return nil, fmt.Errorf("%s: %w", way.name, err)
	}
	return a, nil
}
