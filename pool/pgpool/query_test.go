package pgpool_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/pgpool"
)

// What code for pgx asks for: sqlc's DBTX, and pgx.BeginFunc and BeginTxFunc.
var _ interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
	SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults
	Begin(ctx context.Context) (pgx.Tx, error)
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
} = (*pgpool.Pool)(nil)

// TestPoolAsConnection: on a pool of one connection each call below must have given it back, or the next waits forever.
func TestPoolAsConnection(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	ctx := t.Context()
	if _, err := db.Exec(ctx, "create table if not exists as_connection (n int)"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = db.Exec(context.Background(), "drop table as_connection") })
	if n, err := db.CopyFrom(ctx, pgx.Identifier{"as_connection"}, []string{"n"}, pgx.CopyFromRows([][]any{{1}, {2}, {3}})); n != 3 || err != nil {
		t.Errorf("copied %d rows: %v", n, err)
	}
	rows, err := db.Query(ctx, "select n from as_connection order by n")
	if ns, collected := pgx.CollectRows(rows, pgx.RowTo[int]); err != nil || collected != nil || !slices.Equal(ns, []int{1, 2, 3}) {
		t.Errorf("got %v: %v, %v", ns, err, collected)
	}
	rows, err = db.Query(ctx, "select n from as_connection order by n")
	if err != nil || !rows.Next() {
		t.Fatal(err)
	}
	rows.Close() // before the end
	rows.Close()
	rows, err = db.Query(ctx, "select 'text'")
	if err != nil || !rows.Next() {
		t.Fatal(err)
	}
	var n int
	if rows.Scan(&n) == nil { // ends the rows
		t.Error("a text was read into an int")
	}
	if err := db.QueryRow(ctx, "select count(*) from as_connection").Scan(&n); n != 3 || err != nil {
		t.Errorf("%d rows: %v", n, err)
	}
	if err := db.QueryRow(ctx, "select n from as_connection where n > 3").Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if _, err := db.Query(ctx, "select from"); !isSyntaxError(err) {
		t.Errorf("Query: %v", err)
	}
	if err := db.QueryRow(ctx, "select from").Scan(&n); !isSyntaxError(err) {
		t.Errorf("QueryRow: %v", err)
	}
	if _, err := db.Exec(ctx, "begin"); !errors.Is(err, pgpool.ErrUnfinished) {
		t.Errorf("BEGIN by Exec: %v", err)
	}
	if s := db.Stats(); s.InUse != 0 || s.Discarded != 1 { // for the BEGIN
		t.Errorf("stats %+v", s)
	}
}

// TestBatchesOfPool: the results of a batch have the one connection, until their Close.
func TestBatchesOfPool(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	batch := func(sql ...string) (b pgx.Batch) {
		for _, text := range sql {
			b.Queue(text)
		}
		return b
	}
	good := batch("select 1", "select generate_series(2, 3)", "select 4")
	results := db.SendBatch(t.Context(), &good)
	if _, err := results.Exec(); err != nil {
		t.Error(err)
	}
	rows, err := results.Query()
	if ns, collected := pgx.CollectRows(rows, pgx.RowTo[int]); err != nil || collected != nil || !slices.Equal(ns, []int{2, 3}) {
		t.Errorf("got %v: %v, %v", ns, err, collected)
	}
	if s := db.Stats(); s.InUse != 1 {
		t.Errorf("stats before the Close %+v", s)
	}
	if err := errors.Join(results.Close(), results.Close()); err != nil {
		t.Error(err)
	}
	bad := batch("select 1", "select from")
	if err := db.SendBatch(t.Context(), &bad).Close(); !isSyntaxError(err) {
		t.Errorf("a batch with an error: %v", err)
	}
	called := pgx.Batch{}
	called.Queue("select 1").QueryRow(func(pgx.Row) error { panic("in a function") })
	func() {
		defer func() { _ = recover() }()
		_ = db.SendBatch(t.Context(), &called).Close()
	}()
	if got := value[int](t, db, "select 5"); got != 5 {
		t.Errorf("after a panic: %d", got)
	}
	begins := pgx.Batch{}
	begins.BeginTx(pgx.TxOptions{})
	begins.Queue("select 6")
	results = db.SendBatch(t.Context(), &begins)
	tx := results.Tx()
	if err := results.Close(); err != nil {
		t.Error(err)
	}
	if s := db.Stats(); s.InUse != 1 {
		t.Errorf("stats before the Commit %+v", s)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	failed, n := db.SendBatch(over, &good), 0
	_, err = failed.Exec()
	_, queried := failed.Query()
	for _, err := range []error{err, queried, failed.QueryRow().Scan(&n), failed.Close()} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("without a connection: %v", err)
		}
	}
	if s := db.Stats(); s.InUse != 0 {
		t.Errorf("stats %+v", s)
	}
}

func isSyntaxError(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "42601"
}

// TestTransactionsOfPool: a transaction has one connection and gives it back, however it ends.
func TestTransactionsOfPool(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	ctx := t.Context()
	give := errors.New("give up")
	for _, result := range []error{nil, give} {
		err := pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "create table of_transaction (n int)")
			return errors.Join(err, result)
		})
		if !errors.Is(err, result) || (result == nil) != (err == nil) {
			t.Errorf("got %v, want %v", err, result)
		}
		if there := value[bool](t, db, "select to_regclass('of_transaction') is not null"); there != (result == nil) {
			t.Errorf("after %v: the table exists: %v", result, there)
		}
		if _, err := db.Exec(ctx, "drop table if exists of_transaction"); err != nil {
			t.Error(err)
		}
	}
	tx, err := db.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := tx.Rollback(ctx); !errors.Is(err, pgx.ErrTxClosed) { // as deferred
		t.Errorf("a Rollback after the Commit: %v", err)
	}
	if s := db.Stats(); s.InUse != 0 || s.Discarded != 0 {
		t.Errorf("stats %+v", s)
	}
}

// panics is an argument that panics, as a bug in an application's type may.
type panics struct{}

func (panics) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	panic("in an argument")
}

// TestPanicsKeepNoConnection: a server that recovers from panics, as net/http's does, goes on with all its connections.
func TestPanicsKeepNoConnection(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	ctx := t.Context()
	for what, call := range map[string]func(){
		"Exec":     func() { _, _ = db.Exec(ctx, "select 1", panics{}) },
		"Query":    func() { _, _ = db.Query(ctx, "select 1", panics{}) },
		"QueryRow": func() { _ = db.QueryRow(ctx, "select 1", panics{}).Scan() },
	} {
		func() {
			defer func() { _ = recover() }()
			call()
			t.Errorf("%s does not panic", what)
		}()
		if s := db.Stats(); s.InUse != 0 {
			t.Fatalf("%s keeps its connection", what)
		}
	}
}

// TestQueryWithoutConnection: the error is that of Acquire, also where it is only asked for later.
func TestQueryWithoutConnection(t *testing.T) {
	db := open(t, pgpool.Config{Limits: one})
	l, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Release()
	if err := db.Update(pool.Limits{MaxSize: 1, AcquireTimeout: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	rows, err := db.Query(t.Context(), "select 1")
	_, collected := pgx.CollectRows(rows, pgx.RowTo[int])
	_, executed := db.Exec(t.Context(), "select 1")
	_, begun := db.Begin(t.Context())
	for what, err := range map[string]error{
		"Query": err, "CollectRows": collected, "Exec": executed, "Begin": begun, "QueryRow": db.QueryRow(t.Context(), "select 1").Scan(nil),
	} {
		if !errors.Is(err, pool.ErrTimeout) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
