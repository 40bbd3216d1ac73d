package sqlite

import (
	"reflect"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

// The driver does not export sqlite3_column_decltype, and without it a column's declared type is lost behind an alias. The
// fields it needs are found by name when the program starts. If a later driver
// renames them, columns count as undeclared and TestDeclaredTypes fails.
var (
	stmtHandle = offset(reflect.TypeFor[sqlite.Stmt](), "stmt", reflect.TypeFor[uintptr]())
	stmtConn   = offset(reflect.TypeFor[sqlite.Stmt](), "conn", reflect.TypeFor[*sqlite.Conn]())
	connTLS    = offset(reflect.TypeFor[sqlite.Conn](), "tls", reflect.TypeFor[*libc.TLS]())
	connHandle = offset(reflect.TypeFor[sqlite.Conn](), "conn", reflect.TypeFor[uintptr]())
	nativeOK   = stmtHandle >= 0 && stmtConn >= 0 && connTLS >= 0 && connHandle >= 0
)

func offset(t reflect.Type, name string, want reflect.Type) int {
	f, ok := t.FieldByName(name)
	if !ok || f.Type != want {
		return -1
	}
	return int(f.Offset)
}

// setDefensive, switched on, keeps SQL from damaging the file on purpose. The driver's own way passes one argument
// where SQLite reads two, the second from memory that is not its.
func setDefensive(conn *sqlite.Conn, on bool) error {
	if !nativeOK {
		return conn.SetDefensive(on)
	}
	return configure(conn, lib.SQLITE_DBCONFIG_DEFENSIVE, on)
}

// setTriggers switches the triggers of all tables on or off, for this connection.
func setTriggers(conn *sqlite.Conn, on bool) error {
	if !nativeOK {
		return unsupported("this statement")
	}
	return configure(conn, lib.SQLITE_DBCONFIG_ENABLE_TRIGGER, on)
}

// configure switches an option of sqlite3_db_config, which no interrupt stops.
func configure(conn *sqlite.Conn, option int32, on bool) error {
	p := unsafe.Pointer(conn)
	tls, handle := *(**libc.TLS)(unsafe.Add(p, connTLS)), *(*uintptr)(unsafe.Add(p, connHandle))
	to := int32(0)
	if on {
		to = 1
	}
	args := libc.NewVaList(to, uintptr(0)) // the old value is not used
	defer libc.Xfree(tls, args)
	return sqlite.ResultCode(lib.Xsqlite3_db_config(tls, handle, option, args)).ToError()
}

func native(stmt *sqlite.Stmt) (*libc.TLS, uintptr) {
	p := unsafe.Pointer(stmt)
	conn := *(**sqlite.Conn)(unsafe.Add(p, stmtConn))
	tls := *(**libc.TLS)(unsafe.Add(unsafe.Pointer(conn), connTLS))
	return tls, *(*uintptr)(unsafe.Add(p, stmtHandle))
}

// columnDecl returns the declared type of the table column that result column
// col comes from, "" for an expression.
func columnDecl(stmt *sqlite.Stmt, col int) string {
	if !nativeOK {
		return ""
	}
	tls, handle := native(stmt)
	if s := lib.Xsqlite3_column_decltype(tls, handle, int32(col)); s != 0 {
		return libc.GoString(s)
	}
	return ""
}

// columnOrigin returns the name of the table column that result column col comes
// from, "" for an expression.
func columnOrigin(stmt *sqlite.Stmt, col int) string {
	if !nativeOK {
		return ""
	}
	tls, handle := native(stmt)
	if s := lib.Xsqlite3_column_origin_name(tls, handle, int32(col)); s != 0 {
		return libc.GoString(s)
	}
	return ""
}

// columnMemory returns the text or blob of a column of the current row where SQLite has it. It is
// valid until the statement steps or the column is read as another type.
func columnMemory(stmt *sqlite.Stmt, col int) []byte {
	if !nativeOK {
		b := make([]byte, stmt.ColumnLen(col))
		return b[:stmt.ColumnBytes(col, b)]
	}
	tls, handle := native(stmt)
	p, n := lib.Xsqlite3_column_blob(tls, handle, int32(col)), stmt.ColumnLen(col)
	if p == 0 || n == 0 {
		return nil
	}
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), n) // SQLite's memory is not Go's, and does not move
}
