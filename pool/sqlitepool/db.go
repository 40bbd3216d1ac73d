package sqlitepool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// beginWrite takes the write lock at once. SQLite refuses the first write of a deferred transaction
// if another process has written since it began.
const beginWrite = "BEGIN IMMEDIATE"

// checkEvery is the least time between two checks of the path and of the log's length. Releases
// trigger the checks; a check at each release would take a third of a short read.
const checkEvery = time.Millisecond

// DB is the connections of one SQLite file. Its methods may be called concurrently. A connection
// belongs to the holder of its lease.
type DB struct {
	path      string
	cfg       Config
	readOnly  bool
	immutable bool     // read-only, in a directory where the shared memory file cannot be made
	made      bool     // the file exists: if it is deleted later, it is not created again
	states    sync.Map // *sqlite.Conn → *state
	nativeOf  func(*sqlite.Conn) native
	started   time.Time
	seen      atomic.Pointer[sighting]
	closing   sync.Mutex    // serialises closing: the last connection to close removes the log
	logTried  int64         // size above which the next restart of the log is tried; for the writer's holder
	logLooked time.Duration // last check of the log's length, since started; for the writer's holder
	writing   atomic.Int64  // running calls of Write
	kept      atomic.Bool   // the writer may keep a snapshot: see keep.go
	readers   *pool.Pool[*sqlite.Conn]
	writer    *pool.Pool[*sqlite.Conn]
}

// Stats are the counters of both pools. Writer is zero if the DB is read-only.
type Stats struct {
	Readers, Writer pool.Stats
}

// Open opens the database at path, a plain file path, and creates the file if it does not exist. A
// file or directory without write permission is opened read-only. Errors: ErrPath, ErrNotDatabase,
// fs.ErrNotExist for a missing directory or, with Config.ReadOnly, file, pool.ErrConfig for invalid
// limits.
func Open(path string, cfg Config) (*DB, error) {
	readOnly, err := inspect(path)
	if err != nil {
		return nil, err
	}
	db := &DB{path: path, cfg: cfg.withDefaults(), started: time.Now(), nativeOf: nativeOf, readOnly: readOnly || cfg.ReadOnly}
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

// probe opens a first connection, so that Open reports a damaged file, not the first query. It also
// decides how a read-only file is opened.
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
// shared memory file: for root that is "cannot open", for others "read-only".
func noSharedMemory(err error) bool {
	code := sqlite.ErrCode(err).ToPrimary()
	return code == sqlite.ResultCantOpen || code == sqlite.ResultReadOnly
}

func (db *DB) newPool(kind string, limits pool.Limits, reader bool) (*pool.Pool[*sqlite.Conn], error) {
	return pool.New(pool.Config[*sqlite.Conn]{
		Name:   filepath.Base(db.path) + " " + kind,
		Open:   func(ctx context.Context) (*sqlite.Conn, error) { return db.open(ctx, reader) },
		Close:  db.closeConn,
		Check:  func(_ context.Context, conn *sqlite.Conn) error { return db.checkIdle(db.state(conn)) },
		Reset:  func(_ context.Context, conn *sqlite.Conn) error { return db.reset(db.state(conn)) },
		Limits: limits,
		// A transaction that writes takes 20 µs at least.
		LongLeases: !reader,
	})
}

// state returns the DB's state of one of its connections.
func (db *DB) state(conn *sqlite.Conn) *state {
	v, _ := db.states.Load(conn)
	return v.(*state)
}

// reset prepares a released connection for its next holder.
func (db *DB) reset(st *state) error {
	if err := db.clean(st); err != nil {
		return err
	}
	at := time.Since(db.started)
	if err := db.checkSince(st, at-checkEvery+1); err != nil || st.reader || st.kept || at-db.logLooked < checkEvery {
		return err
	}
	db.logLooked = at
	return db.keepLogShort(st)
}

var errClosedByHolder = errors.New("sqlitepool: the holder closed its connection, which belongs to the pool")

// clean undoes the holder's changes of the connection. A snapshot that Write has kept for the next Write stays.
func (db *DB) clean(st *state) error {
	if st.native.closed() {
		return errClosedByHolder
	}
	if st.clean() {
		return nil
	}
	if err := db.dropKept(st); err != nil {
		return err
	}
	return st.reset()
}

// checkSince is check, unless a check has run since the given time.
func (db *DB) checkSince(st *state, since time.Duration) error {
	if last := db.seen.Load(); last != nil && last.at >= since {
		return last.same(st, db.path)
	}
	return db.check(st)
}

// sighting is the file that was at the path at a given time.
type sighting struct {
	at   time.Duration // since DB.started
	file os.FileInfo   // nil if there was none
}

// same returns an error unless the connection has that file open. Writes to a file that was deleted
// or replaced would be lost.
func (s *sighting) same(st *state, path string) error {
	if s.file == nil || !os.SameFile(st.file, s.file) {
		return fmt.Errorf("sqlitepool: %q was replaced by another file", path)
	}
	return nil
}

// checkIdle is check for an idle connection. It ends a kept snapshot, for which no Write waits any more.
func (db *DB) checkIdle(st *state) error {
	if err := db.dropKept(st); err != nil {
		return err
	}
	return db.check(st)
}

// check returns an error if the file that a connection has open is no longer at the path.
func (db *DB) check(st *state) error {
	now := &sighting{at: time.Since(db.started)}
	file, err := os.Stat(db.path)
	if err == nil {
		now.file = file
	}
	db.seen.Store(now)
	if err != nil {
		return fmt.Errorf("sqlitepool: %w", err)
	}
	return now.same(st, db.path)
}

// Path returns the path given to Open.
func (db *DB) Path() string { return db.path }

// CacheSize returns how many bytes of pages each connection keeps: Config.CacheSize, or its default.
func (db *DB) CacheSize() int64 { return db.cfg.CacheSize }

// ReadOnly reports whether the database was opened read-only.
func (db *DB) ReadOnly() bool { return db.readOnly }

// Read runs fn with a reader inside a read transaction: everything fn reads comes from one
// snapshot, taken when it begins. When ctx ends the running statement is interrupted. Errors: those
// of pool.Acquire, those of fn, the context's. fn must not keep the connection, end the transaction
// or call SetInterrupt, and must finalize or close its results of PrepareTransient and OpenBlob. If
// it panics the connection is closed. If it closes the connection, Read panics.
func (db *DB) Read(ctx context.Context, fn func(*sqlite.Conn) error) error {
	return db.transact(ctx, false, fn)
}

// Query runs fn with a reader outside a transaction: each statement reads the newest commit, which
// costs less than Read for a single statement. When ctx ends the running statement is interrupted.
// Read columns by number, as with AcquireReader. Errors and all else as for Read.
func (db *DB) Query(ctx context.Context, fn func(*sqlite.Conn) error) error {
	lease, err := db.AcquireReader(ctx)
	if err != nil {
		return err
	}
	_, err = db.use(ctx, lease, db.query, fn)
	return err
}

// Write runs fn with the writer between BEGIN IMMEDIATE and COMMIT. An error or a panic of fn, or
// the end of ctx before the COMMIT, rolls back. Writers are served in the order of their calls.
// Write waits for a lock of another process as long as Config.BusyTimeout and ctx allow. Errors:
// ErrReadOnly, ErrBusy, those of Read. fn must not call Write: it would wait for itself. It must
// return the errors of its statements: some end the transaction, and later statements are no longer
// part of it.
func (db *DB) Write(ctx context.Context, fn func(*sqlite.Conn) error) error {
	db.beginWriting()
	defer db.doneWriting()
	return db.transact(ctx, true, fn)
}

// AcquireReader leases a reader outside a transaction. Release undoes the changes listed in the
// package doc; a lease that made any other lasting change (cache_size, synchronous, temporary
// tables, functions) must be discarded. Read columns by number: the names that a cached statement's
// Get methods know are those of the schema it was first prepared with. Errors: those of
// pool.Acquire.
func (db *DB) AcquireReader(ctx context.Context) (pool.Lease[*sqlite.Conn], error) {
	return db.readers.Acquire(ctx)
}

// AcquireWriter leases the writer, like AcquireReader a reader. Begin transactions with BEGIN
// IMMEDIATE: SQLite refuses the first write of a deferred transaction if another process has
// written since it began. Errors: ErrReadOnly, those of pool.Acquire.
func (db *DB) AcquireWriter(ctx context.Context) (pool.Lease[*sqlite.Conn], error) {
	for {
		lease, err := db.acquireWriter(ctx)
		if err != nil || db.dropKept(db.state(lease.Value())) == nil {
			return lease, err
		}
		lease.Discard()
	}
}

// acquireWriter is AcquireWriter for Write, which can continue on a kept snapshot.
func (db *DB) acquireWriter(ctx context.Context) (pool.Lease[*sqlite.Conn], error) {
	if db.writer == nil {
		return pool.Lease[*sqlite.Conn]{}, fmt.Errorf("%w: %s", ErrReadOnly, db.path)
	}
	called := time.Since(db.started)
	for {
		lease, err := db.writer.Acquire(ctx)
		if err != nil || db.checkSince(db.state(lease.Value()), called) == nil {
			return lease, err
		}
		lease.Discard() // the next connection opens the file now at the path, or fails
	}
}

// Interrupt makes the running statement of a leased connection fail, and later ones too, until Resume is called or the
// lease is released. It may be called from any goroutine while the lease is held. Connections that are never
// interrupted pay nothing, unlike with sqlite.Conn.SetInterrupt, which starts a goroutine for each channel.
func (db *DB) Interrupt(conn *sqlite.Conn) { db.state(conn).interrupt() }

// Resume undoes Interrupt. It resets cached statements that are in the middle of their rows. Only the holder of the
// lease may call it, and not concurrently with Interrupt.
func (db *DB) Resume(conn *sqlite.Conn) {
	if st := db.state(conn); st.ended.Load() {
		st.arm()
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

// Drain stops leasing connections and waits until all leased ones are released and closed. If ctx
// ends first it returns ctx's error; the other connections are closed when they are released.
func (db *DB) Drain(ctx context.Context) error {
	if db.writer == nil {
		return db.readers.Drain(ctx)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	_ = db.writer.Drain(over) // only begins the drain
	return errors.Join(db.readers.Drain(ctx), db.writer.Drain(ctx))
}

// Close stops leasing connections. It closes idle ones now and leased ones when they are released.
func (db *DB) Close() {
	db.readers.Close()
	if db.writer != nil {
		db.writer.Close()
	}
}
