package pgproxy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode prepared statements are the gateway's: a client's names are mapped to names on server connections. A client's Parse
// is always sent, so that the server says what it means now. What it makes serves other clients that prepared the same text before, too;
// where a server connection has nothing that serves, the statement is prepared again.

// maxNames bounds the part of a Bind that its names are in, in bytes: what a Reader can show.
const maxNames = 16 << 10

// maxName is the length that servers cut names of statements to, in bytes (NAMEDATALEN without the zero).
const maxName = 63

// statementKey returns what tells a name from others.
func statementKey(name []byte) []byte { return name[:min(len(name), maxName)] }

// parse forwards Parse.
func (s *session) parse(h pgwire.Header) error {
	start, err := s.c.Reader.Peek(peekSize)
	if err != nil {
		return err
	}
	i := bytes.IndexByte(start, 0)
	if i == 0 {
		return s.parseUnnamed(h)
	}
	if i < 0 {
		i = len(start)
	}
	name := string(statementKey(start[:i]))
	if h.Len > maxClientStatements {
		if err := s.c.Reader.Skip(); err != nil {
			return err
		}
		return s.locked(func() { s.rejectTooLarge(name, h.Len) })
	}
	if err := s.learn([]byte(name), false); err != nil {
		return err
	}
	s.c.Reader.MaxBody = maxClientStatements
	body, err := s.c.Reader.Body()
	if err != nil {
		return err
	}
	full, body, ok := bytes.Cut(body, []byte{0})
	if !ok {
		return fmt.Errorf("%w: no end of the name in Parse", pgwire.ErrMalformed)
	}
	return s.locked(func() { s.parseNamed(name, full, body) })
}

// rejectTooLarge rejects a Parse of some bytes. mu is held.
func (s *session) rejectTooLarge(name string, size int) {
	s.reject(pgwire.StateConfigLimitExceeded, fmt.Sprintf(
		"prepared statement %q takes %d bytes: those of one client may take %d in transaction mode, and %d are taken",
		name, size, maxClientStatements, s.stmtBytes))
}

// learn waits for the answers to what the client sent before, where a message about a statement
// cannot be judged without: the client has the name although it should not, or the other way
// round, and that may be because what it sent was skipped; or something may be deallocating it. The
// message must not have been consumed.
func (s *session) learn(name []byte, has bool) error {
	s.lockShared()
	known := s.st.empty() || s.st.copyIn || s.knows(name, has)
	s.unlockShared()
	if known {
		return nil
	}
	return s.catchUp()
}

// catchUp waits for the answers to what was sent before.
func (s *session) catchUp() error {
	s.srv.w.Send(&pgwire.Flush{})
	if err := s.flushServer(); err != nil {
		return err
	}
	s.c.Working()
	defer s.c.Done()
	s.lockShared()
	reading := s.reading
	s.learning = reading && !s.st.empty() && !s.st.copyIn
	waits := s.learning || !reading
	s.unlockShared()
	for !reading && !s.st.empty() && !s.st.copyIn {
		if _, err := s.fromServer(); err != nil {
			return err
		}
	}
	if waits {
		s.readers.Wait() // it has ended, or will when it has learned
		s.both, s.learning = false, false
	}
	s.lockShared()
	defer s.unlockShared()
	s.pending, s.synced = s.pending[:0], 0
	if s.st.empty() {
		s.changesDone(lastOfAll)
	}
	return s.broken
}

// knows reports whether a message that uses a statement, or is to make it, can be judged before what is
// on its way to the server is answered. mu is held.
func (s *session) knows(name []byte, has bool) bool {
	if len(name) == 0 {
		return s.knowsUnnamed()
	}
	return !s.sweeping && (s.st.ends == 0 || s.st.queries == 0 && s.certain(string(name), has))
}

// certain reports whether the client has a name, or has it not, as it should, whatever the answers
// to come are. mu is held.
func (s *session) certain(name string, has bool) bool {
	st := s.stmts[name]
	if (st != nil) != has || s.uncertain(name) || len(s.pending) >= maxPending {
		return false
	}
	if !has {
		return true
	}
	on := s.srv.stmts.find(st.sharedText)
	return on == nil || !s.uncertain(on.name)
}

// maxPending bounds session.pending.
const maxPending = 1000

// uncertain reports whether what the client sent about a statement before the last Sync has perhaps
// been skipped.
func (s *session) uncertain(name string) bool { return slices.Contains(s.pending[:s.synced], name) }

// locked runs fn with mu held, and then sends what fn put into s.out to the server.
func (s *session) locked(fn func()) error {
	s.lockShared()
	fn()
	s.unlockShared()
	_, err := s.srv.w.Write(s.out)
	if s.out = s.out[:0]; cap(s.out) > smallUnnamed {
		s.out = nil
	}
	if err != nil {
		return s.writeFailed(err)
	}
	return nil
}

// parseNamed gives the client a statement. mu is held.
func (s *session) parseNamed(name string, full, body []byte) {
	if s.doubtful[name] && !s.st.skipping {
		s.forget(name, s.stmts[name])
	}
	switch size := len(body) + statementOverhead; {
	case s.st.skipping:
		return
	case s.stmts[name] != nil:
		s.reject(pgwire.StateDuplicatePrepared, fmt.Sprintf("prepared statement %q already exists", full))
		return
	case s.stmtBytes+size > maxClientStatements:
		s.rejectTooLarge(name, size)
		return
	}
	st := &statement{sharedText: s.b.texts.get(s.plan, body), since: notYet}
	s.own(name, st)
	if len(s.fresh) < maxAlone {
		s.fresh = append(s.fresh, name)
	}
	s.pending = append(s.pending, name)
	s.prepare(st, op{kind: opParse, name: name})
}

// parseLater answers Parse of a text that a server has accepted before, alone but for Sync, where every server connection is in use: the
// statement is parsed when it is used. A program that waits for the answer on the thread that would end its other clients' transactions,
// as pgbench does, could wait for ever. mu is held.
func (s *session) parseLater(h pgwire.Header) (done bool, err error) {
	if h.Len > maxNames-headerSize {
		return false, nil
	}
	body, err := s.c.Reader.Peek(h.Len)
	if err != nil || s.c.Reader.Buffered() > h.Len+len(syncMessage) {
		return false, err
	}
	full, body, _ := bytes.Cut(body, []byte{0})
	name := string(statementKey(full))
	if name == "" || s.stmts[name] != nil || s.stmtBytes+len(body)+statementOverhead > maxClientStatements || !s.b.up.AllInUse() {
		return false, nil
	}
	text := s.b.texts.getAccepted(s.plan, body)
	if text == nil {
		return false, nil
	}
	s.own(name, &statement{sharedText: text, since: s.b.texts.last.Add(1)})
	s.c.Writer.Send(&pgwire.ParseComplete{})
	return true, s.c.Reader.Skip()
}

// own gives the client a statement under a name. mu is held.
func (s *session) own(name string, st *statement) {
	if s.stmts == nil {
		s.stmts = make(map[string]*statement)
	}
	s.stmts[name] = st
	s.stmtBytes += st.cost()
	delete(s.doubtful, name)
}

// prepare sends Parse for a client's statement under a name of its own; o is what will be answered. The server must not be
// skipping. mu is held.
func (s *session) prepare(st *statement, o op) *serverStatement {
	srv, on := s.srv, s.b.texts.newServerStatement(st.sharedText)
	if st.since == notYet {
		st.own = on.at
	}
	o.st, o.on = st, on
	s.st.push(o)
	s.prepared = true
	s.pending = append(s.pending, on.name)
	if srv.flags&leftSettings != 0 {
		srv.flags |= leftPrepare // under settings that are not those of st.plan
	}
	srv.stmts.add(on)
	s.sendParse(on.name, st.body)
	if st.told() && s.st.push(op{kind: opInjectedDescribe, st: st, on: on}) {
		s.out = (&pgwire.Describe{Object: pgwire.ObjectStatement, Name: on.name}).Append(s.out)
	}
	srv.stmts.surplus()
	for range 3 { // more than this one can add, but for long texts
		if name := srv.stmts.nextStale(); name != "" {
			s.closeOnServer(name)
		}
	}
	return on
}

func (s *session) sendParse(name, body string) {
	b := pgwire.AppendHeader(s.out, pgwire.TypeParse, len(name)+1+len(body))
	s.out = append(append(append(b, name...), 0), body...)
}

// closeOnServer closes a statement that no client is served by any more. mu is held.
func (s *session) closeOnServer(name string) {
	if s.st.push(op{kind: opInjectedClose, name: name}) {
		s.out = (&pgwire.Close{Object: pgwire.ObjectStatement, Name: name}).Append(s.out)
	}
}

// ensure sees to it that the server connection has a statement that serves the client's of a name, and returns the name it has
// there. Without ok the message that names it was rejected. mu is held.
func (s *session) ensure(name []byte) (server string, st *statement, on *serverStatement, ok bool) {
	if len(name) == 0 {
		s.ensureUnnamed()
		return "", nil, nil, true
	}
	st = s.stmts[string(statementKey(name))]
	switch {
	case st == nil && ours(name):
		s.reject(pgwire.StateInvalidStatementName, fmt.Sprintf("prepared statement %q does not exist", name))
		return "", nil, nil, false
	case st == nil:
		s.standOut(string(statementKey(name)))
		return string(name), nil, nil, true // by PREPARE in this transaction, or the server's error is the best one
	case st.plan != s.plan:
		old := st.sharedText
		st.sharedText = s.b.texts.get(s.plan, []byte(old.body))
		s.b.texts.put(old)
	}
	if on = s.srv.stmts.use(st); on == nil {
		if s.unlike == st {
			s.unlike = nil
		}
		on = s.prepare(st, op{kind: opInjectedParse})
		if st.told() {
			s.unseen = st
		}
	}
	return on.name, st, on, true
}

// ours reports whether a name on the server is one of our own.
func ours(name []byte) bool { return bytes.HasPrefix(name, []byte(namePrefix)) }

// bind forwards Bind with the statement's name on the server.
func (s *session) bind(h pgwire.Header) error {
	portal, name, n, err := s.bindNames(h)
	if err == errLongNames { //nolint:errorlint // as bindNames returned it
		err = s.locked(func() { s.reject(pgwire.StateProgramLimitExceeded, err.Error()) })
		return errors.Join(err, s.c.Reader.Skip())
	}
	if err == nil {
		err = s.learn(statementKey(name), true)
	}
	if err != nil {
		return err
	}
	skip := false
	err = s.locked(func() {
		if skip = s.st.skipping; skip {
			return
		}
		if len(name) > 0 {
			s.x.likely = h.Len <= maxRenamed && s.st.empty()
		} else {
			s.x.likely = s.x.likely && s.unnamedNew
		}
		server, st, on, ok := s.ensure(name)
		if skip = !ok; skip {
			return
		}
		if len(name) == 0 {
			s.unnamed.once = s.unnamedNew
		}
		s.noteSweep(portal, name, st)
		s.bound, s.boundOn, s.portal = st, on, append(s.portal[:0], portal...)
		s.st.push(op{kind: opBind, st: st, on: on})
		s.out = pgwire.AppendHeader(s.out, pgwire.TypeBind, h.Len-len(name)+len(server))
		s.out = append(append(s.out, portal...), 0)
		s.out = append(append(s.out, server...), 0)
	})
	if skip || err != nil {
		return errors.Join(err, s.c.Reader.Skip())
	}
	s.c.Reader.Discard(n)
	return s.rest()
}

// bindNames returns the names in a Bind that is not consumed, and how many bytes they take.
func (s *session) bindNames(h pgwire.Header) (portal, name []byte, n int, err error) {
	start, err := s.c.Reader.Peek(peekSize)
	if err != nil {
		return nil, nil, 0, err
	}
	if portal, name, n, err = pgwire.BindNames(start); err == nil || h.Len <= peekSize {
		return portal, name, n, err
	}
	if start, err = s.c.Reader.Peek(maxNames); err != nil {
		return nil, nil, 0, err
	}
	if portal, name, n, err = pgwire.BindNames(start); err != nil && h.Len > maxNames {
		err = errLongNames
	}
	return portal, name, n, err
}

// errLongNames is an error of bindNames that the client may go on after.
var errLongNames = fmt.Errorf("the names in Bind take more than %d bytes", maxNames)

// describe forwards Describe likewise.
func (s *session) describe() error {
	m, err := s.named()
	if err != nil {
		return err
	}
	return s.locked(func() {
		if s.st.skipping {
			return
		}
		var st *statement
		var on *serverStatement
		switch {
		case m.Object == pgwire.ObjectStatement:
			s.x.likely = false
			var ok bool
			if m.Name, st, on, ok = s.ensure([]byte(m.Name)); !ok {
				return
			}
			s.unseen = nil
		case s.bound != nil && m.Name == string(s.portal):
			if s.unseen == s.bound && s.bound.parameters == 0 {
				s.unseen = nil
			}
			if s.prepared || s.bound.columns == 0 {
				st, on = s.bound, s.boundOn
			}
		}
		s.st.push(op{kind: opDescribe, st: st, on: on})
		s.out = m.Append(s.out)
	})
}

// named decodes the body of a Describe or Close, which are alike.
func (s *session) named() (m pgwire.Describe, err error) {
	start, err := s.c.Reader.Peek(peekSize)
	if err == nil && len(start) > 1 && start[0] == pgwire.ObjectStatement {
		err = s.learn(statementKey(start[1:len(start)-1]), true)
	}
	if err != nil {
		return m, err
	}
	body, err := s.c.Reader.Body()
	if err != nil {
		return m, err
	}
	return m, m.Decode(body)
}

// closeObject handles Close: of one of the client's statements by itself, of anything else by
// the server.
func (s *session) closeObject() error {
	m, err := s.named()
	if err != nil {
		return err
	}
	return s.locked(func() {
		if s.st.skipping {
			return
		}
		name := string(statementKey([]byte(m.Name)))
		st := s.stmts[name]
		if m.Object == pgwire.ObjectStatement && (st != nil || ours([]byte(m.Name))) {
			if st != nil {
				delete(s.stmts, name)
				s.stmtBytes -= st.cost()
				s.pending = append(s.pending, name)
			}
			s.st.push(op{kind: opSaidClose, st: st, name: name})
			s.sayLocal()
			return
		}
		if m.Object == pgwire.ObjectStatement && m.Name == "" {
			if _, ok := s.change(op{kind: opClose}, true); ok {
				s.noUnnamed()
			}
		} else {
			s.st.push(op{kind: opClose})
		}
		s.out = (*pgwire.Close)(&m).Append(s.out)
	})
}

// sayLocal gives the client the answers of our own that are due. mu is held.
func (s *session) sayLocal() {
	for !s.partial {
		o, ok := s.st.local()
		if !ok {
			return
		}
		s.c.Writer.Send(&pgwire.CloseComplete{})
		if o.st != nil {
			s.b.texts.put(o.st.sharedText)
		}
	}
}

// undo corrects the maps after an error: the server did nothing of what failed, and of what was
// on its way after it. mu is held where a server reader runs.
func (s *session) undo() {
	for _, o := range slices.Backward(s.st.undone) {
		switch o.kind {
		case opParse, opInjectedParse:
			if o.on == nil {
				continue // unnamed
			}
			s.srv.stmts.remove(o.on)
			s.forget(o.name, o.st)
		case opInjectedClose:
			if o.name != "" {
				s.srv.stmts.stale = append(s.srv.stmts.stale, o.name)
			}
		case opSaidClose:
			switch {
			case o.st == nil:
			case s.stmts[o.name] == nil:
				s.own(o.name, o.st)
			default:
				s.b.texts.put(o.st.sharedText)
			}
		}
	}
	clear(s.st.undone)
	s.st.undone = s.st.undone[:0]
}

// forget takes a name the client did not get after all.
func (s *session) forget(name string, st *statement) {
	if st == nil || name == "" || s.stmts[name] != st {
		return
	}
	delete(s.stmts, name)
	s.stmtBytes -= st.cost()
	s.b.texts.put(st.sharedText)
}

// deallocateAll notes that a server connection, and the client's view, lost all statements but the
// unnamed one.
func (s *session) deallocateAll() {
	s.srv.stmts.clear()
	clear(s.standing)
	if s.c.Mode == Transaction {
		s.forgetStatements()
	}
}

// reject answers a message that cannot be passed on with an error, as the server would: the
// server is asked to parse what is no SQL, so that its error comes in turn and everything up to
// the next Sync is skipped there as well as here; the client gets our text. mu is held.
func (s *session) reject(code, message string) {
	s.rejectWith(errorResponse(pgwire.SeverityError, code, message, ""))
}

func (s *session) rejectWith(m *pgwire.ErrorResponse) {
	if _, ok := s.change(op{kind: opRejected, err: m}, false); ok {
		s.srv.unnamed = 0
		s.sendParse("", rejectSQL+"\x00\x00\x00")
	}
}

// rejectSQL is not SQL.
const rejectSQL = "headpond: rejected"
