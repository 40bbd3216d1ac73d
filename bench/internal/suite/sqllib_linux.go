package suite

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"path/filepath"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // database/sql's driver "pgx"
	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/pgpool"
	"github.com/headpond/headpond/pool/sqlitepool"
)

// query is one of the study's queries with its published figure.
type query struct {
	name, postgres, sqlite string
	times                  int
	claim, claimSQLite     string
}

var queries = []query{
	{name: "select1", postgres: "SELECT 1", sqlite: "SELECT 1", times: 1, claim: "5.47 ms → 69.5 µs, 78.6 times", claimSQLite: "24.1 times"},
	{name: "realistic", postgres: "SELECT abalance FROM pgbench_accounts WHERE aid = 4711", sqlite: "SELECT abalance FROM pgbench_accounts WHERE aid = 4711", times: 1, claim: "13.5 times; connecting is 74 % of a short query"},
	{
		name: "complex100", times: 100, claim: "4.50 ms → 143 µs for each query, 31.4 times", claimSQLite: "3.75 times",
		postgres: "SELECT bid, count(*), sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN 1000 AND 1200 GROUP BY bid",
		sqlite:   "SELECT bid, count(*), sum(abalance) FROM pgbench_accounts WHERE aid BETWEEN 1000 AND 1200 GROUP BY bid",
	},
}

// because is why the figures of W3a differ from the study's.
const because = "the study's client and server shared a container and its connections their set-up; ours are a program and a server over loopback, the password is SCRAM-SHA-256"

// limits are the limits of the study's pool.
var limits = pool.Limits{MinIdle: 2, MaxSize: 5}

// sqlLibrary is W3a.
func (e *Env) sqlLibrary() []run.Group {
	var groups []run.Group
	hows := []string{"tcp", "unix"}
	if e.Quick {
		hows = hows[:1]
	}
	for _, how := range hows {
		for _, q := range queries {
			groups = append(groups, e.postgresLibrary(how, q))
		}
	}
	for _, q := range queries {
		groups = append(groups, e.sqliteLibrary(q))
	}
	return groups
}

// dsn returns the server's address for a client in a program: TCP with a password, or the Unix socket.
func (e *Env) dsn(how string) string {
	host, port, _ := net.SplitHostPort(e.pg.Addr) // made by this program
	if how == "unix" {
		host = e.pg.Socket
	}
	return fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=%s sslmode=disable", host, port, peers.DBUser, peers.Password, peers.DB)
}

func (e *Env) postgresLibrary(how string, q query) run.Group {
	ask := func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, q.postgres)
		if err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
	unpooled := libraryArm("unpooled", func(context.Context) (library, error) {
		dsn := e.dsn(how)
		return repeated(q.times, func(ctx context.Context) error {
			c, err := pgx.Connect(ctx, dsn)
			if err != nil {
				return err
			}
			defer c.Close(ctx)
			return ask(ctx, c)
		}), nil
	})
	pooled := libraryArm("pgpool", func(context.Context) (library, error) {
		p, err := pgpool.New(pgpool.Config{ConnString: e.dsn(how), Limits: limits})
		if err != nil {
			return library{}, err
		}
		return repeated(q.times, func(ctx context.Context) error {
			return p.With(ctx, func(c *pgx.Conn) error { return ask(ctx, c) })
		}).pooling(openedBy(p.Stats), p.Close), nil
	})
	return run.Group{Name: "PostgreSQL library", Prepare: e.preparePostgres,
		Arms: []run.Arm{unpooled, pooled, e.pgxArm(how, q, ask), e.databaseSQLArm(how, q)},
		Cases: []run.Case{{
			Info: result.Case{
				ID: "W3a/" + how + "/" + q.name, Suite: "sql", Metrics: libraryMetrics, Claim: q.claim, Because: because,
				Title: fmt.Sprintf("PostgreSQL library over %s: %s, %d at a time", how, q.name, q.times),
			},
			Baselines: []string{"unpooled"}, Open: openLibrary, Rounds: e.slowRounds(q),
		}}}
}

// slowRounds limits the rounds of a quick run in which one operation without a pool takes half a second.
func (e *Env) slowRounds(q query) int {
	if e.Quick && q.times > 1 {
		return 5
	}
	return 0
}

func (e *Env) pgxArm(how string, q query, ask func(context.Context, *pgx.Conn) error) run.Arm {
	return libraryArm("pgxpool", func(ctx context.Context) (library, error) {
		p, err := pgxpool.New(ctx, e.dsn(how)+" pool_min_conns=2 pool_max_conns=5")
		if err != nil {
			return library{}, err
		}
		return repeated(q.times, func(ctx context.Context) error {
			return p.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return ask(ctx, c.Conn()) })
		}).pooling(func() int64 { return p.Stat().NewConnsCount() }, p.Close), nil
	})
}

func (e *Env) databaseSQLArm(how string, q query) run.Arm {
	return libraryArm("databasesql", func(context.Context) (library, error) {
		return databaseSQL("pgx", e.dsn(how), q.postgres, q.times)
	})
}

// databaseSQL is the pool of database/sql. It keeps all of its five connections open.
func databaseSQL(driver, dsn, query string, n int) (library, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return library{}, err
	}
	db.SetMaxOpenConns(limits.MaxSize)
	db.SetMaxIdleConns(limits.MaxSize)
	return repeated(n, func(ctx context.Context) error {
		rows, err := db.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	}).pooling(func() int64 { return int64(db.Stats().OpenConnections) }, func() { _ = db.Close() }), nil
}

// sqliteFile creates a database with pgbench's table, unless it exists.
func (e *Env) sqliteFile(ctx context.Context) error {
	if e.sqlite != "" {
		return nil
	}
	path := filepath.Join(e.Starter.Group.Dir, "bench.db")
	db, err := sqlitepool.Open(path, sqlitepool.Config{})
	if err != nil {
		return err
	}
	defer db.Close()
	err = db.Write(ctx, func(c *sqlite.Conn) error {
		return sqlitex.ExecuteScript(c, `CREATE TABLE pgbench_accounts (aid INTEGER PRIMARY KEY, bid INTEGER, abalance INTEGER, filler TEXT);
			CREATE TABLE pgbench_history (id INTEGER PRIMARY KEY, aid INTEGER, delta INTEGER);
			WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < `+fmt.Sprint(sqliteRows)+`)
			INSERT INTO pgbench_accounts SELECT i, 1, 0, printf('%84s', '') FROM n;`, nil)
	})
	if err == nil {
		e.sqlite = path
	}
	return err
}

// sqliteRows is the number of rows in the SQLite file's table.
const sqliteRows = 100_000

func (e *Env) sqliteLibrary(q query) run.Group {
	once := func(c *sqlite.Conn) error { return ask(c, q.sqlite, nil) }
	unpooled := libraryArm("unpooled", func(context.Context) (library, error) {
		return repeated(q.times, func(context.Context) error {
			c, err := sqlite.OpenConn(e.sqlite, sqlite.OpenReadWrite)
			if err != nil {
				return err
			}
			defer c.Close()
			return once(c)
		}), nil
	})
	pooled := func(name string, read func(*sqlitepool.DB, context.Context, func(*sqlite.Conn) error) error) run.Arm {
		return libraryArm(name, func(context.Context) (library, error) {
			db, err := sqlitepool.Open(e.sqlite, sqlitepool.Config{Readers: limits, CacheSize: sqliteCache})
			if err != nil {
				return library{}, err
			}
			return repeated(q.times, func(ctx context.Context) error { return read(db, ctx, once) }).
				pooling(openedBy(func() pool.Stats { return db.Stats().Readers }), db.Close), nil
		})
	}
	standard := libraryArm("databasesql", func(context.Context) (library, error) {
		return databaseSQL("sqlite", "file:"+e.sqlite+"?_pragma=cache_size("+sqliteCacheKiB+")", q.sqlite, q.times)
	})
	return run.Group{Name: "SQLite library", Prepare: e.sqliteFile, Arms: []run.Arm{
		unpooled, pooled("sqlitepool", (*sqlitepool.DB).Read), pooled("sqlitepool-query", (*sqlitepool.DB).Query), standard,
	}, Cases: []run.Case{{
		Info: result.Case{
			ID: "W3a/sqlite/" + q.name, Suite: "sql", Metrics: libraryMetrics, Claim: q.claimSQLite, Because: "driver and table are others",
			Note:  "sqlitepool reads from a snapshot (Read), sqlitepool-query without one, as the study and the others do (Query). databasesql is that pool over modernc.org/sqlite, whose SQLite the other arms use too, by another driver. Every pooled connection keeps 10 MiB of pages",
			Title: fmt.Sprintf("SQLite library: %s, %d at a time", q.name, q.times),
		},
		Baselines: []string{"unpooled"}, Open: openLibrary,
	}}}
}
