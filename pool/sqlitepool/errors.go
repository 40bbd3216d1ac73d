package sqlitepool

import (
	"context"
	"errors"
	"fmt"

	"zombiezen.com/go/sqlite"
)

var (
	// ErrPath: the path cannot be shared by several connections.
	ErrPath = errors.New("sqlitepool: not a database path")
	// ErrNotDatabase: the file is not a SQLite database, or is damaged.
	ErrNotDatabase = errors.New("sqlitepool: file is not a database or is corrupt")
	// ErrReadOnly: a write to a database that was opened read-only.
	ErrReadOnly = errors.New("sqlitepool: database is read-only")
	// ErrBusy: another process held the lock for longer than Config.BusyTimeout.
	// Nothing was written; a retry is safe.
	ErrBusy = errors.New("sqlitepool: another process holds the database's lock")
)

// explain wraps a driver error by its meaning for callers: the context's error for an interrupt
// caused by the context, ErrBusy, ErrNotDatabase or ErrReadOnly.
func explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	switch sqlite.ErrCode(err).ToPrimary() {
	case sqlite.ResultInterrupt:
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("%w (%w)", cause, err)
		}
	case sqlite.ResultBusy:
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case sqlite.ResultNotADB, sqlite.ResultCorrupt:
		return fmt.Errorf("%w: %w", ErrNotDatabase, err)
	case sqlite.ResultReadOnly:
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	return err
}
