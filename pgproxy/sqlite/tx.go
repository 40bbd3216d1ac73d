package sqlite

import (
	"context"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/pool"
	"zombiezen.com/go/sqlite"
)

// txMode is how a transaction block reads and writes.
type txMode int

const (
	// txReadCommitted uses a reader for each statement until the first write, which takes the
	// writer until the end of the block.
	txReadCommitted txMode = iota
	txSerializable         // takes the writer at its first statement
	txImmediate            // takes the writer at once
	txReadOnly             // one reader, one snapshot
)

// handle is a leased connection with its state.
type handle struct {
	lease pool.Lease[*sqlite.Conn]
	conn  *sqlite.Conn
	cs    *connState
	write bool // conn is the writer, not a reader
	users int  // portals that use it
}

// acquire leases a connection for the session.
func (s *session) acquire(ctx context.Context, write bool) (*handle, error) {
	get := s.b.db.AcquireReader
	if write {
		get = s.b.db.AcquireWriter
	}
	if !write && s.readers > 0 && s.readers >= s.b.db.Stats().Readers.MaxSize {
		return nil, sqlError(pgwire.StateConfigLimitExceeded, "the open cursors of this session hold all %d connections for reading", s.readers).
			hint("Close cursors, or raise pool.max_size.")
	}
	s.parker.write = write
	lease, err := get(ctx) // waits by s.parker
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, err
	}
	h := &handle{lease: lease, conn: lease.Value(), cs: s.b.state(lease.Value()), write: write, users: 1}
	h.cs.session = s
	if !write {
		s.readers++
	}
	return h, nil
}

// release releases the connection unless another portal uses it.
func (h *handle) release() {
	s := h.cs.session
	s.guard.drop(h.conn)
	if h.users--; h.users > 0 {
		return
	}
	if s.shared == h {
		s.shared = nil
	}
	if !h.write {
		s.readers--
	}
	h.cs.session = nil
	h.lease.Release()
}

// sharedReader returns the reader that the open portals of a transaction share. With a reader each, the portals of
// several sessions could wait for one another. All read the snapshot of the first. It returns nil if p needs a
// connection of its own.
func (s *session) sharedReader(p *portal) *handle {
	if !p.lasting || s.shared == nil || s.pinned != nil || s.mode != txReadCommitted || s.sharedGen != s.b.generation.Load() {
		return nil
	}
	s.shared.users++
	return s.shared
}

// connFor returns the connection for a statement. own means that the caller releases it after the
// statement.
func (s *session) connFor(ctx context.Context, write bool) (h *handle, own bool, err error) {
	if write && s.readOnly() {
		return nil, false, sqlError(pgwire.StateReadOnlyTransaction, "cannot write in a read-only transaction")
	}
	if s.pinned == nil {
		switch {
		case write, s.block && s.mode == txSerializable && !s.b.db.ReadOnly():
			err = s.pin(ctx, true, "BEGIN IMMEDIATE")
		case s.block && s.mode == txReadOnly:
			err = s.pin(ctx, false, "BEGIN")
		default:
			h, err = s.acquire(ctx, false)
			return h, true, err
		}
		if err != nil {
			return nil, false, err
		}
	}
	return s.pinned, false, nil
}

// pin leases a connection until the transaction ends, and begins the transaction on it.
func (s *session) pin(ctx context.Context, write bool, begin string) error {
	h, err := s.acquire(ctx, write)
	if err != nil {
		return err
	}
	if err = s.guard.use(h.conn); err == nil {
		err = execute(h.conn, begin)
	}
	if err != nil {
		h.release()
		return err
	}
	s.pinned = h
	return nil
}

// execute runs a statement without rows. The driver caches the compiled statement.
func execute(conn *sqlite.Conn, query string) error {
	stmt, err := conn.Prepare(query)
	if err != nil {
		return err
	}
	_, err = stmt.Step()
	_ = stmt.Reset() // returns the error of Step again
	return err
}

// unpin ends the transaction of the pinned connection by COMMIT or ROLLBACK and releases the
// connection. It closes the portals except cursors WITH HOLD.
func (s *session) unpin(commit bool) (err error) {
	s.closePortals(false)
	defer func() { s.endSettings(commit && err == nil) }()
	h := s.pinned
	if h == nil {
		return nil
	}
	s.pinned = nil
	if s.schemaChanged {
		s.schemaChanged = false
		defer s.b.generation.Add(1)
	}
	defer h.release() // rolls back what was not committed
	if !commit {
		return nil
	}
	return execute(h.conn, "COMMIT")
}

// endImplicit ends an implicit transaction, and the portals outside a block, at Sync or at the end
// of a simple query.
func (s *session) endImplicit(commit bool) error {
	if s.block {
		return nil
	}
	return s.unpin(commit)
}

func (s *session) begin(ctx context.Context, m modes) error {
	if s.block {
		s.notice(pgwire.StateActiveTransaction, "there is already a transaction in progress")
		return nil
	}
	mode := s.modeOf(m)
	if mode == txImmediate && s.pinned == nil {
		if err := s.pin(ctx, true, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
	}
	s.block, s.mode, s.asked, s.savepoints = true, mode, m, nil
	return nil
}

func (s *session) commit() (tag string, err error) {
	if !s.block {
		s.notice(pgwire.StateNoActiveTransaction, "there is no transaction in progress")
		return "COMMIT", s.unpin(true)
	}
	failed := s.failed
	s.endBlock()
	if failed {
		return "ROLLBACK", s.unpin(false)
	}
	return "COMMIT", s.unpin(true)
}

func (s *session) rollbackBlock() (tag string, err error) {
	if !s.block {
		s.notice(pgwire.StateNoActiveTransaction, "there is no transaction in progress")
	}
	s.endBlock()
	return "ROLLBACK", s.unpin(false)
}

func (s *session) endBlock() {
	s.block, s.failed, s.mode, s.asked, s.savepoints = false, false, txReadCommitted, modes{}, nil
}

// savepoint runs SAVEPOINT, RELEASE or ROLLBACK TO. A savepoint needs the connection on which the
// block writes, so the first one takes the writer.
func (s *session) savepoint(ctx context.Context, what, name string) error {
	if !s.block {
		return sqlError(pgwire.StateNoActiveTransaction, "%s can only be used in transaction blocks", what)
	}
	if what != "SAVEPOINT" && (s.pinned == nil || !s.hasSavepoint(name)) {
		return sqlError("3B001", "savepoint %q does not exist", name)
	}
	h, _, err := s.connFor(ctx, s.mode != txReadOnly)
	if err != nil {
		return err
	}
	if what == "ROLLBACK TO" {
		s.closePortals(false)
	}
	stmt, _, err := h.conn.PrepareTransient(what + " " + quoteIdent(name))
	if err != nil {
		return err
	}
	_, err = stmt.Step()
	stmt.Finalize()
	if err != nil {
		return err
	}
	switch what {
	case "SAVEPOINT":
		s.savepoints = append(s.savepoints, name)
	case "ROLLBACK TO":
		s.failed = false
		s.b.generation.Add(1)
	case "RELEASE":
		s.dropSavepoint(name)
	}
	return nil
}

func (s *session) hasSavepoint(name string) bool {
	for _, have := range s.savepoints {
		if strings.EqualFold(have, name) {
			return true
		}
	}
	return false
}

// dropSavepoint removes the newest savepoint of that name and all later ones.
func (s *session) dropSavepoint(name string) {
	for i := len(s.savepoints) - 1; i >= 0; i-- {
		if strings.EqualFold(s.savepoints[i], name) {
			s.savepoints = s.savepoints[:i]
			return
		}
	}
}

// abort marks the transaction failed. A block without savepoints can only be rolled back, so its
// connection is released at once.
func (s *session) abort() {
	if !s.block {
		_ = s.unpin(false)
		return
	}
	s.failed = true
	lost := s.pinned != nil && s.pinned.conn.AutocommitEnabled()
	if len(s.savepoints) == 0 || lost {
		s.savepoints = nil
		_ = s.unpin(false)
	}
}

// status returns the status for ReadyForQuery.
func (s *session) status() pgwire.TxStatus {
	switch {
	case s.failed:
		return pgwire.TxFailed
	case s.block:
		return pgwire.TxActive
	}
	return pgwire.TxIdle
}
