package sqlitepool

import "zombiezen.com/go/sqlite"

// KnowsDriver reports whether a connection's state can be read from the driver's struct.
func KnowsDriver() bool { return nativeOK }

// Forget makes db treat connections that it opens from now on like those of an unknown driver.
func (db *DB) Forget() { db.nativeOf = func(*sqlite.Conn) native { return native{} } }

// PretendWriters counts n more running calls of Write.
func (db *DB) PretendWriters(n int64) { db.writing.Add(n) }

// Keeps reports whether the writer keeps a snapshot for the next Write.
func (db *DB) Keeps() bool { return db.kept.Load() }
