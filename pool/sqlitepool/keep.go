package sqlitepool

import (
	"context"
	"time"

	"zombiezen.com/go/sqlite"
)

// A Write that follows another at once takes over its snapshot. Beginning to read and ending it
// are four of the six system calls for locks that a transaction makes. Only Write does that, for
// the next Write, for checkEvery at most, and only while one waits: a snapshot keeps SQLite from
// making checkpoints and from starting the log again.

// letGoTimeout bounds one wait of the last Write for the connection. It is no longer idle then, and its
// new holder has ended the snapshot.
const letGoTimeout = time.Millisecond

// beginWriting counts a call of Write until doneWriting.
func (db *DB) beginWriting() { db.writing.Add(1) }

// doneWriting ends a snapshot that was kept for a Write whose wait ended without the connection. The
// call that kept it is itself counted, so the last one finds it.
func (db *DB) doneWriting() {
	if db.writing.Add(-1) > 0 {
		return
	}
	for db.kept.Load() && db.writer.Stats().Idle > 0 {
		ctx, cancel := context.WithTimeout(context.Background(), letGoTimeout)
		if lease, err := db.AcquireWriter(ctx); err == nil {
			db.kept.Store(false) // also if the connection that kept it was closed
			lease.Release()
		}
		cancel()
	}
}

// mayKeep reports whether another Write waits, and the log need not be looked at yet.
func (db *DB) mayKeep(st *state) bool {
	return len(st.schemas) == 1 && st.native.db != nil && db.writing.Load() > 1 && time.Since(db.started)-db.logLooked < checkEvery
}

// keep makes the snapshot of the transaction outlast its COMMIT, unless the transaction has changed the schema.
func (db *DB) keep(st *state) {
	outdated, err := st.hold()
	if outdated || err != nil {
		_ = st.unhold() // repeats the error; the COMMIT has its own
		return
	}
	st.kept = true
	db.kept.Store(true)
}

// letGo ends a kept snapshot, or leaves it to the transaction that has begun.
func (db *DB) letGo(st *state) error {
	if !st.kept {
		return nil
	}
	st.kept = false
	db.kept.Store(false)
	return st.unhold()
}

// beginKept is begin on a kept snapshot. It fails if another process has written since, or is writing.
func (db *DB) beginKept(st *state) (ok bool, err error) {
	err = exec(st.conn, beginWrite)
	if e := db.letGo(st); err == nil {
		err = e
	}
	if sqlite.ErrCode(err).ToPrimary() == sqlite.ResultBusy {
		return false, nil
	}
	return err == nil, err
}
