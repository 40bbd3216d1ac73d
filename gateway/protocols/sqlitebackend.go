package protocols

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/sqlite"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/sqlitepool"
	"github.com/headpond/headpond/upstream"
)

// newSQLite opens a SQLite file. No setting changes in place: a reload that changes one opens the file a second time,
// and the old connections are closed when their sessions have ended. A file that does not open, or not soon, is like a
// server that is down: the gateway serves all other clients, and this upstream's clients get the reason.
func newSQLite(s extend.Settings) (extend.Backend, error) {
	u := s.Config
	path, _ := sqlitePath(u)
	if s.Trial { // opening it may create it
		if err := sqlitepool.CheckPath(path); err != nil {
			return nil, &extend.FieldError{Field: &u.Endpoints[0], Warning: !refused(err), Err: err}
		}
		return &pgBackend{Backend: &sqliteFile{}}, nil
	}
	f := &sqliteFile{cfg: sqlite.Config{Name: u.Name, Path: path, Limits: s.Limits, Logger: s.Logger}}
	if own := config.PartOf[UpstreamKeys](u).SQLite; own != nil {
		f.cfg.MaxMemory = int64(own.MaxMemoryMiB) << 20
	}
	ctx, cancel := context.WithTimeout(context.Background(), openPatience)
	defer cancel()
	_, err := f.open(ctx)
	switch {
	case refused(err):
		return nil, err
	case errors.Is(err, errOpening):
		s.Logger.Warn("the sqlite file is slow to open, its clients wait", "upstream", u.Name, "path", path)
	}
	return &pgBackend{Backend: f}, nil
}

// refused reports whether an error of opening a SQLite file is in the configuration, so that trying
// again is useless.
func refused(err error) bool {
	return errors.Is(err, sqlitepool.ErrPath) || errors.Is(err, pool.ErrConfig)
}

const (
	// openPatience is how long the start, or a reload, waits for a file to open.
	openPatience = 2 * time.Second
	// reopenAfter is the least time between two attempts to open a file.
	reopenAfter = time.Second
)

// errOpening: a lock of another process, or a network file system that does not answer, can block
// SQLite for any time.
var errOpening = errors.New("the sqlite file is still being opened: is it locked, or on a file system that does not answer?")

// sqliteFile opens its file at the start, or else when a client connects.
type sqliteFile struct {
	cfg sqlite.Config

	mu      sync.Mutex // never held across I/O
	backend *sqlite.Backend
	err     error         // why backend is nil
	opening chan struct{} // closed when the running attempt has ended; nil: no attempt runs
	again   time.Time     // no attempt before this
	drained bool
}

var _ pgproxy.Backend = (*sqliteFile)(nil)

// open returns the open file, or why there is none; both are nil once the file is drained. It waits
// for a running attempt until ctx ends.
func (f *sqliteFile) open(ctx context.Context) (*sqlite.Backend, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.backend == nil && f.opening == nil && !f.drained && !time.Now().Before(f.again) {
		f.opening = make(chan struct{})
		go f.attempt()
	}
	if opening := f.opening; opening != nil {
		f.mu.Unlock()
		select {
		case <-opening:
		case <-ctx.Done():
		}
		f.mu.Lock()
		if f.opening == opening {
			return nil, errOpening
		}
	}
	return f.backend, f.err
}

// attempt is the goroutine of one attempt to open the file. Drain waits for it within its context; a
// file that opens later is closed.
func (f *sqliteFile) attempt() {
	backend, err := sqlite.New(f.cfg)
	if f.opened(backend, err) && backend != nil {
		_ = backend.Drain(context.Background()) // no connection is in use
	}
}

// opened records how an attempt ended, and reports whether the file has been drained meanwhile.
func (f *sqliteFile) opened(backend *sqlite.Backend, err error) (drained bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	failed := f.err != nil
	close(f.opening)
	f.opening, f.again, f.err = nil, time.Now().Add(reopenAfter), err
	switch {
	case err != nil && !failed:
		f.cfg.Logger.Error("cannot open the sqlite file, trying again when clients come",
			"upstream", f.cfg.Name, "path", f.cfg.Path, "error", err)
	case err == nil && failed:
		f.cfg.Logger.Info("sqlite file opened", "upstream", f.cfg.Name, "path", f.cfg.Path)
	}
	f.backend = backend
	return f.drained
}

// Serve implements pgproxy.Backend.
func (f *sqliteFile) Serve(ctx context.Context, c *pgproxy.Client) error {
	wait, cancel := context.WithTimeout(ctx, cmp.Or(f.cfg.Limits.AcquireTimeout, sqlite.DefaultAcquireTimeout))
	b, err := f.open(wait)
	cancel()
	switch {
	case err != nil:
		return sqlite.Refuse(c, err)
	case b == nil:
		return c.Goodbye()
	}
	return b.Serve(ctx, c)
}

// Name implements pgproxy.Backend.
func (f *sqliteFile) Name() string { return f.cfg.Name }

// Status implements pgproxy.Backend.
func (f *sqliteFile) Status() upstream.Status {
	f.mu.Lock()
	b, err := f.backend, f.err
	if b == nil && f.opening != nil {
		err = errOpening
	}
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
	f.drained = true
	f.mu.Unlock()
	switch b, err := f.open(ctx); {
	case b != nil:
		return b.Drain(ctx)
	case errors.Is(err, errOpening):
		return fmt.Errorf("upstream %q: %w", f.cfg.Name, err)
	}
	return nil
}
