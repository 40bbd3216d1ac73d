//go:build cgo && mattn

package suite

import _ "github.com/mattn/go-sqlite3" // database/sql's driver "sqlite3"

// The build tag keeps SQLite's C code, which compiles for a minute, out of builds and tests. `headpond bench` sets the
// tag.
func init() {
	sqliteWays = append(sqliteWays, sqliteWay{"mattn", func(path string) (sqliteConns, error) {
		return openDatabaseSQL("sqlite3", "file:"+path+"?_txlock=immediate&_busy_timeout=5000&_journal_mode=WAL&_synchronous=NORMAL&_foreign_keys=on&_cache_size="+sqliteCacheKiB, true)
	}})
}
