package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/jackc/pgx/v5"
)

func TestTransactions(t *testing.T) {
	s := start(t)
	a, b := s.connect(t), s.connect(t)
	mustExec(t, a, `BEGIN`)
	if tag := mustExec(t, a, `INSERT INTO posts (author, title) VALUES (1, 'draft')`); tag != "INSERT 0 1" {
		t.Errorf("tag %q", tag)
	}
	if n := one[int64](t, b, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("uncommitted row is visible to others: %d", n)
	}
	if n := one[int64](t, a, `SELECT count(*) FROM posts`); n != 2 {
		t.Errorf("own row is not visible: %d", n)
	}
	_, err := a.Exec(t.Context(), `INSERT INTO posts (author) VALUES (99)`)
	wantState(t, err, "23503", "broken foreign key")
	if status := a.PgConn().TxStatus(); status != 'E' {
		t.Errorf("status after an error: %c", status)
	}
	_, err = a.Exec(t.Context(), `SELECT 1`)
	wantState(t, err, "25P02", "statement in a failed transaction")
	if tag := mustExec(t, a, `COMMIT`); tag != "ROLLBACK" {
		t.Errorf("COMMIT of a failed transaction: %q", tag)
	}
	if n := one[int64](t, b, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("failed transaction left rows: %d", n)
	}
	mustExec(t, a, `BEGIN READ ONLY`)
	_, err = a.Exec(t.Context(), `DELETE FROM posts`)
	wantState(t, err, "25006", "write in BEGIN READ ONLY")
	mustExec(t, a, `ROLLBACK`)
}

// The client gets no CommandComplete for a statement that a failed COMMIT undoes.
func TestWhatCommitRefusesIsNotConfirmed(t *testing.T) {
	conn := start(t).connect(t)
	mustExec(t, conn, `CREATE TABLE replies (post INTEGER REFERENCES posts(id) DEFERRABLE INITIALLY DEFERRED)`)
	for sql, confirmed := range map[string]int{
		`INSERT INTO replies VALUES (99)`:                      0,
		`INSERT INTO replies VALUES (99); SELECT 1`:            1,
		`INSERT INTO replies VALUES (99); SHOW server_version`: 1,
	} {
		results, err := conn.PgConn().Exec(t.Context(), sql).ReadAll()
		wantState(t, err, "23503", sql)
		n := 0
		for _, r := range results {
			if r.CommandTag.String() != "" {
				n++
			}
		}
		if n != confirmed {
			t.Errorf("%s: %d statements are confirmed, want %d", sql, n, confirmed)
		}
		if n := one[int64](t, conn, `SELECT count(*) FROM replies`); n != 0 {
			t.Errorf("%s: left %d rows", sql, n)
		}
	}
}

func TestSavepoints(t *testing.T) {
	conn := start(t).connect(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nested, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = nested.Exec(t.Context(), `INSERT INTO posts (author) VALUES (99)`)
	wantState(t, err, "23503", "in a savepoint")
	if err := nested.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO posts (author, title) VALUES (1, 'kept')`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 2 {
		t.Errorf("%d posts", n)
	}
	for _, sql := range []string{`BEGIN`, `SAVEPOINT Foo`, `ROLLBACK TO SAVEPOINT foo`, `RELEASE FOO`, `COMMIT`} {
		mustExec(t, conn, sql) // savepoint names ignore case, like identifiers
	}
}

func TestBatchIsOneTransaction(t *testing.T) {
	conn := start(t).connect(t)
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO posts (author, title) VALUES ($1, 'one')`, 1)
	batch.Queue(`INSERT INTO posts (author, title) VALUES ($1, 'two')`, 99)
	batch.Queue(`INSERT INTO posts (author, title) VALUES ($1, 'three')`, 1)
	wantState(t, conn.SendBatch(t.Context(), batch).Close(), "23503", "batch")
	if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("a failed batch left %d posts", n)
	}
	_, err := conn.Exec(t.Context(), `INSERT INTO posts (author) VALUES (1); SELECT broken`, pgx.QueryExecModeSimpleProtocol)
	wantState(t, err, "42703", "simple query")
	if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("a failed simple query left %d posts", n)
	}
}

func TestIdleTransaction(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.IdleInTransaction = 50 * time.Millisecond })
	reader, writer, other := s.connect(t), s.connect(t), s.connect(t)
	mustExec(t, reader, `BEGIN`)
	one[int64](t, reader, `SELECT count(*) FROM users`)
	mustExec(t, writer, `BEGIN; DELETE FROM posts`, pgx.QueryExecModeSimpleProtocol)
	mustExec(t, other, `UPDATE users SET age = 1`) // waits until the idle writer is ended
	_, err := writer.Exec(t.Context(), `COMMIT`)
	wantState(t, err, "25P03", "after idling in a transaction")
	if n := one[int64](t, reader, `SELECT age FROM users LIMIT 1`); n != 1 {
		t.Errorf("a block that only read was ended or keeps an old snapshot: %d", n)
	}
	if n := one[int64](t, other, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("the forgotten transaction was committed")
	}
}

func TestClientLeavingRollsBack(t *testing.T) {
	s := start(t)
	gone := s.connect(t)
	mustExec(t, gone, `BEGIN; DELETE FROM posts`, pgx.QueryExecModeSimpleProtocol)
	gone.PgConn().Conn().Close()
	conn := s.connect(t)
	mustExec(t, conn, `UPDATE users SET age = 2`)
	if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
		t.Errorf("%d posts: not rolled back", n)
	}
}

const endless = `WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r`

func TestCancel(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	mustExec(t, conn, `BEGIN; DELETE FROM posts`, pgx.QueryExecModeSimpleProtocol)
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(t.Context(), endless).ReadAll()
		done <- err
	}()
	for {
		if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			wantState(t, err, "57014", "cancelled statement")
			mustExec(t, conn, `ROLLBACK`)
			if n := one[int64](t, conn, `SELECT count(*) FROM posts`); n != 1 {
				t.Errorf("%d posts after the rollback", n)
			}
			return
		default:
		}
	}
}

// A client whose statement is ended by a drain gets the reason.
func TestDrainCutsStatement(t *testing.T) {
	s := start(t)
	conn := s.connect(t)
	done := make(chan error, 1)
	go func() {
		_, err := conn.PgConn().Exec(t.Context(), endless).ReadAll()
		done <- err
	}()
	readers := func() int { return s.b.Status().Endpoints[1].Pool.InUse }
	for readers() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the statement does not run")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.p.Drain(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("drain: %v", err)
	}
	wantState(t, <-done, "57P01", "a statement that is cut off")
}

func TestStatementTimeoutAndDisconnect(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize = 1 })
	conn := s.connect(t)
	mustExec(t, conn, `SET statement_timeout = '20ms'`)
	_, err := conn.Exec(t.Context(), endless)
	wantState(t, err, "57014", "statement_timeout")
	mustExec(t, conn, `RESET statement_timeout`)
	conn.PgConn().Frontend().SendQuery(endlessQuery())
	if err := conn.PgConn().Frontend().Flush(); err != nil {
		t.Fatal(err)
	}
	conn.PgConn().Conn().Close()
	// The interrupted statement has released the only reader.
	if n := one[int64](t, s.connect(t), `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users", n)
	}
}

func TestMixedLoadSeesNoBusy(t *testing.T) {
	s := start(t)
	setup := s.connect(t)
	mustExec(t, setup, `CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER)`)
	mustExec(t, setup, `INSERT INTO accounts WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000) SELECT i, 0 FROM r`)
	const clients, rounds = 32, 20
	var wg sync.WaitGroup
	var mu sync.Mutex
	written := int64(0)
	for range clients {
		wg.Go(func() {
			n, err := mixed(t.Context(), s.url(""), rounds)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			written += n
			mu.Unlock()
		})
	}
	wg.Wait()
	if sum := one[int64](t, setup, `SELECT sum(balance) FROM accounts`); sum != written {
		t.Errorf("balances are %d after %d increments", sum, written)
	}
}

// mixed runs 90 % look-ups and 10 % transactions of one read and one write.
func mixed(ctx context.Context, url string, rounds int) (written int64, err error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	for i := range rounds {
		id, balance := 1+rand.IntN(1000), int64(0)
		if i%10 != 0 {
			err = conn.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = $1`, id).Scan(&balance)
		} else {
			err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				err := tx.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = $1 FOR UPDATE`, id).Scan(&balance)
				_, err2 := tx.Exec(ctx, `UPDATE accounts SET balance = $2 WHERE id = $1`, id, balance+1)
				return errors.Join(err, err2)
			})
			written++
		}
		if err != nil {
			return written, fmt.Errorf("round %d: %w", i, err)
		}
	}
	return written, nil
}
