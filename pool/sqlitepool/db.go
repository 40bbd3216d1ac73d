package sqlitepool

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// DB is the connections of one SQLite file. Its methods are safe for use by
// several goroutines; a connection belongs to whoever leased it.
type DB struct {
	path      string
	cfg       Config
	readOnly  bool
	immutable bool     // read-only, in a directory where the shared memory file cannot be made
	made      bool     // the file exists: if it is gone later, no empty one takes its place
	files     sync.Map // *sqlite.Conn → os.FileInfo of the file it opened
	readers   *pool.Pool[*sqlite.Conn]
	writer    *pool.Pool[*sqlite.Conn]
}

// Stats are the counters of both pools. Writer is zero when the DB is read-only.
type Stats struct {
	Readers, Writer pool.Stats
}

// Open opens the database at path, a plain file path, and creates the file if
// it does not exist. A file or directory without write permission is opened
// read-only. Errors: ErrPath, ErrNotDatabase, fs.ErrNotExist for a missing
// directory, pool.ErrConfig for limits that make no sense.
func Open(path string, cfg Config) (*DB, error) {
	readOnly, err := inspect(path)
	if err != nil {
		return nil, err
	}
	db := &DB{path: path, cfg: cfg.withDefaults(), readOnly: readOnly || cfg.ReadOnly}
	if err := db.probe(); err != nil {
		return nil, err
	}
	db.readers, err = db.newPool("readers", db.cfg.Readers, true)
	if err != nil || db.readOnly {
		return db, err
	}
	db.writer, err = db.newPool("writer", db.cfg.Writer, false)
	if err != nil {
		db.readers.Close()
		return nil, err
	}
	return db, nil
}

// probe opens a first connection, so that Open and not the first query reports
// a damaged file, and settles how a read-only one is opened.
func (db *DB) probe() error {
	conn, err := db.open(context.Background(), db.readOnly)
	if err != nil && db.readOnly && noSharedMemory(err) && db.walMissing() {
		db.immutable = true
		conn, err = db.open(context.Background(), true)
	}
	if err != nil {
		return err
	}
	db.closeConn(conn)
	db.made = true
	return nil
}

// noSharedMemory reports whether err may mean that SQLite could not make the
// shared memory file: root hears "cannot open", others "read-only".
func noSharedMemory(err error) bool {
	code := sqlite.ErrCode(err).ToPrimary()
	return code == sqlite.ResultCantOpen || code == sqlite.ResultReadOnly
}

func (db *DB) newPool(kind string, limits pool.Limits, reader bool) (*pool.Pool[*sqlite.Conn], error) {
	return pool.New(pool.Config[*sqlite.Conn]{
		Name:  filepath.Base(db.path) + " " + kind,
		Open:  func(ctx context.Context) (*sqlite.Conn, error) { return db.open(ctx, reader) },
		Close: db.closeConn,
		Check: func(_ context.Context, conn *sqlite.Conn) error { return db.check(conn) },
		Reset: func(_ context.Context, conn *sqlite.Conn) error {
			return errors.Join(reset(conn, reader), db.check(conn))
		},
		Limits: limits,
	})
}

// Path returns the path given to Open.
func (db *DB) Path() string { return db.path }

// ReadOnly reports whether the database was opened read-only.
func (db *DB) ReadOnly() bool { return db.readOnly }

// Read runs fn with a reader inside a read transaction: everything fn reads
// comes from one snapshot, taken at its first read. When ctx ends the
// statement under way is interrupted. Errors: those of pool.Acquire, those of
// fn, the context's. fn must not keep the connection, end the transaction or
// call SetInterrupt.
func (db *DB) Read(ctx context.Context, fn func(*sqlite.Conn) error) error {
	lease, err := db.AcquireReader(ctx)
	if err != nil {
		return err
	}
	return inTransaction(ctx, lease, "BEGIN", fn)
}

// Write runs fn with the writer between BEGIN IMMEDIATE and COMMIT. An error
// or a panic of fn, or the end of ctx, rolls back. Writers are served first
// come first served. Errors: ErrReadOnly, ErrBusy, those of Read. fn must not
// call Write: it would wait for itself.
func (db *DB) Write(ctx context.Context, fn func(*sqlite.Conn) error) error {
	lease, err := db.AcquireWriter(ctx)
	if err != nil {
		return err
	}
	return inTransaction(ctx, lease, "BEGIN IMMEDIATE", fn)
}

func inTransaction(ctx context.Context, lease pool.Lease[*sqlite.Conn], begin string, fn func(*sqlite.Conn) error) error {
	defer lease.Release() // rolls back what is still open, also after a panic
	conn := lease.Value()
	conn.SetInterrupt(ctx.Done())
	if err := exec(conn, begin); err != nil {
		return explain(ctx, err)
	}
	if err := fn(conn); err != nil {
		return explain(ctx, err)
	}
	return explain(ctx, exec(conn, "COMMIT"))
}

// AcquireReader leases a reader outside a transaction. Release rolls back what
// is left open; a lease whose other PRAGMAs were changed must be discarded.
// Errors: those of pool.Acquire.
func (db *DB) AcquireReader(ctx context.Context) (pool.Lease[*sqlite.Conn], error) {
	return db.readers.Acquire(ctx)
}

// AcquireWriter leases the writer, as AcquireReader does a reader. Begin with
// BEGIN IMMEDIATE: a deferred transaction that turns to writing is refused by
// SQLite when another process wrote meanwhile. Errors: ErrReadOnly, those of
// pool.Acquire.
func (db *DB) AcquireWriter(ctx context.Context) (pool.Lease[*sqlite.Conn], error) {
	if db.writer == nil {
		return pool.Lease[*sqlite.Conn]{}, fmt.Errorf("%w: %s", ErrReadOnly, db.path)
	}
	for {
		lease, err := db.writer.Acquire(ctx)
		if err != nil || db.check(lease.Value()) == nil {
			return lease, err
		}
		lease.Discard() // the next one opens what is at the path now, or fails
	}
}

// Stats returns the counters of both pools.
func (db *DB) Stats() Stats {
	s := Stats{Readers: db.readers.Stats()}
	if db.writer != nil {
		s.Writer = db.writer.Stats()
	}
	return s
}

// Drain gives out no more connections and waits until those given out are back
// and closed, or ctx ends; then it returns ctx's error and stragglers are
// closed when they come back.
func (db *DB) Drain(ctx context.Context) error {
	err := db.readers.Drain(ctx)
	if db.writer != nil {
		err = errors.Join(err, db.writer.Drain(ctx))
	}
	return err
}

// Close gives out no more connections, closes the idle ones now and leased
// ones when they come back.
func (db *DB) Close() {
	db.readers.Close()
	if db.writer != nil {
		db.writer.Close()
	}
}
