package suite

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// poolers are the server without a pooler, and the poolers in transaction mode with 20 server connections. They ask
// clients for no password.
func (e *Env) poolers() []run.Arm {
	target := func() string { return e.pg.Addr }
	arms := append([]run.Arm{direct(target)}, e.gateways("postgres", target, func(g *peers.Gateway) { g.Postgres = e.pg.Access() })...)
	pgbouncer := func(name string, pair bool) run.Arm {
		return arm(name, func() (*peers.Target, error) {
			access := e.pg.Access()
			access.UsersFile = e.users
			return e.Starter.StartPgBouncer(target(), access, pair)
		})
	}
	arms = append(arms, pgbouncer("pgbouncer", false))
	return append(arms, e.defaults(pgbouncer("pgbouncer-2", true))...)
}

// preparePostgres starts the server and writes the poolers' list of users.
func (e *Env) preparePostgres(ctx context.Context) error {
	if err := e.postgres(ctx); err != nil {
		return err
	}
	var err error
	e.users, err = e.Starter.Group.File("users.txt", fmt.Sprintf("%q %q\n", peers.DBUser, e.pg.Secret))
	return err
}

// dialPostgres returns a function that logs in at an address.
func dialPostgres(addr, tls string) func(context.Context) (net.Conn, error) {
	return dialAndRun(addr, "sslmode="+tls, "")
}

// dialAndRun logs in with options of the connection string, and runs SQL if that is not empty.
func dialAndRun(addr, options, sql string) func(context.Context) (net.Conn, error) {
	dsn := fmt.Sprintf("postgres://%s:%s@%s/%s?%s", peers.DBUser, peers.Password, addr, peers.DB, options)
	return func(ctx context.Context) (net.Conn, error) {
		c, err := pgconn.Connect(ctx, dsn)
		if err != nil {
			return nil, err
		}
		if sql != "" {
			if _, err := c.Exec(ctx, sql).ReadAll(); err != nil {
				return nil, errors.Join(err, c.Close(ctx))
			}
		}
		// After a slow write pgconn reads in the background. Stop that read: the generator must receive the next byte.
		if err := c.SyncConn(ctx); err != nil {
			return nil, errors.Join(err, c.Close(ctx))
		}
		h, err := c.Hijack()
		if err != nil {
			return nil, err
		}
		return h.Conn, nil
	}
}

// dialPrepared returns a function that logs in and prepares the statement of load.PreparedLookUp.
func dialPrepared(addr string) func(context.Context) (net.Conn, error) {
	dial := dialPostgres(addr, "disable")
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if err == nil {
			if err = load.Prepare(c); err != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return c, err
	}
}

// openQueries returns the Open of cases with simple queries on kept connections. No query may fail.
func (e *Env) openQueries(w func() load.Workload, conns int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return e.openStatements(func(addr string) func(context.Context) (net.Conn, error) { return dialPostgres(addr, "disable") }, w, conns)
}

// openStatements is openQueries for connections made by dial.
func (e *Env) openStatements(dial func(addr string) func(context.Context) (net.Conn, error), w func() load.Workload, conns int) func(context.Context, string, run.Stopper) (run.Meter, error) {
	return func(ctx context.Context, name string, s run.Stopper) (run.Meter, error) {
		t := s.(armTarget).Target
		client, err := load.Open(ctx, load.Config{Addr: t.Addr, Conns: conns, Workload: w(), Open: dial(t.Addr)})
		if err != nil {
			if client != nil {
				_ = client.Close()
			}
			return nil, err
		}
		m := &loadMeter{client: client, target: t, strict: true}
		if name != "gateway-sqlite" {
			m.accepted = e.pg.Counter()
		}
		return m, nil
	}
}

// maxDirect is the largest number of clients with an arm without a pooler: the server accepts 400.
const maxDirect = 200

// lookUps is W3c with simple queries from our generator, as fast as possible and at part loads.
func (e *Env) lookUps(suite string, conns int) []run.Case {
	id := fmt.Sprintf("W3c/simple/%d", conns)
	arms := namesOf(e.poolers())
	if conns > maxDirect {
		arms = arms[1:]
	}
	full := run.Case{
		Info: result.Case{
			ID: id, Suite: suite, Conns: conns, Metrics: latencyMetrics,
			Title: fmt.Sprintf("PostgreSQL, look-up by key (pgbench -S), %s on 20 server connections", clients(conns)),
		},
		Baselines: []string{"pgbouncer", "gateway-goroutine"}, Arms: arms,
		Open: e.openQueries(func() load.Workload { return load.LookUp(e.pg.Rows) }, conns),
	}
	return e.partLoads(full, namesOf(e.poolers()[1:]))
}

// stateClients is the number of clients in the cases with pinned clients: half of the 20 server connections may be pinned.
const stateClients = 8

// sessionState returns W3c in the simple protocol for clients with session state: settings that
// differ, which the pooler sets on a server connection that another client has used, and advisory
// locks, which pin. W3c/unpinned is the same number of clients without state, to compare with. In W3c/checked they call
// a function that may leave state, after which the gateway looks for it; in W3c/function one that leaves none.
func (e *Env) sessionState() []run.Case {
	zones := dialEach(func(addr string, n int64) func(context.Context) (net.Conn, error) {
		return dialAndRun(addr, "sslmode=disable&timezone="+[]string{"UTC", "Asia%2FTokyo"}[n%2], "")
	})
	names := dialEach(func(addr string, n int64) func(context.Context) (net.Conn, error) {
		return dialAndRun(addr, fmt.Sprintf("sslmode=disable&application_name=client%d", n), "")
	})
	settings := dialEach(func(addr string, n int64) func(context.Context) (net.Conn, error) {
		return dialAndRun(addr, "sslmode=disable", fmt.Sprintf("SET work_mem = '%dkB'", 4096+n))
	})
	locked := func(addr string) func(context.Context) (net.Conn, error) {
		return dialAndRun(addr, "sslmode=disable", "SELECT pg_advisory_lock_shared(1)")
	}
	plain := func(addr string) func(context.Context) (net.Conn, error) { return dialPostgres(addr, "disable") }
	all, ours := namesOf(e.poolers()[1:]), gatewayNames(e.poolers())
	lookUp := func() load.Workload { return load.LookUp(e.pg.Rows) }
	call := func(function string) func() load.Workload {
		return func() load.Workload { return load.CallLookUp(function, e.pg.Rows) }
	}
	var cases []run.Case
	for _, c := range []struct {
		id, what string
		conns    int
		arms     []string
		dial     func(addr string) func(context.Context) (net.Conn, error)
		workload func() load.Workload
	}{
		{"W3c/zones", "half of them in another time zone", 32, all, zones, lookUp},
		{"W3c/names", "each with another name of its application", 32, all, names, lookUp},
		{"W3c/settings", "each with another work_mem", 32, ours, settings, lookUp},
		{"W3c/unpinned", "without state in their sessions", 32, all, plain, lookUp},
		{"W3c/unpinned", "without state in their sessions", stateClients, all, plain, lookUp},
		{"W3c/pinned", "pinned by a lock", stateClients, ours, locked, lookUp},
		{"W3c/function", "by a function that leaves no state", 32, all, plain, call("plain_balance")},
		{"W3c/checked", "by a function that may leave state", 32, all, plain, call("any_balance")},
	} {
		cases = append(cases, run.Case{
			Info: result.Case{
				ID: fmt.Sprintf("%s/%d", c.id, c.conns), Suite: "sql", Conns: c.conns, Metrics: latencyMetrics,
				Title: fmt.Sprintf("PostgreSQL, look-up by key (pgbench -S), %s on 20 server connections, %s", clients(c.conns), c.what),
			},
			Baselines: []string{"pgbouncer", "gateway-goroutine"}, Arms: c.arms,
			Open: e.openStatements(c.dial, c.workload, c.conns),
		})
	}
	return cases
}

// dialEach returns a function for cases in which each client, numbered from 1, logs in its own way.
func dialEach(dial func(addr string, n int64) func(context.Context) (net.Conn, error)) func(addr string) func(context.Context) (net.Conn, error) {
	return func(addr string) func(context.Context) (net.Conn, error) {
		var n atomic.Int64
		return func(ctx context.Context) (net.Conn, error) { return dial(addr, n.Add(1))(ctx) }
	}
}

// gatewayNames returns the names of those arms that are gateways.
func gatewayNames(arms []run.Arm) (names []string) {
	for _, name := range namesOf(arms) {
		if strings.HasPrefix(name, "gateway") {
			names = append(names, name)
		}
	}
	return names
}
