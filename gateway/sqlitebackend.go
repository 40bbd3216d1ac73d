package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"github.com/headpond/headpond/upstream"
)

// newSQLite opens a SQLite file. Nothing of it changes in place: a reload that changes it opens the file a second time, and the old
// connections are closed when their sessions have left. A file that does not open is like a server that is down: the gateway serves
// everybody else, and this upstream's clients are told why.
func newSQLite(u *config.Upstream, s settings) (backendImpl, error) {
	path, _ := u.SQLite()
	f := &sqliteFile{cfg: sqlite.Config{Name: s.name, Path: path, Pool: s.limits, Logger: s.logger}}
	if _, err := f.open(); errors.Is(err, sqlitepool.ErrPath) || errors.Is(err, pool.ErrConfig) {
		return nil, err
	}
	return &pgBackend{Backend: f}, nil
}

// reopenAfter is the least time between two attempts to open a file.
const reopenAfter = time.Second

// sqliteFile opens its file when it can: at once, or else when a client comes.
type sqliteFile struct {
	cfg sqlite.Config

	mu      sync.Mutex // held while the file is opened: the clients that wait want it too
	backend *sqlite.Backend
	err     error     // why backend is nil
	again   time.Time // not before this
	drained bool
}

var _ pgproxy.Backend = (*sqliteFile)(nil)

// open returns the open file, or why there is none.
func (f *sqliteFile) open() (*sqlite.Backend, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if f.backend != nil || f.drained || now.Before(f.again) {
		return f.backend, f.err
	}
	failed := f.err != nil
	f.backend, f.err = sqlite.New(f.cfg)
	f.again = now.Add(reopenAfter)
	switch {
	case f.err != nil && !failed:
		f.cfg.Logger.Error("cannot open the sqlite file, trying again when clients come",
			"upstream", f.cfg.Name, "path", f.cfg.Path, "error", f.err)
	case f.err == nil && failed:
		f.cfg.Logger.Info("sqlite file opened", "upstream", f.cfg.Name, "path", f.cfg.Path)
	}
	return f.backend, f.err
}

// Serve implements pgproxy.Backend.
func (f *sqliteFile) Serve(ctx context.Context, c *pgproxy.Client) error {
	b, err := f.open()
	switch {
	case err != nil:
		return sqlite.Refuse(c, err)
	case b == nil:
		return c.Goodbye()
	}
	return b.Serve(ctx, c)
}

// Status implements pgproxy.Backend.
func (f *sqliteFile) Status() upstream.Status {
	f.mu.Lock()
	b, err := f.backend, f.err
	f.mu.Unlock()
	if b != nil {
		return b.Status()
	}
	e := upstream.EndpointStatus{Address: "sqlite:" + f.cfg.Path}
	if err != nil {
		e.LastError = err.Error()
	}
	return upstream.Status{Name: f.cfg.Name, Balance: upstream.First.String(), Endpoints: []upstream.EndpointStatus{e}}
}

// Drain implements pgproxy.Backend.
func (f *sqliteFile) Drain(ctx context.Context) error {
	f.mu.Lock()
	b := f.backend
	f.drained = true
	f.mu.Unlock()
	if b == nil {
		return nil
	}
	return b.Drain(ctx)
}
