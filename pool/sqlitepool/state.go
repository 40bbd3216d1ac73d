package sqlitepool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// state is the DB's state of one of its connections. Only the holder of the connection uses it.
type state struct {
	conn        *sqlite.Conn
	native      native
	reader      bool
	busyTimeout time.Duration
	opened      settings    // settings after opening
	file        os.FileInfo // the database file that is open
	schemas     []schema    // of the file and of those that Setup has attached
	logs        []string    // paths of the write-ahead logs
	kept        bool        // a statement in schemas holds the snapshot for the next Write: see keep.go

	// done is the connection's interrupt channel. The driver starts a goroutine for every channel,
	// so this one is used until interrupt closes it.
	done    chan struct{}
	ended   atomic.Bool // done is closed
	end     func()      // method value of interrupt, made once
	unwatch func() bool // ends the watch of a context, nil without one
}

func newState(conn *sqlite.Conn, native native, reader bool, busyTimeout time.Duration, file os.FileInfo) *state {
	st := &state{conn: conn, native: native, reader: reader, busyTimeout: busyTimeout, file: file}
	st.end = st.interrupt
	st.opened = st.native.settings()
	st.arm()
	return st
}

// arm gives the driver a new interrupt channel. That resets cached statements that are in the
// middle of their rows.
func (st *state) arm() {
	st.done = make(chan struct{})
	st.ended.Store(false)
	st.conn.SetInterrupt(st.done)
}

// interrupt may be called from any goroutine while the connection is leased.
func (st *state) interrupt() {
	if st.ended.CompareAndSwap(false, true) {
		close(st.done)
	}
}

// watch interrupts the connection when ctx ends. release ends the watch.
func (st *state) watch(ctx context.Context) {
	if ctx.Done() != nil {
		st.unwatch = context.AfterFunc(ctx, st.end)
	}
}

// release ends the watch and undoes its interrupt.
func (st *state) release() {
	if st.unwatch == nil {
		return
	}
	stopped := st.unwatch()
	st.unwatch = nil
	if !stopped {
		<-st.done // interrupt has begun: wait, so that it cannot hit the next holder
		st.arm()
	}
}

// clean reports that reset has nothing to do, the common case. It costs a few loads.
func (st *state) clean() bool {
	held := 0
	if st.kept {
		held = len(st.schemas)
	}
	return st.native.isIdle(held) && *st.native.done == st.done && !st.ended.Load() && st.native.settings() == st.opened
}

// reset restores the state after opening: no interrupt, no running statement, no transaction, the
// same settings.
func (st *state) reset() error {
	st.arm()
	st.native.resetAll()
	if !st.conn.AutocommitEnabled() {
		if err := exec(st.conn, "ROLLBACK"); err != nil {
			return err
		}
	}
	if st.native.db == nil || st.native.settings() != st.opened {
		st.conn.SetBusyTimeout(st.busyTimeout)
	}
	if st.native.db == nil || st.native.settings() != st.opened {
		// Setting a flag makes SQLite compile every statement of the connection again.
		guard := "PRAGMA foreign_keys=ON"
		if st.reader {
			guard = "PRAGMA query_only=ON"
		}
		if err := exec(st.conn, guard); err != nil {
			return err
		}
	}
	switch {
	case st.native.db == nil:
		return nil
	case !st.native.isIdle(0):
		return errors.New("sqlitepool: a blob was left open")
	case st.native.settings() != st.opened:
		return errors.New("sqlitepool: the settings of the connection were changed")
	}
	return nil
}

// close prepares the connection for closing. It finalizes the state's statements. It also releases
// locks: SQLite cannot close a connection with an open statement or blob, which would keep them
// forever.
func (st *state) close() {
	for i := range st.schemas {
		_ = st.schemas[i].version.Finalize() // returns the error of its last step again
	}
	st.schemas = nil
	st.native.resetAll()
	if !st.conn.AutocommitEnabled() {
		_ = exec(st.conn, "ROLLBACK") // closing does it, too
	}
}

// schema is the schema of the database file, or of a file that Setup has attached.
type schema struct {
	version *sqlite.Stmt // reads a number that changes with the schema; not in the driver's cache
	was     int64        // that number when the connection was opened
}

// recordSchemas records the schemas and logs of all files that the connection has open. In-memory databases
// belong to the connection alone: nothing else can change them. Source:
// https://www.sqlite.org/pragma.html#pragma_schema_version
func (st *state) recordSchemas() error {
	var names []string
	err := sqlitex.ExecuteTransient(st.conn, "PRAGMA database_list", &sqlitex.ExecOptions{ResultFunc: func(stmt *sqlite.Stmt) error {
		if name, file := stmt.ColumnText(1), stmt.ColumnText(2); file != "" && name != "temp" {
			names = append(names, name)
			st.logs = append(st.logs, logOf(file))
		}
		return nil
	}})
	for i := 0; i < len(names) && err == nil; i++ {
		s := schema{}
		query := `PRAGMA "` + strings.ReplaceAll(names[i], `"`, `""`) + `".schema_version`
		if s.version, _, err = st.conn.PrepareTransient(query); err != nil {
			break
		}
		st.schemas = append(st.schemas, s)
		if _, err = s.version.Step(); err == nil {
			st.schemas[i].was = s.version.ColumnInt64(0)
			err = s.version.Reset()
		}
	}
	return err
}

// logOf returns the path of the log for the file at path. The log is beside the target of a
// symbolic link.
func logOf(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return path + "-wal"
}

// hold begins a read: the connection keeps the snapshots of its files until unhold, because a
// statement on each file is in the middle of its rows. outdated means that a schema has changed
// since the connection was opened.
func (st *state) hold() (outdated bool, err error) {
	for i := range st.schemas {
		s := &st.schemas[i]
		if _, err := s.version.Step(); err != nil {
			return false, err
		}
		if s.version.ColumnInt64(0) != s.was {
			return true, nil
		}
	}
	return false, nil
}

// unhold ends the reading that hold began.
func (st *state) unhold() error {
	var err error
	for i := range st.schemas {
		if e := st.schemas[i].version.Reset(); e != nil {
			err = e
		}
	}
	return err
}
