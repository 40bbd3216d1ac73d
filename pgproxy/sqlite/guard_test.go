package sqlite_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A statement that waits for the writer can be canceled. The session that holds the writer keeps
// it.
func TestCancelWhileWaitingForTheWriter(t *testing.T) {
	s := start(t)
	holder, waiter := s.connect(t), s.connect(t)
	mustExec(t, holder, `BEGIN; UPDATE posts SET title = 'held'`, pgx.QueryExecModeSimpleProtocol)
	done := make(chan error, 1)
	go func() {
		_, err := waiter.PgConn().Exec(t.Context(), `UPDATE posts SET title = 'waited'`).ReadAll()
		done <- err
	}()
	for waiting := true; waiting; {
		if err := waiter.PgConn().CancelRequest(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			wantState(t, err, "57014", "canceled while it waited")
			waiting = false
		default:
		}
	}
	mustExec(t, holder, `COMMIT`)
	mustExec(t, waiter, `UPDATE posts SET title = title || '!'`)
	if got := one[string](t, holder, `SELECT title FROM posts`); got != "held!" {
		t.Errorf("title %q", got)
	}
}

// Cancel requests end only statements of their own session, although all sessions use the same two connections.
func TestCancelsEndNobodyElsesStatements(t *testing.T) {
	s := start(t, func(c *sqlite.Config) { c.Limits.MaxSize = 1 })
	target := s.connect(t)
	ctx, over := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 2 {
		other := s.connect(t)
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				query := `SELECT count(*) FROM users WHERE id > $1`
				if i%3 == 0 {
					query = `UPDATE posts SET title = 'x' WHERE id = $1`
				}
				if _, err := other.Exec(t.Context(), query, i); err != nil {
					t.Errorf("a session that nobody canceled: %v", err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range 100 {
			if err := target.PgConn().CancelRequest(t.Context()); err != nil {
				t.Error(err)
			}
		}
		over()
	})
	for ctx.Err() == nil {
		_, err := target.Exec(t.Context(), `SELECT count(*) FROM users WHERE id > $1`, 0)
		var pg *pgconn.PgError
		if err != nil && (!errors.As(err, &pg) || pg.Code != "57014") {
			t.Errorf("the session that is canceled: %v", err)
			break
		}
	}
	over()
	wg.Wait()
	if n := one[int64](t, target, `SELECT count(*) FROM users`); n != 2 {
		t.Errorf("%d users after all cancels", n)
	}
}
