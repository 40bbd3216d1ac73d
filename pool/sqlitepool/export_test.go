package sqlitepool

import "zombiezen.com/go/sqlite"

// KnowsDriver reports whether a connection's state can be read where it lies.
func KnowsDriver() bool { return nativeOK }

// Forget makes the connections that db opens from now on those of a driver whose fields have other names.
func (db *DB) Forget() { db.nativeOf = func(*sqlite.Conn) native { return native{} } }
