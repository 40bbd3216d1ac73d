package sqlitepool

import (
	"reflect"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

// The driver offers the state of a connection only by statements, which cost more than a short
// query. So this package reads SQLite's handle and the interrupt channel from the driver's struct.
// The fields are found by name when the program starts. If a later driver renames them, every
// release takes the slow path, and TestDriverIsKnown fails.
var (
	connTLS    = offset("tls", reflect.TypeFor[*libc.TLS]())
	connHandle = offset("conn", reflect.TypeFor[uintptr]())
	connDone   = offset("doneCh", reflect.TypeFor[<-chan struct{}]())
	nativeOK   = connTLS >= 0 && connHandle >= 0 && connDone >= 0
)

func offset(name string, want reflect.Type) int {
	f, ok := reflect.TypeFor[sqlite.Conn]().FieldByName(name)
	if !ok || f.Type != want {
		return -1
	}
	return int(f.Offset)
}

// native gives access to SQLite's connection struct; the zero native knows nothing.
type native struct {
	tls  *libc.TLS
	db   *lib.Tsqlite3    // not Go's memory
	done *<-chan struct{} // the driver's interrupt channel
	open **libc.TLS       // the driver's, nil after Close
}

func nativeOf(conn *sqlite.Conn) native {
	if !nativeOK {
		return native{}
	}
	p := unsafe.Pointer(conn)
	return native{
		tls:  *(**libc.TLS)(unsafe.Add(p, connTLS)),
		db:   *(**lib.Tsqlite3)(unsafe.Add(p, connHandle)),
		done: (*<-chan struct{})(unsafe.Add(p, connDone)),
		open: (**libc.TLS)(unsafe.Add(p, connTLS)),
	}
}

// closed reports that the holder has closed the connection; false if the native knows nothing.
func (n native) closed() bool { return n.open != nil && *n.open == nil }

// finish closes SQLite's connection after its holder has called the driver's Close, which cannot close it while the
// statements of state are open. Until then the connection keeps its locks.
func (n native) finish() {
	tls := libc.NewTLS()
	defer tls.Close()
	db := uintptr(unsafe.Pointer(n.db))
	for stmt := lib.Xsqlite3_next_stmt(tls, db, 0); stmt != 0; stmt = lib.Xsqlite3_next_stmt(tls, db, 0) {
		lib.Xsqlite3_finalize(tls, stmt)
	}
	lib.Xsqlite3_close(tls, db)
}

// settings is the state that one holder of a connection could leave to the next, as far as SQLite
// stores it in the connection.
type settings struct {
	flags                     uint64 // PRAGMAs that are on or off, such as query_only and foreign_keys
	databases                 int32  // attached ones included
	busyTimeout               int32
	busyHandler, busyArg      uintptr
	authorizer, authorizerArg uintptr
	commitHook, rollbackHook  uintptr
	updateHook, preUpdateHook uintptr
	progressHandler, walHook  uintptr
	tempStore, lockingMode    uint8
	trace                     uint8
}

// settings returns the current settings; the zero value if the native knows nothing.
func (n native) settings() settings {
	if n.db == nil {
		return settings{}
	}
	return settings{
		flags: n.db.Fflags, databases: n.db.FnDb,
		busyTimeout: n.db.FbusyTimeout, busyHandler: n.db.FbusyHandler.FxBusyHandler, busyArg: n.db.FbusyHandler.FpBusyArg,
		authorizer: n.db.FxAuth, authorizerArg: n.db.FpAuthArg,
		commitHook: n.db.FxCommitCallback, rollbackHook: n.db.FxRollbackCallback,
		updateHook: n.db.FxUpdateCallback, preUpdateHook: n.db.FxPreUpdateCallback,
		progressHandler: n.db.FxProgress, walHook: n.db.FxWalCallback,
		tempStore: n.db.Ftemp_store, lockingMode: n.db.FdfltLockMode, trace: n.db.FmTrace,
	}
}

// isIdle reports that no statement other than held ones runs, and no transaction is open. false may
// also mean unknown.
func (n native) isIdle(held int) bool {
	return n.db != nil && n.db.FautoCommit != 0 && int(n.db.FnVdbeActive) == held
}

// busy reports that statements other than held ones run, or that this is unknown.
func (n native) busy(held int) bool { return n.db == nil || int(n.db.FnVdbeActive) > held }

// resetAll ends all statements in the middle of their rows, including those that the driver has
// lost. An open blob is such a statement, too. It is not reset, because its user still has a
// pointer to it.
func (n native) resetAll() {
	if n.db == nil {
		return
	}
	db := uintptr(unsafe.Pointer(n.db))
	for stmt := lib.Xsqlite3_next_stmt(n.tls, db, 0); stmt != 0; stmt = lib.Xsqlite3_next_stmt(n.tls, db, stmt) {
		if lib.Xsqlite3_stmt_busy(n.tls, stmt) != 0 && lib.Xsqlite3_sql(n.tls, stmt) != 0 {
			lib.Xsqlite3_reset(n.tls, stmt)
		}
	}
}
