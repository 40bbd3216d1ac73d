package suite

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/headpond/headpond/bench/internal/load"
	"github.com/headpond/headpond/bench/internal/peers"
	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/run"
)

// sql is workload W3.
func (e *Env) sql() []run.Group {
	if info, ok := debug.ReadBuildInfo(); ok {
		e.addVersions(info)
	}
	steady := run.Group{Name: "PostgreSQL", Arms: e.poolers(), Prepare: e.preparePostgres}
	clients := []int{1, 32, 200, 1000}
	if e.Quick {
		clients = []int{32}
	}
	for _, n := range clients {
		cases := e.lookUps("sql", n)
		if n != 32 && n != 200 {
			cases = cases[:1]
		}
		steady.Cases = append(steady.Cases, cases...)
	}
	steady.Cases = append(append(steady.Cases, e.sessionState()...), e.pgbench()...)
	groups := append(e.sqlLibrary(), steady, e.idleClients("sql"), e.logins(false), e.sqliteBeside(), e.sqliteWire())
	if !e.Quick {
		groups = append(groups, e.logins(true))
	}
	return groups
}

// logins is W3b: what a pooler saves for clients without a pool.
func (e *Env) logins(tls bool) run.Group {
	mode, name := "disable", "clear"
	if tls {
		mode, name = "require", "tls"
	}
	access := func() peers.PostgresAccess {
		a := e.pg.Access()
		a.Auth, a.UsersFile = "scram-sha-256", e.users
		if tls {
			a.TLSCert, a.TLSKey = e.pg.Cert, e.pg.Key
		}
		return a
	}
	target := func() string { return e.pg.Addr }
	arms := append([]run.Arm{direct(target)}, e.gateways("postgres", target, func(g *peers.Gateway) { g.Postgres = access() })...)
	arms = append(arms, arm("pgbouncer", func() (*peers.Target, error) { return e.Starter.StartPgBouncer(target(), access(), false) }))
	return run.Group{Name: "PostgreSQL logins", Arms: arms, Prepare: e.preparePostgres, Cases: []run.Case{{
		Info: result.Case{
			ID: "W3b/" + name, Suite: "sql", Conns: logins, Metrics: latencyMetrics,
			Title: fmt.Sprintf("PostgreSQL: log in (SCRAM-SHA-256, %s), SELECT 1, leave; %d clients at a time", name, logins),
			Note:  "The client's half of SCRAM costs it about a millisecond, which bounds the rate",
		},
		Baselines: []string{"pgbouncer", "direct"},
		Open: func(_ context.Context, _ string, s run.Stopper) (run.Meter, error) {
			t := s.(armTarget).Target
			return loginMeter{target: t, dial: dialPostgres(t.Addr, mode), accepted: e.pg.Counter()}, nil
		},
	}}}
}

// sqliteWire is W3e: a SQLite file behind the gateway, beside PostgreSQL behind the gateway.
func (e *Env) sqliteWire() run.Group {
	prepare := func(ctx context.Context) error {
		if err := e.sqliteFile(ctx); err != nil {
			return err
		}
		return e.preparePostgres(ctx)
	}
	arms := []run.Arm{
		arm("gateway-sqlite", func() (*peers.Target, error) {
			return e.Starter.StartGateway(peers.Gateway{Engine: "auto", Protocol: "postgres", SQLite: true, Target: "sqlite:" + e.sqlite, Postgres: peers.PostgresAccess{Auth: "trust"}})
		}),
		arm("gateway-postgres", func() (*peers.Target, error) {
			return e.Starter.StartGateway(peers.Gateway{Engine: "auto", Protocol: "postgres", Target: e.pg.Addr, Postgres: e.pg.Access()})
		}),
	}
	one := func(id, title string, w load.Workload) run.Case {
		return run.Case{
			Info:      result.Case{ID: id, Suite: "sql", Conns: 32, Metrics: latencyMetrics, Title: title, Note: "A statement that fails, with SQLITE_BUSY say, fails the round"},
			Baselines: []string{"gateway-postgres"}, Open: e.openQueries(func() load.Workload { return w }, 32),
		}
	}
	prepared := one("W3e/prepared", "The look-up prepared", load.PreparedLookUp(sqliteRows))
	prepared.Open = e.openStatements(dialPrepared, func() load.Workload { return load.PreparedLookUp(sqliteRows) }, 32)
	return run.Group{Name: "SQLite over the wire", Arms: arms, Prepare: prepare, Cases: []run.Case{
		one("W3e/read", "Look-up by key, 32 clients, a SQLite file or PostgreSQL behind the gateway", load.LookUp(sqliteRows)),
		one("W3e/mixed", "The same with 10 % updates", load.Mixed(sqliteRows)),
		prepared,
	}}
}
