package pgproxy_test

import (
	"context"
	"crypto/tls"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// startReplicating runs a proxy that lets replication connections through, before a server that has them.
// With secure there is TLS to clients and to the server.
func startReplicating(t *testing.T, secure bool) *gateway {
	options := []pgtest.Option{pgtest.WithSetting("wal_level", "logical"), pgtest.WithSetting("max_wal_senders", "10"),
		pgtest.WithHBA("host replication all 127.0.0.1/32 trust")}
	if secure {
		options = append(options, pgtest.WithTLS())
	}
	return start(t, pgtest.Start(t, options...), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.ReplicationUsers, pc.Limits.MaxSize = []string{"app"}, 1
		if secure {
			c.TLS, _ = certs.New().Configs()
			pc.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // a throw-away certificate
		}
	})
}

// A replication connection has its own server connection with what the client gave at startup, is told its process ID, and can be canceled.
func TestReplicationConnection(t *testing.T) {
	t.Run("plain", func(t *testing.T) { replicationConnection(t, startReplicating(t, false), "") })
	t.Run("TLS", func(t *testing.T) { replicationConnection(t, startReplicating(t, true), " sslmode=require") })
}

func replicationConnection(t *testing.T, g *gateway, with string) {
	cfg, err := pgconn.ParseConfig(g.dsn("application_name=replica" + with))
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	look := g.connect(t, "")
	var pid int
	var name string
	if err := look.QueryRow(t.Context(), "select pid, application_name from pg_stat_activity where backend_type = 'walsender'").Scan(&pid, &name); err != nil {
		t.Fatal(err)
	}
	if pid != int(conn.PID()) || name != "replica" {
		t.Errorf("the server has process %d of %q, the client was told %d", pid, name, conn.PID())
	}
	canceled := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "select pg_sleep(600)").ReadAll()
		canceled <- err
	}()
	sleeps(t, look, 600)
	if err := conn.CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-canceled; sqlstate(err) != "57014" {
		t.Errorf("the canceled statement: %v", err)
	}
	go func() {
		_, err := conn.Exec(context.Background(), "select pg_sleep(601)").ReadAll()
		canceled <- err
	}()
	sleeps(t, look, 601)
	_ = look.Close(t.Context())
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := g.Drain(ctx); err != nil { // it would last for ever
		t.Errorf("drain: %v", err)
	}
	if err := <-canceled; err == nil {
		t.Error("the replication connection outlived the drain")
	}
}

// sleeps returns once the server sleeps for some seconds.
func sleeps(t *testing.T, look *pgx.Conn, seconds int) {
	for one[int](t, look, "select count(*) from pg_stat_activity where state = 'active' and query = $1", "select pg_sleep("+itoa(seconds)+")") == 0 {
	}
}

// What servers refuse is refused with their words, and what makes no sense before.
func TestReplicationRefused(t *testing.T) {
	db := pgtest.Shared(t) // which has no walsenders
	for name, c := range map[string]struct {
		value   string
		allowed []string
		code    string
	}{
		"nobody": {value: "true", code: "42501"}, "another user": {value: "database", allowed: []string{"repl"}, code: "42501"},
		"nonsense": {value: "sometimes", allowed: []string{"*"}, code: "22023"}, "by the server": {value: "1", allowed: []string{"repl", "app"}, code: "53300"},
		"none": {value: "off"}, "another database": {value: "database options='-c database=template1'", allowed: []string{"*"}, code: "42704"},
		"another role": {value: "true options='-c user=postgres'", allowed: []string{"*"}, code: "42704"},
	} {
		g := start(t, db, func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) { cfg.ReplicationUsers = c.allowed })
		conn, err := pgx.Connect(t.Context(), g.dsn("replication="+c.value))
		if sqlstate(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
		if err == nil {
			_ = conn.Close(t.Context())
		}
	}
}

// Messages that came before both sides were logged in are passed on.
func TestReplicationHasty(t *testing.T) {
	g := startReplicating(t, false)
	w := g.dial(t, pgwire.Param{Name: "replication", Value: "database"})
	w.send(query("IDENTIFY_SYSTEM"), query("select 7 as seven"))
	w.until(pgwire.TypeReadyForQuery)
	if _, bodies := w.until(pgwire.TypeReadyForQuery); !has(bodies, "seven") {
		t.Errorf("%q", bodies)
	}
}

// Physical replication is not of a database: of one that is not listed it goes to the backend of those that are, if there is one.
func TestReplicationOfWhichServer(t *testing.T) {
	db := pgtest.Shared(t) // which has no walsenders
	one, other := start(t, db, nil), start(t, db, nil)
	for name, c := range map[string]struct {
		databases map[string]pgproxy.Backend
		value     string
		code      string
	}{
		"one":               {map[string]pgproxy.Backend{"a": one.backend, "b": one.backend}, "true", "53300"},
		"two":               {map[string]pgproxy.Backend{"a": one.backend, "b": other.backend}, "true", "3D000"},
		"listed":            {map[string]pgproxy.Backend{"a": one.backend, "replication": other.backend}, "true", "53300"},
		"logical, unlisted": {map[string]pgproxy.Backend{"a": one.backend}, "database", "3D000"},
	} {
		g := start(t, db, func(cfg *pgproxy.Config, _ *pgproxy.PostgresConfig) {
			cfg.ReplicationUsers, cfg.Databases = []string{"*"}, c.databases
		})
		if conn, err := pgx.Connect(t.Context(), g.dsn("dbname=replication replication="+c.value)); sqlstate(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
			if err == nil {
				_ = conn.Close(t.Context())
			}
		}
	}
}
