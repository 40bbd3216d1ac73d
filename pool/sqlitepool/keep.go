package sqlitepool

import (
	"context"
	"time"

	"zombiezen.com/go/sqlite"
)

// A Write that directly follows another takes over its snapshot. That saves four of the six system
// calls for locks in a transaction: those that begin and end a read. A snapshot is kept only by
// Write for a waiting Write, and for at most checkEvery, because it prevents checkpoints and
// restarts of the log.

// keptTimeout bounds one wait of the last Write for the connection. A connection that does not come
// in this time has a new holder, which has ended the snapshot.
const keptTimeout = time.Millisecond

// beginWriting counts a running Write until doneWriting.
func (db *DB) beginWriting() { db.writing.Add(1) }

// doneWriting ends a snapshot that was kept for a Write which stopped waiting for the connection. The call that kept
// the snapshot is counted, too, so the last call finds it.
func (db *DB) doneWriting() {
	if db.writing.Add(-1) > 0 {
		return
	}
	for db.kept.Load() && db.writer.Stats().Idle > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), keptTimeout)
		if lease, err := db.AcquireWriter(ctx); err == nil {
			db.kept.Store(false) // even if the connection that kept it was closed
			lease.Release()
		}
		cancel()
	}
}

// mayKeep reports whether another Write waits and no check of the log is due.
func (db *DB) mayKeep(st *state) bool {
	return len(st.schemas) == 1 && st.native.db != nil && db.writing.Load() > 1 && time.Since(db.started)-db.logLooked < checkEvery
}

// keep makes the transaction's snapshot survive the COMMIT, unless the transaction has changed the schema.
func (db *DB) keep(st *state) {
	outdated, err := st.hold()
	if outdated || err != nil {
		_ = st.unhold() // returns the error again; the COMMIT reports its own
		return
	}
	st.kept = true
	db.kept.Store(true)
}

// dropKept stops holding a kept snapshot. The snapshot then ends, unless a transaction has begun on it.
func (db *DB) dropKept(st *state) error {
	if !st.kept {
		return nil
	}
	st.kept = false
	db.kept.Store(false)
	return st.unhold()
}

// beginKept begins a transaction on a kept snapshot. It fails if another process has written since, or is writing.
func (db *DB) beginKept(st *state) (ok bool, err error) {
	err = exec(st.conn, beginWrite)
	if e := db.dropKept(st); err == nil {
		err = e
	}
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return false, nil
	}
	return err == nil, err
}
