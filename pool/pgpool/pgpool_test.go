package pgpool_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/pgpool"
)

func TestMain(m *testing.M) { leaktest.Main(pgtest.Runner(m)) }

// databaseURL is where the examples connect to.
func databaseURL() string { return pgtest.SharedDSN() }

// open makes a pool on the shared server that is drained when the test ends.
func open(t *testing.T, cfg pgpool.Config) *pgpool.Pool {
	t.Helper()
	if cfg.ConnString == "" {
		cfg.ConnString = databaseURL()
	}
	db, err := pgpool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := db.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
	return db
}

// value runs a query through the pool and returns its one value.
func value[T any](t *testing.T, db *pgpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	err := db.With(t.Context(), func(c *pgx.Conn) error { return c.QueryRow(t.Context(), sql, args...).Scan(&v) })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// one is a pool of a single connection that only the test opens.
var one = pool.Limits{MaxSize: 1}

func TestDefaultsAreTheStudys(t *testing.T) {
	db := open(t, pgpool.Config{})
	if n := db.Stats().MaxSize; n != pgpool.DefaultMaxSize {
		t.Errorf("MaxSize = %d", n)
	}
	for range 10 {
		value[int](t, db, "select 1")
	}
	if s := db.Stats(); s.Acquired != 10 || s.Reused == 0 || s.Discarded != 0 {
		t.Errorf("stats = %+v", s)
	}
	if err := db.Update(pool.Limits{}); err != nil || db.Stats().MaxSize != pgpool.DefaultMaxSize {
		t.Errorf("Update to the defaults: %v, MaxSize %d", err, db.Stats().MaxSize)
	}
}

func TestConnectionAndStatementsAreReused(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	pid := value[int](t, db, "select pg_backend_pid()")
	for i := range 3 {
		if got := value[int](t, db, "select $1::int + 1", i); got != i+1 {
			t.Fatalf("got %d", got)
		}
	}
	if got := value[int](t, db, "select pg_backend_pid()"); got != pid {
		t.Errorf("backend %d, then %d", pid, got)
	}
	n := value[int](t, db, "select count(*) from pg_prepared_statements where statement = 'select $1::int + 1'")
	if n != 1 {
		t.Errorf("the statement is prepared %d times, want once", n)
	}
}

func TestUnfinishedConnectionsAreNotReused(t *testing.T) {
	for name, leave := range map[string]func(ctx context.Context, c *pgx.Conn) error{
		"open transaction":   func(ctx context.Context, c *pgx.Conn) error { _, err := c.Begin(ctx); return err },
		"failed transaction": failTransaction,
		"unread rows": func(ctx context.Context, c *pgx.Conn) error {
			_, err := c.Query(ctx, "select generate_series(1, 100000)")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, pgpool.Config{Limits: one})
			pid := value[int](t, db, "select pg_backend_pid()")
			err := db.With(t.Context(), func(c *pgx.Conn) error { return leave(t.Context(), c) })
			if !errors.Is(err, pgpool.ErrUnfinished) {
				t.Errorf("error = %v, want ErrUnfinished", err)
			}
			if got := value[int](t, db, "select pg_backend_pid()"); got == pid {
				t.Error("the unfinished connection was reused")
			}
			if s := db.Stats(); s.Discarded != 1 {
				t.Errorf("stats = %+v", s)
			}
		})
	}
}

func failTransaction(ctx context.Context, c *pgx.Conn) error {
	if _, err := c.Begin(ctx); err != nil {
		return err
	}
	if _, err := c.Exec(ctx, "select 1/0"); err == nil {
		return errors.New("1/0 succeeded")
	}
	return nil
}

func TestErrorsOfTheFunctionKeepTheConnection(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	pid := value[int](t, db, "select pg_backend_pid()")
	err := db.With(t.Context(), func(c *pgx.Conn) error { _, err := c.Exec(t.Context(), "select * from nowhere"); return err })
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "42P01" {
		t.Fatalf("error = %v, want the server's 42P01", err)
	}
	if got := value[int](t, db, "select pg_backend_pid()"); got != pid {
		t.Error("a failed statement cost the connection")
	}
}

func TestDiscardAndPanicCloseTheConnection(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	pid := value[int](t, db, "select pg_backend_pid()")
	if err := db.With(t.Context(), func(*pgx.Conn) error { return pool.ErrDiscard }); !errors.Is(err, pool.ErrDiscard) {
		t.Fatal(err)
	}
	second := value[int](t, db, "select pg_backend_pid()")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = db.With(t.Context(), func(*pgx.Conn) error { panic("boom") })
	}()
	third := value[int](t, db, "select pg_backend_pid()")
	if pid == second || second == third {
		t.Errorf("backends %d, %d, %d", pid, second, third)
	}
}

func TestCancelledQueryIsStoppedOnTheServer(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one, Name: "cancel"})
	ctx, cancel := context.WithCancel(t.Context())
	watcher := pgtest.Shared(t).Connect(t)
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		if _, err := c.Exec(t.Context(), "set application_name = 'cancel-me'"); err != nil {
			return err
		}
		go func() {
			awaitSleepers(t, watcher, 1)
			cancel()
		}()
		_, err := c.Exec(ctx, "select pg_sleep(600)")
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error = %v", err)
	}
	awaitSleepers(t, watcher, 0)
	if got := value[int](t, db, "select 1"); got != 1 {
		t.Fatal(got)
	}
	if s := db.Stats(); s.Discarded != 1 {
		t.Errorf("stats = %+v", s)
	}
}

// awaitSleepers waits until n backends of TestCancelledQuery… sleep.
func awaitSleepers(t *testing.T, c *pgx.Conn, n int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for got := -1; got != n; {
		err := c.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name = 'cancel-me' and wait_event = 'PgSleep'").Scan(&got)
		if err != nil {
			t.Errorf("%d backends sleep, want %d: %v", got, n, err)
			return
		}
	}
}

func TestExhaustedPoolNamesItsState(t *testing.T) {
	db := open(t, pgpool.Config{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: 2 * time.Second}, Name: "small"})
	lease, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lease.Reused() {
		t.Error("the first lease is a reused one")
	}
	_, err = db.Acquire(t.Context())
	if !errors.Is(err, pool.ErrTimeout) || !strings.Contains(err.Error(), `"small"`) {
		t.Errorf("error = %v", err)
	}
	lease.Release()
	value[int](t, db, "select 1")
}

func TestWrongPasswordAndBadConfig(t *testing.T) {
	c := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := open(t, pgpool.Config{ConnString: c.DSN(c.Superuser(), "wrong", "postgres"), Limits: one})
	err := db.With(t.Context(), func(*pgx.Conn) error { return nil })
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "28P01" || !errors.Is(err, pool.ErrOpen) {
		t.Errorf("error = %v, want 28P01 and pool.ErrOpen", err)
	}
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("the password is in the error: %v", err)
	}
	for _, cfg := range []pgpool.Config{{}, {ConnString: "port=notaport"}, {ConnString: "host=x", Limits: pool.Limits{MaxSize: -1}}} {
		if _, err := pgpool.New(cfg); !errors.Is(err, pool.ErrConfig) {
			t.Errorf("New(%+v) = %v, want pool.ErrConfig", cfg, err)
		}
	}
}

func TestServerKilledAndBack(t *testing.T) {
	c := pgtest.Start(t)
	db := open(t, pgpool.Config{
		ConnString: c.DSN(c.Superuser(), "", "postgres"),
		Limits:     pool.Limits{MaxSize: 3, MinIdle: 3, CheckAfter: time.Nanosecond},
	})
	value[int](t, db, "select 1")
	c.Kill(t)
	if err := db.With(t.Context(), func(conn *pgx.Conn) error { return conn.Ping(t.Context()) }); err == nil {
		t.Fatal("a killed server answered")
	}
	c.Restart(t)
	deadline := time.Now().Add(time.Minute)
	for {
		err := db.With(t.Context(), func(conn *pgx.Conn) error { return conn.Ping(t.Context()) })
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the pool did not recover: %v", err)
		}
	}
}

func TestResetSessionKeepsStatements(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one, ResetSession: true})
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		_, err := c.PgConn().Exec(t.Context(),
			"set statement_timeout = 12345; create temp table leftover (n int); listen news; select pg_advisory_lock(7)").ReadAll()
		if err != nil {
			return err
		}
		return c.QueryRow(t.Context(), "select $1::int", 1).Scan(new(int))
	})
	if err != nil {
		t.Fatal(err)
	}
	for sql, want := range map[string]int{
		"select count(*)::int from pg_settings where name = 'statement_timeout' and setting = '12345'": 0,
		"select count(*)::int from pg_class where relname = 'leftover' and relpersistence = 't'":       0,
		"select count(*)::int from pg_listening_channels()":                                            0,
		"select count(*)::int from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()":    0,
		"select count(*)::int from pg_prepared_statements where statement = 'select $1::int'":          1,
	} {
		if got := value[int](t, db, sql); got != want {
			t.Errorf("%s = %d, want %d", sql, got, want)
		}
	}
	if s := db.Stats(); s.Opened != 1 || s.ClosedReset != 0 {
		t.Errorf("stats = %+v", s)
	}
}

// TestResetSessionDropsNotifications leaves notifications unread: they are not for the next holder.
func TestResetSessionDropsNotifications(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one, ResetSession: true})
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		_, err := c.Exec(t.Context(), "listen news; notify news, 'private 1'; notify news, 'private 2'", pgx.QueryExecModeSimpleProtocol)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = db.With(t.Context(), func(c *pgx.Conn) error {
		if _, err := c.Exec(t.Context(), "listen news; notify news, 'mine'", pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		n, err := c.WaitForNotification(t.Context())
		if err == nil && n.Payload != "mine" {
			t.Errorf("the next holder got %q", n.Payload)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := db.Stats(); s.Opened != 1 {
		t.Errorf("stats = %+v", s)
	}
}

func TestAfterConnectError(t *testing.T) {
	boom := errors.New("boom")
	db := open(t, pgpool.Config{Limits: one, AfterConnect: func(context.Context, *pgx.Conn) error { return boom }})
	err := db.With(t.Context(), func(*pgx.Conn) error { return nil })
	if !errors.Is(err, boom) || !errors.Is(err, pool.ErrOpen) {
		t.Errorf("error = %v", err)
	}
}

func TestManyGoroutinesShareFewConnections(t *testing.T) {
	db := open(t, pgpool.Config{Limits: pool.Limits{MaxSize: 3}})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for i := range 20 {
				got := -1
				err := db.With(t.Context(), func(c *pgx.Conn) error {
					return c.QueryRow(t.Context(), "select $1::int", i).Scan(&got)
				})
				if err != nil || got != i {
					t.Errorf("got %d, %v, want %d", got, err, i)
				}
			}
		})
	}
	wg.Wait()
	if s := db.Stats(); s.Acquired != 400 || s.Opened > 3 || s.InUse != 0 {
		t.Errorf("stats = %+v", s)
	}
}

// TestDiscardingTwicePanicsInTheCaller also where the connection is closed elsewhere,
// because its query was cancelled.
func TestDiscardingTwicePanicsInTheCaller(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	l, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.Conn().Exec(over, "select pg_sleep(600)"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	l.Release()
	for name, call := range map[string]func(){"Release": l.Release, "Discard": l.Discard} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a second %s went unnoticed", name)
				}
			}()
			call()
		}()
	}
	if got := value[int](t, db, "select 1"); got != 1 {
		t.Fatal(got)
	}
}

func TestPanicInAfterConnectClosesTheConnection(t *testing.T) {
	const name = "after-connect-panics"
	panics := true
	db := open(t, pgpool.Config{Limits: one, AfterConnect: func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, "set application_name = '"+name+"'")
		if panics {
			panics = false
			panic("after")
		}
		return err
	}})
	err := db.With(t.Context(), func(*pgx.Conn) error { return nil })
	if pe, ok := errors.AsType[*pool.PanicError](err); !ok || pe.Value != "after" {
		t.Fatalf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err = db.With(ctx, func(c *pgx.Conn) error {
		for n := 0; n != 1; { // the server takes a moment to end the other
			if err := c.QueryRow(ctx, "select count(*) from pg_stat_activity where application_name = '"+name+"'").Scan(&n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Error("the first connection is still there: ", err)
	}
}

func TestLeaksAreReported(t *testing.T) {
	leaks := make(chan pool.Leak, 1)
	db := open(t, pgpool.Config{Limits: one, LeakAfter: 10 * time.Millisecond, OnLeak: func(l pool.Leak) { leaks <- l }})
	l, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if leak := <-leaks; !strings.Contains(leak.Site, "TestLeaksAreReported") {
		t.Errorf("%+v", leak)
	}
}
