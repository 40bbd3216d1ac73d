package sqlite

import (
	"reflect"
	"unsafe"

	"modernc.org/libc"
	lib "modernc.org/sqlite/lib"
	"zombiezen.com/go/sqlite"
)

// The driver does not export sqlite3_column_decltype, and without it a column's declared type is lost behind an alias. The three
// fields it needs are found by name when the program starts. If a later driver
// renames them, columns count as undeclared and TestDeclaredTypes fails.
var (
	stmtHandle = offset(reflect.TypeFor[sqlite.Stmt](), "stmt", reflect.TypeFor[uintptr]())
	stmtConn   = offset(reflect.TypeFor[sqlite.Stmt](), "conn", reflect.TypeFor[*sqlite.Conn]())
	connTLS    = offset(reflect.TypeFor[sqlite.Conn](), "tls", reflect.TypeFor[*libc.TLS]())
	nativeOK   = stmtHandle >= 0 && stmtConn >= 0 && connTLS >= 0
)

func offset(t reflect.Type, name string, want reflect.Type) int {
	f, ok := t.FieldByName(name)
	if !ok || f.Type != want {
		return -1
	}
	return int(f.Offset)
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
