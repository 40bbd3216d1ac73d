package sqlitepool

import "zombiezen.com/go/sqlite"

// KnowsDriver reports whether a connection's state can be read where it lies.
func KnowsDriver() bool { return nativeOK }

// Forget makes the connections that db opens from now on those of a driver whose fields have other names.
func (db *DB) Forget() { db.nativeOf = func(*sqlite.Conn) native { return native{} } }

// PretendWriters counts n more calls of Write as under way.
func (db *DB) PretendWriters(n int64) { db.writing.Add(n) }

// Keeps reports whether the writer keeps a snapshot for the next Write.
func (db *DB) Keeps() bool { return db.kept.Load() }
