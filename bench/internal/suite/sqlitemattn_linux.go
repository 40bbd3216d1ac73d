//go:build cgo && mattn

package suite

import _ "github.com/mattn/go-sqlite3" // database/sql's driver "sqlite3"

// The tag keeps builds and tests free of SQLite's C code, which takes a minute to compile; `headpond bench` sets it.
func init() {
	sqliteWays = append(sqliteWays, sqliteWay{"mattn", func(path string) (sqliteConns, error) {
		return openDatabaseSQL("sqlite3", "file:"+path+"?_txlock=immediate&_busy_timeout=5000&_journal_mode=WAL&_synchronous=NORMAL&_foreign_keys=on&_cache_size="+sqliteCacheKiB, true)
	}})
}
