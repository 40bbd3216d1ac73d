package gateway

import (
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy/sqlite"
)

// newSQLite opens a SQLite file. Nothing of it changes in place: a reload that changes it opens the file a second time, and the old
// connections are closed when their sessions have left.
func newSQLite(u *config.Upstream, s settings) (backendImpl, error) {
	path, _ := u.SQLite()
	b, err := sqlite.New(sqlite.Config{Name: s.name, Path: path, Pool: s.limits, Logger: s.logger})
	if err != nil {
		return nil, err
	}
	return &pgBackend{Backend: b}, nil
}
