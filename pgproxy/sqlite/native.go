package sqlite

import (
	"reflect"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

// The driver does not export sqlite3_column_decltype. Without it the declared type of a column with
// an alias is unknown. The driver's fields for it are found by name when the program starts. If a
// later driver renames them, columns count as undeclared and TestDeclaredTypes fails.
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

// setDefensive switches on a mode in which SQL cannot damage the file deliberately. The driver's own function passes
// one argument where SQLite reads two, so the second comes from arbitrary memory.
func setDefensive(conn *sqlite.Conn, on bool) error {
	if !nativeOK {
		return conn.SetDefensive(on)
	}
	return configure(conn, lib.SQLITE_DBCONFIG_DEFENSIVE, on)
}

// setTriggers switches all triggers on or off for this connection.
func setTriggers(conn *sqlite.Conn, on bool) error {
	if !nativeOK {
		return unsupported("this statement")
	}
	return configure(conn, lib.SQLITE_DBCONFIG_ENABLE_TRIGGER, on)
}

// configure sets an option of sqlite3_db_config. Interrupts do not affect it.
func configure(conn *sqlite.Conn, option int32, on bool) error {
	p := unsafe.Pointer(conn)
	tls, handle := *(**libc.TLS)(unsafe.Add(p, connTLS)), *(*uintptr)(unsafe.Add(p, connHandle))
	to := int32(0)
	if on {
		to = 1
	}
	args := libc.NewVaList(to, uintptr(0)) // no pointer for the old value
	defer libc.Xfree(tls, args)
	return sqlite.ResultCode(lib.Xsqlite3_db_config(tls, handle, option, args)).ToError()
}

func native(stmt *sqlite.Stmt) (*libc.TLS, uintptr) {
	p := unsafe.Pointer(stmt)
	conn := *(**sqlite.Conn)(unsafe.Add(p, stmtConn))
	tls := *(**libc.TLS)(unsafe.Add(unsafe.Pointer(conn), connTLS))
	return tls, *(*uintptr)(unsafe.Add(p, stmtHandle))
}

// columnDecl returns the declared type of the table column behind result column col, "" for an
// expression.
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

// columnOrigin returns the name of the table column behind result column col, "" for an expression.
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

// columnMemory returns a text or blob of the current row in SQLite's memory. It is valid until the
// next step, or until the column is read as another type.
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
