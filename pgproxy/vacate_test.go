package pgproxy_test

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/upstream"
)

// TestDatabaseWithoutClients does what programs that test programs do: they make a database, use it, disconnect, and copy,
// rename or drop it.
func TestDatabaseWithoutClients(t *testing.T) {
	db := pgtest.Start(t)
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		t.Run(mode.String(), func(t *testing.T) {
			g := startPairs(t, db, nil, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				c.Auth, c.Mode, pc.Limits.MinIdle = pgproxy.AuthTrust, mode, 1
			})
			admin := g.login(t, db.Superuser(), "", "postgres")
			do(t, admin, "create database original")
			used(t, g, db, "original")
			do(t, admin, "create database copy template original")
			used(t, g, db, "copy")
			do(t, admin, `alter database copy rename to "Copy"`)
			used(t, g, db, "Copy")
			do(t, admin, `drop database "Copy"`)
			used(t, g, db, "original")
			if _, err := admin.Exec(t.Context(), "drop database if exists original", pgx.QueryExecModeExec); err != nil {
				t.Error(err)
			}
		})
	}
}

// used connects to a database, does something there, and disconnects.
func used(t *testing.T, g *gateway, db *pgtest.Cluster, database string) {
	t.Helper()
	c := g.login(t, db.Superuser(), "", database)
	do(t, c, "select 1")
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDropDatabaseOfIdleClients drops a database of clients that hold no server connection.
func TestDropDatabaseOfIdleClients(t *testing.T) {
	db := pgtest.Start(t)
	g := startPairs(t, db, nil, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Auth = pgproxy.AuthTrust })
	admin := g.login(t, db.Superuser(), "", "postgres")
	do(t, admin, "create database shop")
	c := g.login(t, db.Superuser(), "", "shop")
	do(t, c, "listen news")
	do(t, c, "unlisten news")
	for _, prepare := range []pgx.QueryExecMode{pgx.QueryExecModeDescribeExec, pgx.QueryExecModeCacheStatement} {
		rows, _ := admin.Query(t.Context(), "drop database shop", prepare)
		if rows.Close(); rows.Err() != nil {
			t.Fatal(rows.Err())
		}
		do(t, admin, "create database shop")
		do(t, c, "select 1")
	}
	do(t, admin, "drop database shop")
	_, err := c.Exec(t.Context(), "select 1")
	if e, ok := errors.AsType[*pgconn.PgError](err); !ok || e.Code != "3D000" {
		t.Errorf("a client of the database got %v, want 3D000", err)
	}
}

// TestDropDatabaseOfUpstream drops the database of an upstream through another one.
func TestDropDatabaseOfUpstream(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create database shop")
	g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		all := map[string]pgproxy.Backend{}
		for _, name := range []string{"postgres", "shop"} {
			of := *pc
			of.DBName = name
			b, err := pgproxy.NewPostgres(of)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			all[name] = b
		}
		c.Databases = all
	})
	do(t, g.connect(t, "dbname=shop"), "select 1")
	do(t, g.connect(t, "dbname=postgres"), "drop database shop")
}

// TestVacateOneServer drops a database of a server. Other servers have one of the same name, in other upstreams and in the same
// one: their connections stay. Those to the server are closed, whatever name it has there.
func TestVacateOneServer(t *testing.T) {
	db, other := pgtest.Start(t), pgtest.Start(t)
	for _, s := range []*pgtest.Cluster{db, other} {
		s.Exec(t, "create database shop")
	}
	alias := net.JoinHostPort("localhost", strconv.Itoa(db.Port()))
	for _, as := range []pgproxy.LoginAs{pgproxy.AsUpstream, pgproxy.AsClient} {
		t.Run(as.String(), func(t *testing.T) {
			g := start(t, db, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
				all := map[string]pgproxy.Backend{}
				for name, endpoints := range map[string][]string{
					"postgres": {db.Addr()}, "shop": {alias}, "elsewhere": {other.Addr()}, "both": {other.Addr(), db.Addr()},
				} {
					of := *pc
					of.LoginAs, of.Endpoints, of.DBName, of.Balance = as, upstream.Endpoints(endpoints...), "shop", upstream.RoundRobin
					if name == "postgres" {
						of.DBName = name
					}
					b, err := pgproxy.NewPostgres(of)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(b.Close)
					all[name] = b
				}
				c.Databases = all
			})
			login := func(database string) *pgx.Conn { return g.login(t, db.Superuser(), "", database) }
			do(t, login("shop"), "select 1")
			elsewhere, both := login("elsewhere"), login("both")
			const who = "select current_setting('port') || ' ' || pg_backend_pid()"
			there := sees(t, elsewhere, who)
			before := []string{sees(t, both, who), sees(t, both, who)}
			do(t, login("postgres"), "drop database shop")
			if now := sees(t, elsewhere, who); now != there {
				t.Errorf("the other server's connection was %s and is %s", there, now)
			}
			if after := []string{sees(t, both, who), sees(t, both, who)}; !slices.ContainsFunc(after, func(s string) bool { return slices.Contains(before, s) }) {
				t.Errorf("the connections of the upstream with both servers were %q and are %q", before, after)
			}
			db.Exec(t, "create database shop")
		})
	}
}

func TestDatabaseAlone(t *testing.T) {
	for sql, want := range map[string]string{
		"drop database Shop": "shop",
		"DROP DATABASE IF EXISTS \"Sh\"\"op\" WITH (FORCE)":                `Sh"op`,
		" /* of a test */ drop -- it\n database\tshop;":                    "shop",
		"alter database shop rename to till":                               "shop",
		"alter database shop set tablespace fast":                          "shop",
		"create database till":                                             "template1",
		"create database till owner ada encoding 'template' template=shop": "shop",
		"CREATE DATABASE \"template\" WITH TEMPLATE 'Shop'":                "Shop",
		"create database till template default":                            "template1",
		"alter database shop set work_mem = '8MB'":                         "",
		"alter database shop owner to ada":                                 "",
		"drop table database":                                              "",
		"create table shop ()":                                             "",
		"drop databases shop":                                              "",
		"select 'drop database shop'":                                      "",
		"drop database":                                                    "",
	} {
		if got := pgproxy.DatabaseAlone(sql); got != want {
			t.Errorf("%s: %q, want %q", sql, got, want)
		}
	}
}

// TestVacateForNobody has a client name a database of others in statements that the server has not begun, or will not run: the
// connections of the others stay.
func TestVacateForNobody(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create database shop", "create role eve login")
	drop, sleep := &pgproto3.Parse{Query: "drop database shop"}, &pgproto3.Query{String: "select pg_sleep(0.2)"}
	for _, mode := range []pgproxy.Mode{pgproxy.Transaction, pgproxy.Session} {
		g := startPairs(t, db, nil, func(c *pgproxy.Config, _ *pgproxy.PostgresConfig) { c.Auth = pgproxy.AuthTrust })
		owner := g.login(t, db.Superuser(), "", "shop")
		pid := sees(t, owner, "select pg_backend_pid()::text")
		e := startPairs(t, db, nil, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			c.Auth, c.Mode, c.Databases = pgproxy.AuthTrust, mode, map[string]pgproxy.Backend{"*": g.backend}
		})
		for name, request := range map[string][]pgproto3.FrontendMessage{
			"behind another": {sleep, &pgproto3.Query{String: drop.Query}},
			"bound only":     {drop, &pgproto3.Bind{}, &pgproto3.Parse{Query: sleep.String}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
			"behind Execute": {&pgproto3.Parse{Query: sleep.String}, &pgproto3.Bind{}, &pgproto3.Execute{}, drop, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
			"in a block":     {&pgproto3.Query{String: "begin"}, &pgproto3.Query{String: drop.Query}, sleep},
		} {
			conn := e.login(t, "eve", "", "postgres").PgConn()
			eve := conn.Frontend()
			ready := 0
			for _, m := range request {
				switch eve.Send(m); m.(type) {
				case *pgproto3.Query, *pgproto3.Sync:
					ready++
				}
			}
			if err := eve.Flush(); err != nil {
				t.Fatal(err)
			}
			for ready > 0 {
				m, err := eve.Receive()
				if err != nil {
					t.Fatal(err)
				}
				if _, ok := m.(*pgproto3.ReadyForQuery); ok {
					ready--
				}
			}
			_ = conn.Close(t.Context())
			if now := sees(t, owner, "select pg_backend_pid()::text"); now != pid {
				t.Errorf("%v mode, %s: the owner's server connection is another", mode, name)
				pid = now
			}
		}
	}
}

// TestVacateEnds has the server connection be lost under the statement: nothing more is closed for it.
func TestVacateEnds(t *testing.T) {
	if began, ended := pgproxy.VacatesUntilLost("drop database shop"); began != 1 || ended != 1 {
		t.Errorf("began %d times and ended %d times", began, ended)
	}
}
