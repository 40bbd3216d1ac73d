package sqlitepool

import (
	"context"
	"fmt"
	"time"

	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// The pauses between attempts to take a lock that another process holds are as
// SQLite's own: short first, for most locks are.
const (
	retryFirst = time.Millisecond
	retryMost  = 50 * time.Millisecond
)

type acquire = func(context.Context) (pool.Lease[*sqlite.Conn], error)

// transact runs fn in a transaction, on a connection whose cached statements know
// the present schema: the driver notes the columns' names when it prepares one, and
// SQLite prepares it again behind its back, so that reading by name could mean
// another column.
func (db *DB) transact(ctx context.Context, acquire acquire, begin string, fn func(*sqlite.Conn) error) error {
	for {
		lease, err := acquire(ctx)
		if err != nil {
			return err
		}
		if outdated, err := db.inTransaction(ctx, lease, begin, fn); !outdated {
			return err
		}
	}
}

// inTransaction ends the lease. outdated means that fn was not called.
func (db *DB) inTransaction(ctx context.Context, lease pool.Lease[*sqlite.Conn], begin string, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	sound := false
	defer func() {
		if sound {
			lease.Release() // rolls back what is still open
		} else {
			lease.Discard() // after a panic, which may have come through SQLite from a function of the application's
		}
	}()
	outdated, err = db.run(ctx, lease.Value(), begin, fn)
	sound = !outdated
	return outdated, err
}

func (db *DB) run(ctx context.Context, conn *sqlite.Conn, begin string, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	conn.SetInterrupt(ctx.Done())
	if err := db.begin(ctx, conn, begin); err != nil {
		return false, explain(ctx, err)
	}
	if outdated, err := db.found(conn).outdated(); outdated || err != nil {
		return outdated, explain(ctx, err)
	}
	if err := fn(conn); err != nil {
		return false, explain(ctx, err)
	}
	return false, commit(ctx, conn)
}

// begin starts a transaction. A lock that another process holds it waits for
// itself: SQLite would not look at ctx.
func (db *DB) begin(ctx context.Context, conn *sqlite.Conn, begin string) error {
	if begin != beginWrite || ctx.Done() == nil {
		return exec(conn, begin)
	}
	conn.SetBusyTimeout(0)
	defer conn.SetBusyTimeout(db.cfg.BusyTimeout)
	var until time.Time
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := exec(conn, begin)
		if sqlite.ErrCode(err).ToPrimary() != sqlite.ResultBusy {
			return err
		}
		if until.IsZero() {
			until = time.Now().Add(db.cfg.BusyTimeout)
		}
		left := time.Until(until)
		if left <= 0 {
			return err
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w while another process held the database's lock", context.Cause(ctx))
		}
	}
}

// commit ends the transaction. It is not interrupted, so that its outcome is
// known; and statements that fn left in the middle of their rows, which would be
// in its way, are reset.
func commit(ctx context.Context, conn *sqlite.Conn) error {
	conn.SetInterrupt(nil)
	if ctx.Err() != nil {
		return fmt.Errorf("sqlitepool: rolled back: %w", context.Cause(ctx))
	}
	err := exec(conn, "COMMIT")
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return fmt.Errorf("sqlitepool: not committed: a transient statement is still under way; finalize it before the function returns: %w", err)
	}
	return explain(ctx, err)
}
