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

// transact runs fn by read or write on a connection whose cached statements were
// prepared under the present schema. The driver keeps the columns' names of a statement,
// and SQLite prepares it again without the driver's knowledge when the schema changes, so
// that reading by name could mean another column.
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

// use runs fn in a transaction or without one, and ends the lease. outdated means that fn was not called.
func (db *DB) use(ctx context.Context, lease pool.Lease[*sqlite.Conn], in transaction, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	sound := false
	st := db.state(lease.Value())
	defer func() {
		st.release()
		if sound {
			lease.Release() // rolls back an open transaction
		} else {
			lease.Discard() // after a panic, which may have come through SQLite from a function of the application's
		}
	}()
	st.watch(ctx)
	outdated, err = in(ctx, st, fn)
	sound = !outdated
	return outdated, err
}

// query runs fn without a transaction.
func (db *DB) query(ctx context.Context, st *state, fn func(*sqlite.Conn) error) (outdated bool, err error) {
	return false, explain(ctx, fn(st.conn))
}

// read runs fn on one snapshot. There is no BEGIN: a statement in the middle of its rows
// keeps the snapshot at a lower cost.
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
	if st.kept { // the schema was looked at in this snapshot
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

// begin starts a transaction that writes. It waits for another process's lock itself, because
// SQLite would not heed ctx.
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

// commit ends the transaction. It is not interrupted, so that its outcome is
// known. It resets statements that fn left in the middle of their rows, which would
// prevent the COMMIT.
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
		_ = db.letGo(st) // the COMMIT's error is the one to report
	}
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return fmt.Errorf("sqlitepool: not committed: a transient statement is still under way; finalize it before the function returns: %w", err)
	}
	return explain(ctx, err)
}
