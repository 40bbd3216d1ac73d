// Package sqlitepool pools the connections of one SQLite file in the way that suits SQLite: one
// writer, several readers, write-ahead log.
//
//	package main
//
//	import (
//		"context"
//		"fmt"
//		"log"
//
//		"github.com/headpond/headpond/pool/sqlitepool"
//		"zombiezen.com/go/sqlite"
//		"zombiezen.com/go/sqlite/sqlitex"
//	)
//
//	func main() {
//		db, err := sqlitepool.Open("app.db", sqlitepool.Config{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer db.Close()
//		err = db.Write(context.Background(), func(c *sqlite.Conn) error {
//			return sqlitex.ExecuteScript(c, "CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (1)", nil)
//		})
//		fmt.Println(err)
//	}
//
// # Connections
//
// Every connection runs in WAL mode with synchronous=NORMAL (a power cut may
// lose the newest commits but never corrupts the file), foreign_keys=ON and the
// busy time-out of the Config. Readers are query_only. Because all writes of
// the process pass through the one writer, first come first served, they never
// get SQLITE_BUSY; only a writer in another process can make them wait, for
// at most Config.BusyTimeout.
//
// Statements made with sqlite.Conn.Prepare are cached by their text for as long as the connection
// lives, so use it for a fixed set of texts and PrepareTransient for generated ones, which have to
// be finalized: one left in the middle of its rows keeps its connection's snapshot forever. When
// the schema changes, of the file or of one that Config.Setup has attached, in any process, each
// connection is replaced before its next Read or Write, because the names of columns in its cached
// statements may be wrong. (In the very function that changes a table read its columns by number.)
//
// A released connection is compared with its state after opening: a transaction is rolled back, a
// running statement is reset, an interrupt is undone, and query_only, foreign_keys and the busy
// time-out are set again. If other PRAGMAs that are on or off differ, or if there is a database
// attached, an authorizer, a hook, a temp_store or an open blob that was not there, the connection
// is closed.
//
// A file that is deleted or replaced while it is open is noticed before the next write, within a
// millisecond of each use, and after a second idle: its connections are closed, new ones open the
// file at the path, and no empty file is made in its place. Still, do not move or copy over a
// database in use: SQLite cannot protect its log.
//
// # Checkpoints
//
// SQLite checkpoints after every 1,000 pages of log and the log file is cut back to Config.LogSize
// afterwards. Reads prevent the log from being reused, one by its snapshot, many by following each
// other without a gap. When it has grown by as much again, the writer's release waits for running
// reads, for a second at most, so that the log can restart. Longer reads let it grow: keep them
// short. Writes that wait for each other share a snapshot and put off the checkpoint for a
// millisecond. The last connection to close removes the log.
//
// # Read-only files
//
// A file, or a directory, without write permission is opened read-only: reads work, Write returns
// ErrReadOnly, and DB.ReadOnly reports it.
package sqlitepool
