package pgproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
)

// sqlstate returns the code of a server's error, "" for any other.
func sqlstate(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pe.Code
	}
	return ""
}

func TestPgxModes(t *testing.T) {
	db := pgtest.Shared(t)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			g := start(t, db, transaction)
			var work errgroup.Group
			for i := range 8 {
				conn := g.connect(t, "default_query_exec_mode="+mode)
				work.Go(func() error {
					for n := range 50 {
						var sum int
						if err := conn.QueryRow(t.Context(), "select $1::int + $2::int", i, n).Scan(&sum); err != nil || sum != i+n {
							return fmt.Errorf("client %d query %d: %d, %w", i, n, sum, err)
						}
					}
					return nil
				})
			}
			if err := work.Wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBatchAndPipeline(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	conn := g.connect(t, "")
	var batch pgx.Batch
	for i := range 3000 {
		batch.Queue("select $1::int, repeat('x', 100)", i)
	}
	results := conn.SendBatch(t.Context(), &batch)
	for i := range 3000 {
		var n int
		var s string
		if err := results.QueryRow().Scan(&n, &s); err != nil || n != i || len(s) != 100 {
			t.Fatalf("result %d: %d %q %v", i, n, s, err)
		}
	}
	if err := results.Close(); err != nil {
		t.Fatal(err)
	}
	p := conn.PgConn().StartPipeline(t.Context())
	p.SendPrepare("a", "select 1", nil)
	p.SendQueryPrepared("a", nil, nil, nil)
	p.SendFlushRequest()
	if err := p.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // answers come although no Sync was sent
		if r, err := p.GetResults(); err != nil {
			t.Fatal(err)
		} else if rr, ok := r.(*pgconn.ResultReader); ok {
			if res := rr.Read(); res.Err != nil || string(res.Rows[0][0]) != "1" {
				t.Fatalf("flushed result %v", res)
			}
		}
	}
	if err := p.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if n := one[int](t, conn, "select 5"); n != 5 {
		t.Fatal(n)
	}
}

// TestPipelineLargerThanBuffers sends and receives more than sockets hold, both ways at once.
func TestPipelineLargerThanBuffers(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	conn := g.connect(t, "")
	big := strings.Repeat("y", 1<<20)
	var batch pgx.Batch
	for range 20 {
		batch.Queue("select $1::text", big)
	}
	results := conn.SendBatch(t.Context(), &batch)
	for i := range 20 {
		var s string
		if err := results.QueryRow().Scan(&s); err != nil || s != big {
			t.Fatalf("result %d: %d bytes, %v", i, len(s), err)
		}
	}
	if err := results.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestErrorInPipeline(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	conn := g.connect(t, "")
	for range 3 {
		var batch pgx.Batch
		batch.Queue("select 1")
		batch.Queue("select 1/$1::int", 0)
		batch.Queue("select 3")
		err := conn.SendBatch(t.Context(), &batch).Close()
		if sqlstate(err) != "22012" {
			t.Fatalf("batch with a division by zero: %v", err)
		}
		if _, err := conn.Exec(t.Context(), "select $1::int from missing_table", 1); sqlstate(err) != "42P01" {
			t.Fatalf("missing table: %v", err)
		}
		if n := one[int](t, conn, "select $1::int", 9); n != 9 {
			t.Fatal(n)
		}
	}
}

func TestCopy(t *testing.T) {
	db := pgtest.Shared(t)
	db.Exec(t, "create table if not exists copied (a int primary key, b text)", "truncate copied")
	g := start(t, db, transaction)
	conn := g.connect(t, "")
	rows := pgx.CopyFromSlice(50_000, func(i int) ([]any, error) { return []any{i, "some text of a row"}, nil })
	if n, err := conn.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"a", "b"}, rows); n != 50_000 || err != nil {
		t.Fatal(n, err)
	}
	_, err := conn.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"a", "b"},
		pgx.CopyFromSlice(50_000, func(i int) ([]any, error) { return []any{i, "duplicates"}, nil }))
	if sqlstate(err) != "23505" {
		t.Fatalf("copy of duplicates: %v", err)
	}
	failing := pgx.CopyFromFunc(func() ([]any, error) { return nil, io.ErrNoProgress })
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"copied"}, []string{"a", "b"}, failing); err == nil {
		t.Fatal("a copy whose source fails succeeded")
	}
	var out countWriter
	if _, err := conn.PgConn().CopyTo(t.Context(), &out, "copy copied to stdout"); err != nil || out == 0 {
		t.Fatal(out, err)
	}
	if n := one[int](t, conn, "select count(*) from copied"); n != 50_000 {
		t.Fatal(n)
	}
}

type countWriter int

func (w *countWriter) Write(p []byte) (int, error) {
	*w += countWriter(len(p))
	return len(p), nil
}

func TestLargeObjectsAndBytea(t *testing.T) {
	g := start(t, pgtest.Shared(t), transaction)
	conn := g.connect(t, "")
	data := make([]byte, 16<<20)
	if n := one[int](t, conn, "select length($1::bytea)", data); n != len(data) {
		t.Fatal(n)
	}
	if b := one[[]byte](t, conn, "select $1::bytea", data); len(b) != len(data) {
		t.Fatal(len(b))
	}
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		objects := tx.LargeObjects()
		oid, err := objects.Create(t.Context(), 0)
		if err != nil {
			return err
		}
		o, err := objects.Open(t.Context(), oid, pgx.LargeObjectModeRead|pgx.LargeObjectModeWrite)
		if err != nil {
			return err
		}
		_, err = o.Write(data[:1<<20])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPreparedStatements(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create table shape (a int)", "insert into shape values (1)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.StatementCache = 2 })
	a, b := g.connect(t, ""), g.connect(t, "")
	ctx := t.Context()
	prepare := func(c *pgx.Conn, name, sql string) error {
		_, err := c.PgConn().Prepare(ctx, name, sql, nil)
		return err
	}
	query := func(c *pgx.Conn, name string) (string, error) {
		r := c.PgConn().ExecPrepared(ctx, name, nil, nil, nil).Read()
		if r.Err != nil {
			return "", r.Err
		}
		return string(r.Rows[0][0]), nil
	}
	for i := range 6 { // more than the server connections keep; each client its own meaning
		if err := errors.Join(prepare(a, "s"+itoa(i), "select 'a"+itoa(i)+"'"), prepare(b, "s"+itoa(i), "select 'b"+itoa(i)+"'")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 18 {
		va, errA := query(a, "s"+itoa(i%6))
		vb, errB := query(b, "s"+itoa(i%6))
		if va != "a"+itoa(i%6) || vb != "b"+itoa(i%6) {
			t.Fatal(i, va, vb, errA, errB)
		}
	}
	if err := prepare(a, "s1", "select 2"); sqlstate(err) != "42P05" {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := query(a, "s99"); sqlstate(err) != "26000" {
		t.Errorf("unknown statement: %v", err)
	}
	if err := prepare(a, "bad", "selec 1"); sqlstate(err) != "42601" {
		t.Errorf("syntax error: %v", err)
	}
	if err := prepare(a, "bad", "select 1"); err != nil {
		t.Errorf("a name again after its Parse failed: %v", err)
	}
	if _, err := a.Exec(ctx, "deallocate s1", pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Errorf("deallocate: %v", err)
	}
	if err := prepare(a, "s1", "select 'again'"); err != nil {
		t.Errorf("a name again after deallocate: %v", err)
	}
	do(t, a, "deallocate all", pgx.QueryExecModeSimpleProtocol)
	if _, err := query(a, "s1"); sqlstate(err) != "26000" {
		t.Errorf("after deallocate all: %v", err)
	}
	if v, err := query(b, "s3"); v != "b3" {
		t.Errorf("another client's statement after deallocate all: %q %v", v, err)
	}
}

func TestChangedTableUnderPreparedStatement(t *testing.T) {
	db := pgtest.Start(t)
	db.Exec(t, "create table shape (a int)", "insert into shape values (1)")
	g := start(t, db, func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	conn := g.connect(t, "")
	rows := func() (int, error) {
		r, err := conn.Query(t.Context(), "select * from shape")
		if err != nil {
			return 0, err
		}
		defer r.Close()
		n := 0
		for r.Next() {
			n = len(r.RawValues())
		}
		return n, r.Err()
	}
	if n, err := rows(); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	db.Exec(t, "alter table shape add b int")
	if _, err := rows(); sqlstate(err) != "0A000" {
		t.Fatalf("first use after the change: %v", err)
	}
	if n, err := rows(); n != 2 || err != nil {
		t.Fatalf("second use after the change: %d columns, %v", n, err)
	}
}

func TestCancelByContext(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	conn, other := g.connect(t, ""), g.connect(t, "")
	for range 3 {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil { // nothing to cancel
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := conn.Exec(t.Context(), "select pg_sleep(60)")
			done <- err
		}()
		waitFor(t, g, "pg_sleep(60)")
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; sqlstate(err) != "57014" {
			t.Fatalf("cancelled query: %v", err)
		}
		if n := one[int](t, other, "select 1"); n != 1 {
			t.Fatal(n)
		}
	}
}

// waitFor returns once the server runs a statement that contains text.
func waitFor(t *testing.T, g *gateway, text string) {
	t.Helper()
	conn := pgtest.Shared(t).Connect(t)
	for {
		n := one[int](t, conn, "select count(*) from pg_stat_activity where state='active' and query like $1 and pid <> pg_backend_pid()", "%"+text+"%")
		if n > 0 {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the statement does not run")
		}
	}
}

// TestCancelNeverHitsAnother lets one client cancel all the time while others share its server
// connection: PgBouncer#717.
func TestCancelNeverHitsAnother(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	canceler, victim := g.connect(t, ""), g.connect(t, "")
	ctx, stop := context.WithCancel(t.Context())
	var work errgroup.Group
	work.Go(func() error {
		defer stop()
		for range 300 {
			if _, err := victim.Exec(t.Context(), "select pg_sleep(0.002)"); err != nil {
				return fmt.Errorf("the other client's query: %w", err)
			}
		}
		return nil
	})
	work.Go(func() error {
		for ctx.Err() == nil {
			if err := canceler.PgConn().CancelRequest(t.Context()); err != nil {
				return err
			}
		}
		return nil
	})
	work.Go(func() error {
		for ctx.Err() == nil {
			if _, err := canceler.Exec(t.Context(), "select 1"); err != nil && sqlstate(err) != "57014" {
				return err
			}
		}
		return nil
	})
	if err := work.Wait(); err != nil {
		t.Fatal(err)
	}
}

// queue asks something on conn, for which there is no server connection, and returns when it waits for one; done gets how that ended.
func (g *gateway) queue(t testing.TB, conn *pgx.Conn) (done <-chan error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "select 1")
		ended <- err
	}()
	for g.backend.Status().Endpoints[0].Pool.Waiting == 0 {
		if t.Context().Err() != nil {
			t.Fatal("no client waits")
		}
	}
	return ended
}

// TestAccessLogTellsTheWait: a transaction's line has the time that it waited for a connection apart from the time that it had one.
func TestAccessLogTellsTheWait(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(c *pgproxy.Config, pc *pgproxy.PostgresConfig) {
		c.Listener.AccessLog, pc.Limits.MaxSize = true, 1
	})
	holder, waiter := g.connect(t, "application_name=holder"), g.connect(t, "application_name=waiter")
	do(t, holder, "begin")
	done := g.queue(t, waiter)
	do(t, holder, "select pg_sleep(0.05)")
	do(t, holder, "commit")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`application_name=waiter .*status=transaction .*waited=(\S+)`)
	conntest.Eventually(t, "a line shows that the waiter waited for 50 ms or more", func() bool {
		for _, m := range line.FindAllStringSubmatch(g.log.String(), -1) {
			if waited, err := time.ParseDuration(m[1]); err == nil && waited >= 50*time.Millisecond {
				return true
			}
		}
		return false
	})
}

// TestAccessLogSwitchedOnMeanwhile: a transaction that began before has no line, because its times are unknown.
func TestAccessLogSwitchedOnMeanwhile(t *testing.T) {
	g := start(t, pgtest.Shared(t), nil)
	conn := g.connect(t, "application_name=early default_query_exec_mode=simple_protocol")
	do(t, conn, "begin")
	err := g.Update(pgproxy.Config{
		Listener: listener.Config{Name: "db", AccessLog: true, Logger: slog.New(slog.NewTextHandler(g.log, nil))}, Auth: pgproxy.AuthTrust,
		Databases: map[string]pgproxy.Backend{"*": g.backend},
	})
	if err != nil {
		t.Fatal(err)
	}
	do(t, conn, "commit")
	do(t, conn, "select 1")
	const line = "status=transaction"
	conntest.Eventually(t, "the second transaction has a line", func() bool { return has(g.log.String(), line) })
	if n := strings.Count(g.log.String(), line); n != 1 {
		t.Errorf("%d lines of transactions, want 1", n)
	}
}

// TestCancelWhileWaiting cancels a client that waits for a server connection.
func TestCancelWhileWaiting(t *testing.T) {
	g := start(t, pgtest.Shared(t), func(_ *pgproxy.Config, pc *pgproxy.PostgresConfig) { pc.Limits.MaxSize = 1 })
	holder, waiter := g.connect(t, ""), g.connect(t, "")
	do(t, holder, "begin")
	for range 2 {
		done := g.queue(t, waiter)
		if err := waiter.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; sqlstate(err) != "57014" {
			t.Fatalf("cancelled wait: %v", err)
		}
	}
	do(t, holder, "commit")
	if n := one[int](t, waiter, "select 1"); n != 1 {
		t.Fatal(n)
	}
}
