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

// beginWrite takes the write lock at once: a deferred transaction that turns to
// writing is refused when another process wrote meanwhile.
const beginWrite = "BEGIN IMMEDIATE"

// DB is the connections of one SQLite file. Its methods are safe for use by
// several goroutines; a connection belongs to whoever leased it.
type DB struct {
	path      string
	cfg       Config
	readOnly  bool
	immutable bool       // read-only, in a directory where the shared memory file cannot be made
	made      bool       // the file exists: if it is gone later, no empty one takes its place
	opened    sync.Map   // *sqlite.Conn → *opened
	closing   sync.Mutex // of two that close at once neither is the last, and the log stays
	logTried  int64      // size of the log from which on to have it begin anew; the writer's holder's
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
// directory or, with Config.ReadOnly, file, pool.ErrConfig for limits that make no sense.
func Open(path string, cfg Config) (*DB, error) {
	readOnly, err := inspect(path)
	if err != nil {
		return nil, err
	}
	db := &DB{path: path, cfg: cfg.withDefaults(), readOnly: readOnly || cfg.ReadOnly}
	if err := db.probe(); err != nil {
		return nil, err
	}
	if db.readers, err = db.newPool("readers", db.cfg.Readers, true); err != nil {
		return nil, err
	}
	if db.readOnly {
		return db, nil
	}
	if db.writer, err = db.newPool("writer", db.cfg.Writer, false); err != nil {
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
			err := errors.Join(reset(conn, reader), db.check(conn))
			if err == nil && !reader {
				err = db.keepLogShort(conn)
			}
			return err
		},
		Limits: limits,
	})
}

// Path returns the path given to Open.
func (db *DB) Path() string { return db.path }

// ReadOnly reports whether the database was opened read-only.
func (db *DB) ReadOnly() bool { return db.readOnly }

// Read runs fn with a reader inside a read transaction: everything fn reads
// comes from one snapshot, taken when it begins. When ctx ends the
// statement under way is interrupted. Errors: those of pool.Acquire, those of
// fn, the context's. fn must not keep the connection, end the transaction or
// call SetInterrupt; what it made by PrepareTransient or OpenBlob it has to
// finalize or close. When it panics the connection is closed.
func (db *DB) Read(ctx context.Context, fn func(*sqlite.Conn) error) error {
	return db.transact(ctx, db.AcquireReader, "BEGIN", fn)
}

// Write runs fn with the writer between BEGIN IMMEDIATE and COMMIT. An error
// or a panic of fn, or the end of ctx before the COMMIT, rolls back. Writers are
// served first come first served; for a lock of another process Write waits as
// long as Config.BusyTimeout and ctx allow. Errors: ErrReadOnly, ErrBusy, those
// of Read. fn must not call Write: it would wait for itself. It must return the
// errors of its statements: some end the transaction, and what is done after
// them is no part of it.
func (db *DB) Write(ctx context.Context, fn func(*sqlite.Conn) error) error {
	return db.transact(ctx, db.AcquireWriter, beginWrite, fn)
}

// AcquireReader leases a reader outside a transaction. Release rolls back what
// is left open; a lease that changed anything else which lasts (other PRAGMAs,
// ATTACH, an authorizer, busy handlers) must be discarded. Read columns by number:
// the names that a cached statement's Get methods know are those of the schema it was
// first prepared with. Errors: those of pool.Acquire.
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
	if db.writer == nil {
		return db.readers.Drain(ctx)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	_ = db.writer.Drain(over) // it begins
	return errors.Join(db.readers.Drain(ctx), db.writer.Drain(ctx))
}

// Close gives out no more connections, closes the idle ones now and leased
// ones when they come back.
func (db *DB) Close() {
	db.readers.Close()
	if db.writer != nil {
		db.writer.Close()
	}
}
