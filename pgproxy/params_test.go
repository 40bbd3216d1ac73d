package pgproxy_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// TestParams: clients get the settings of server connections, their own take precedence, and a
// client's settings are gone for the next one.
func TestParams(t *testing.T) {
	for mode, change := range map[string]func(*pgproxy.Config, *pgproxy.PostgresConfig){"transaction": transaction, "session": session} {
		g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
			change(c, pc)
			pc.Limits.MaxSize = 1
			pc.Params = []pgwire.Param{
				{Name: "statement_timeout", Value: "17s"}, {Name: "application_name", Value: "gateway"},
				{Name: "Search_Path", Value: "pg_temp, public"}, {Name: "DateStyle", Value: "SQL, DMY"}, {Name: "app.tenant", Value: `it's \ one`},
			}
		})
		defaults := map[string]string{"statement_timeout": "17s", "application_name": "gateway", "search_path": "pg_temp, public", "datestyle": "SQL, DMY", "app.tenant": `it's \ one`}
		own := map[string]string{"statement_timeout": "3s", "application_name": "mine", "search_path": "public", "datestyle": "ISO, MDY", "app.tenant": "two"}
		for _, c := range []struct {
			client string
			sql    []string
			want   map[string]string
		}{
			{"", nil, defaults},
			{"statement_timeout=3s application_name=mine search_path=public datestyle='ISO, MDY' app.tenant=two", nil, own},
			{"", nil, defaults},
			{"", []string{"set statement_timeout='1s'; set search_path=pg_catalog; set datestyle=German; set application_name=x; set app.tenant=y"}, nil},
			{"", nil, defaults},
			{"", []string{"set statement_timeout='1s'", "reset all"}, defaults},
			{"", []string{"set app.tenant='three'", "discard all"}, defaults},
		} {
			conn := g.connect(t, c.client)
			for _, sql := range c.sql {
				do(t, conn, sql, pgx.QueryExecModeSimpleProtocol)
			}
			for name, want := range c.want {
				if got := one[string](t, conn, "show "+name, pgx.QueryExecModeSimpleProtocol); got != want {
					t.Errorf("%s mode, client %q after %q: %s is %q, want %q", mode, c.client, c.sql, name, got, want)
				}
			}
			if name := conn.PgConn().ParameterStatus("application_name"); c.want != nil && name != c.want["application_name"] {
				t.Errorf("%s mode, client %q: it gets application_name %q", mode, c.client, name)
			}
			_ = conn.Close(context.Background())
		}
	}
}

// TestParamsThatAreRefused by the gateway, or by the server.
func TestParamsThatAreRefused(t *testing.T) {
	for _, p := range []pgwire.Param{
		{Name: ""}, {Name: "user", Value: "x"}, {Name: "Database", Value: "x"}, {Name: "options", Value: "-c a=b"}, {Name: "replication", Value: "true"},
		{Name: "ROLE", Value: "x"}, {Name: "session_authorization", Value: "x"}, {Name: "_pq_.x", Value: "y"}, {Name: "a b", Value: "x"}, {Name: "a", Value: "\x00"},
	} {
		if b, err := pgproxy.NewPostgres(pgproxy.PostgresConfig{Name: "pg", Settings: upstream.Settings{Endpoints: upstream.Endpoints("127.0.0.1:1")}, User: "app", Params: []pgwire.Param{p}}); !errors.Is(err, pgproxy.ErrConfig) {
			t.Errorf("%+v: %v", p, err)
			b.Close()
		}
	}
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		pc.Params = []pgwire.Param{{Name: "statement_timeot", Value: "1s"}}
	})
	if _, err := pgx.Connect(t.Context(), g.dsn("")); sqlstate(err) != "42704" || !has(err.Error(), "statement_timeot") {
		t.Errorf("a setting the server does not know: %v", err)
	}
}

// standby logs in and returns the server's report of being a standby.
func (g *gateway) standby(t *testing.T) (*wire, string) {
	t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	w := newWire(t, conn)
	w.send(&pgwire.StartupMessage{Params: []pgwire.Param{{Name: "user", Value: "app"}}})
	_, bodies := w.until(pgwire.TypeReadyForQuery)
	_, value, _ := strings.Cut(bodies, "in_hot_standby\x00")
	value, _, _ = strings.Cut(value, "\x00")
	return w, value
}

// TestPromotionIsTold promotes a standby that the gateway has connections to: libpq chooses servers by this report
// (target_session_attrs).
func TestPromotionIsTold(t *testing.T) {
	g, f := startFake(t, nil, &pgwire.ParameterStatus{Name: "in_hot_standby", Value: "on"})
	w, was := g.standby(t)
	w.send(query("select 1"))
	srv := <-f.conns
	srv.read()
	srv.send(&pgwire.ParameterStatus{Name: "in_hot_standby", Value: "off"}, done, idle)
	if types, _ := w.until(pgwire.TypeReadyForQuery); was != "on" || types != "SCZ" {
		t.Errorf("told %q, and at the promotion %s", was, types)
	}
	if _, now := g.standby(t); now != "off" {
		t.Errorf("after the promotion: %q", now)
	}
}

// TestSessionIsToldOfItsServer has a primary and a standby: a client gets the report of its own server, whichever was
// connected to last.
func TestSessionIsToldOfItsServer(t *testing.T) {
	primary := newFakeServer(t, &pgwire.ParameterStatus{Name: "in_hot_standby", Value: "off"})
	dials := 0
	g, standby := startFake(t, func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Mode, pc.Limits.MaxSize, pc.Limits.OpenConcurrency = pgproxy.Session, 2, 1
		pc.Dial = func(ctx context.Context, endpoint string) (net.Conn, error) {
			if dials++; dials > 1 {
				endpoint = primary.addr
			}
			return enginetest.Dial(ctx, endpoint)
		}
	}, &pgwire.ParameterStatus{Name: "in_hot_standby", Value: "on"})
	first, _ := g.standby(t)
	if _, is := g.standby(t); is != "off" {
		t.Errorf("on the primary: %q", is)
	}
	first.send(&pgwire.Terminate{})
	if sql := (<-standby.conns).answerQuery(); sql != "DISCARD ALL" {
		t.Error(sql)
	}
	conntest.Eventually(t, "an idle connection", func() bool { return g.backend.Status().Endpoints[0].Pool.Idle == 1 })
	if _, is := g.standby(t); is != "on" {
		t.Errorf("on the standby: %q", is)
	}
}

// TestStandbyIsLeft has a client write where a standby answers, as it does after a failover under a name that stood for the primary: that
// server connection is the last client's.
func TestStandbyIsLeft(t *testing.T) {
	for _, standby := range []string{"on", "off"} {
		g, f := startFake(t, nil, &pgwire.ParameterStatus{Name: "in_hot_standby", Value: standby})
		w, _ := g.standby(t)
		w.send(query("insert into t values (1)"))
		srv := <-f.conns
		srv.read()
		srv.send(&pgwire.ErrorResponse{Severity: "ERROR", Code: pgwire.StateReadOnlyTransaction, Message: "cannot execute INSERT in a read-only transaction"}, idle)
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "EZ" {
			t.Error(types)
		}
		w.send(query("select 1"))
		if standby == "on" {
			srv = <-f.conns
		}
		srv.answerQuery()
		if types, _ := w.until(pgwire.TypeReadyForQuery); types != "CZ" || len(f.conns) > 0 {
			t.Errorf("in_hot_standby %s: %s, %d connections more", standby, types, len(f.conns))
		}
	}
}
