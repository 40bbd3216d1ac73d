package sqlitepool

import (
	"context"
	"fmt"
	"time"

	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// Pauses between attempts to take a lock held by another process. They are SQLite's own: short ones
// first, because most locks are held briefly.
const (
	retryFirst = time.Millisecond
	retryMost  = 50 * time.Millisecond
)

// transact runs fn by read or write on a connection whose cached statements were prepared under the
// present schema. When the schema changes, SQLite prepares a statement again, but the driver keeps
// its old column names: reading by name could then return another column.
func (db *DB) transact(ctx context.Context, write bool, fn func(*sqlite.Conn) error) error {
	acquire, in := db.AcquireReader, db.read
	if write {
		acquire, in = db.acquireWriter, db.write
	}
	for {
		lease, err := acquire(ctx)
		if err != nil {
			return err
		}
		if outdated, err := db.use(ctx, lease, in, fn); !outdated {
			return err
		}
	}
}

type transaction = func(ctx context.Context, st *state, fn func(*sqlite.Conn) error) (outdated bool, err error)

// use runs fn with or without a transaction, and ends the lease. outdated means that fn was not called.
func (db *DB) use(ctx context.Context, lease pool.Lease[*sqlite.Conn], in transaction, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	sound := false
	st := db.state(lease.Value())
	defer func() {
		st.release()
		if sound {
			lease.Release() // rolls back an open transaction
		} else {
			lease.Discard() // after a panic, which may have passed through SQLite from a function of the application
		}
	}()
	st.watch(ctx)
	outdated, err = in(ctx, st, func(conn *sqlite.Conn) error {
		err := fn(conn)
		if st.native.closed() {
			panic(errClosedByHolder)
		}
		return err
	})
	sound = !outdated
	return outdated, err
}

// query runs fn without a transaction.
func (db *DB) query(ctx context.Context, st *state, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	return false, explain(ctx, fn(st.conn))
}

// read runs fn on one snapshot. There is no BEGIN: a statement in the middle of its rows holds the
// snapshot at a lower cost.
func (db *DB) read(ctx context.Context, st *state, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	outdated, err = st.hold()
	if err == nil && !outdated {
		err = fn(st.conn)
	}
	if e := st.unhold(); err == nil {
		err = e
	}
	if err == nil && !outdated && ctx.Err() != nil {
		err = fmt.Errorf("sqlitepool: read after the end of its context: %w", context.Cause(ctx))
	}
	return outdated, explain(ctx, err)
}

// write runs fn between BEGIN IMMEDIATE and COMMIT.
func (db *DB) write(ctx context.Context, st *state, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	begun := false
	if st.kept { // the schema was checked in this snapshot
		if begun, err = db.beginKept(st); err != nil {
			return false, explain(ctx, err)
		}
	}
	if !begun {
		if err := db.begin(ctx, st.conn); err != nil {
			return false, explain(ctx, err)
		}
		outdated, err = st.hold()
		if e := st.unhold(); err == nil {
			err = e
		}
		if outdated || err != nil {
			return outdated, explain(ctx, err)
		}
	}
	if err := fn(st.conn); err != nil {
		return false, explain(ctx, err)
	}
	return false, db.commit(ctx, st)
}

// begin starts a transaction that writes. It waits for the lock of another process itself, because
// SQLite's wait does not end with ctx.
func (db *DB) begin(ctx context.Context, conn *sqlite.Conn) error {
	if ctx.Done() == nil {
		return exec(conn, beginWrite)
	}
	conn.SetBusyTimeout(0)
	defer conn.SetBusyTimeout(db.cfg.BusyTimeout)
	var until time.Time
	for pause := retryFirst; ; pause = min(2*pause, retryMost) {
		err := exec(conn, beginWrite)
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

// commit ends the transaction. It cannot be interrupted, so that the outcome is known. It resets
// statements that fn left in the middle of their rows, because they would prevent the COMMIT.
func (db *DB) commit(ctx context.Context, st *state) error {
	st.release()
	if ctx.Err() != nil {
		return fmt.Errorf("sqlitepool: rolled back: %w", context.Cause(ctx))
	}
	if st.native.busy(0) {
		st.arm()
	}
	if db.mayKeep(st) {
		db.keep(st)
	}
	err := exec(st.conn, "COMMIT")
	if err != nil {
		_ = db.dropKept(st) // the COMMIT's error is the one to report
	}
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return fmt.Errorf("sqlitepool: not committed: a transient statement is still under way; finalize it before the function returns: %w", err)
	}
	return explain(ctx, err)
}
