// Package sqlite serves a SQLite file to PostgreSQL clients: it is a
// pgproxy.Backend for psql, drivers and tools, with no PostgreSQL behind it.
//
//	package main
//
//	import (
//		"log"
//		"net"
//
//		"github.com/headpond/headpond/listener"
//		"github.com/headpond/headpond/pgproxy"
//		"github.com/headpond/headpond/pgproxy/sqlite"
//	)
//
//	func main() {
//		b, err := sqlite.New(sqlite.Config{Path: "app.db"})
//		if err != nil {
//			log.Fatal(err)
//		}
//		p, err := pgproxy.New(pgproxy.Config{
//			Listener:  listener.Config{Name: "db"},
//			Auth:      pgproxy.AuthTrust,
//			Databases: map[string]pgproxy.Backend{"*": b},
//		})
//		if err != nil {
//			log.Fatal(err)
//		}
//		l, err := net.Listen("tcp", "127.0.0.1:6432")
//		if err != nil {
//			log.Fatal(err)
//		}
//		log.Fatal(p.Serve(l)) // psql -h 127.0.0.1 -p 6432 app
//	}
//
// # SQL
//
// The SQL is SQLite's. These forms of PostgreSQL are translated: $1, casts (x::int8, CAST(x AS
// timestamp)), E'…' and $$…$$ strings, ~ and ILIKE, FOR UPDATE, SERIAL, EXTRACT, typed literals
// (DATE '2024-02-29'), the schema names public, pg_catalog and information_schema. LIKE ignores
// case, as in SQLite. Statements that a shared file cannot support (LISTEN, temporary tables,
// roles, PRAGMAs that change something) are refused with SQLSTATE 0A000. Every change of a
// connection that other sessions use later is refused with 42501.
//
// SQLite has no arrays. An array is a text ({1,2} or [1,2]), and = ANY, ARRAY[…], subscripts, array_agg and unnest
// become calls of functions that accept both notations. DEFAULT as a value, column names after a subquery's alias,
// EXTRACT, GENERATED AS IDENTITY and others are rewritten, too. A serial or identity column must be the primary key,
// the only column that SQLite numbers. A table in a schema other than public is stored under the name "schema.table".
// psql's \d, \dt, \di, \dv, \d NAME, \l, \du, \dn work; the catalogs are views of SQLite's schema.
//
// # Cursors
//
// DECLARE opens a cursor, which FETCH and MOVE read forward and CLOSE closes. It is also a portal of the protocol. Rows
// are computed when they are fetched and never stored, so a cursor holds a connection until its end. That is a reader,
// with one snapshot. In a transaction that has written it is the writer, and the cursor may see later writes of the
// transaction. Cursors end with their transaction, at ROLLBACK TO and at an error in their query. WITH HOLD is allowed
// for a cursor declared outside a transaction block. Config.IdleInTransaction applies while such a cursor holds a
// reader.
//
// # Types
//
// A column of a table is sent as its declared type: SMALLINT as int2, INTEGER and SERIAL as int4,
// BIGINT as int8, REAL, FLOAT and DOUBLE as float8, BOOLEAN as bool, NUMERIC and DECIMAL as
// numeric, TEXT, CHAR and VARCHAR as such, BLOB as bytea, DATE, TIME, TIMESTAMP, DATETIME and
// TIMESTAMPTZ, UUID, JSON and JSONB as such. An expression is typed by its form: literals, casts,
// comparisons (bool), arithmetic, functions with known results, the branches of CASE, UNION and
// VALUES together. Otherwise it is text.
//
// SQLite's INTEGER has 8 bytes: a column whose oldest or newest rows hold larger values than its
// declared type is sent as int8. A larger value that is found later is refused once (22003), and
// its column is int8 from then on.
//
// A cast checks its value as PostgreSQL does: 'abc'::int is 22P02, 3000000000::int 22003,
// '2024-13-45'::date 22008. In CREATE and ALTER a cast is SQLite's, because other programs run it,
// too.
//
// SQLite lets a column hold values of another type, and computes with 64-bit integers and doubles
// only. A value that does not fit its column's type is never sent: the statement ends with 22003 (a
// number out of range), 22021 (a text with NUL or that is not UTF-8) or 42804, and a hint. Dates
// and times are read from the three forms of SQLite: text, integer seconds, real Julian days.
// Parameters of these types are stored as text in UTC, as CURRENT_TIMESTAMP writes it; a zone in a
// text for DATE or TIMESTAMP is ignored, as in PostgreSQL. The zone of every session is UTC.
//
// A numeric that neither a 64-bit integer nor a double represents exactly is stored as text with a
// no-break space at its end, without which SQLite would round it. It is returned unchanged, and so
// is such a literal. It equals only the same digits, and sorts after all numbers: ORDER BY
// n::float8 sorts by value, to 15 digits. Arithmetic, sum and avg compute with doubles. Zeros at
// the end of other numerics are not kept.
//
// A parameter without a type from the client gets the type of the column or expression that it is
// compared with or stored in. If there is none, it is reported with OID 0, and a text that is
// exactly what SQLite prints for a number is bound as that number. NaN and infinite times, which
// SQLite would change, are refused (22P02, 22P03).
//
// # Transactions
//
// The file has one writer and several readers in WAL mode. A statement outside a block takes a
// reader, or the writer (first come, first served), until Sync or the end of the simple query.
// BEGIN means READ COMMITTED as in PostgreSQL: each statement reads the newest commit, and the
// first write, or SELECT … FOR UPDATE, takes the writer until the end of the block. So a client
// idle in a block that has not written holds nothing. BEGIN ISOLATION LEVEL SERIALIZABLE (or
// REPEATABLE READ) takes the writer at the first statement, BEGIN IMMEDIATE at once, BEGIN READ
// ONLY keeps one snapshot; SET TRANSACTION and the session's defaults (SET SESSION CHARACTERISTICS,
// default_transaction_…) apply, too; default_transaction_read_only also outside a block. SAVEPOINT
// takes the writer. Clients never get SQLITE_BUSY, unless a writer in another process holds its
// lock for too long (55P03). A queue that is too long is 53300.
//
// A session that holds the writer or a snapshot and sends nothing is ended after
// Config.IdleInTransaction (25P03). Rows are streamed while the statement runs. A client that stops
// reading while its session holds a connection, in a statement or between the statements of a
// transaction, is disconnected after Config.StallTimeout, or a twelfth of that while other sessions
// wait. The open portals of a transaction share a reader. Cancel requests, timeouts and a
// disconnect of the client interrupt the statement.
//
// Unstable until 1.0.
package sqlite
