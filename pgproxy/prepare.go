package pgproxy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode prepared statements are the gateway's: a client's names are mapped to
// names shared by all, and a statement is prepared again where a server connection lacks it.

// parse forwards Parse.
func (s *session) parse(h pgwire.Header) error {
	start, err := s.c.Reader.Peek(peekSize)
	if err != nil {
		return err
	}
	i := bytes.IndexByte(start, 0)
	if i < 0 {
		return fmt.Errorf("%w: the name in Parse is longer than %d bytes", pgwire.ErrMalformed, len(start))
	}
	if i == 0 {
		return s.parseUnnamed(h)
	}
	name := string(start[:i])
	if h.Len > maxStatement {
		if err := s.c.Reader.Skip(); err != nil {
			return err
		}
		return s.locked(func() {
			s.reject(pgwire.StateProgramLimitExceeded, fmt.Sprintf(
				"prepared statement %q takes %d bytes, the limit in transaction mode is %d", name, h.Len, maxStatement))
		})
	}
	if err := s.learn(start[:i], false); err != nil {
		return err
	}
	body, err := s.c.Reader.Body()
	if err != nil {
		return err
	}
	return s.locked(func() { s.parseNamed(name, body[i+1:]) })
}

// learn waits for the answers to what the client sent before, where a message about a statement
// cannot be judged without: the client has the name although it should not, or the other way
// round, and that may be because what it sent was skipped; or something may be deallocating it. The
// message must not have been consumed.
func (s *session) learn(name []byte, has bool) error {
	s.hold()
	known := s.st.empty() || s.st.copyIn || s.knows(name, has)
	s.letGo()
	if known {
		return nil
	}
	return s.catchUp()
}

// catchUp waits for the answers to what was sent before.
func (s *session) catchUp() error {
	s.hold()
	pumping := s.pumping
	s.learning = true
	s.letGo()
	s.srv.w.Send(&pgwire.Flush{})
	if err := s.flushServer(); err != nil {
		return err
	}
	s.c.Working()
	defer s.c.Done()
	for !pumping && !s.st.empty() && !s.st.copyIn {
		if _, err := s.fromServer(); err != nil {
			return err
		}
	}
	s.pumps.Wait() // it has ended, or will when it has learned
	s.both, s.learning = false, false
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
	return (st != nil) == has && !s.uncertain(name) && !(has && s.uncertain(st.name)) && len(s.pending) < maxPending
}

// maxPending bounds session.pending.
const maxPending = 1000

// uncertain reports whether what the client sent about a statement before the last Sync has perhaps
// been skipped.
func (s *session) uncertain(name string) bool { return slices.Contains(s.pending[:s.synced], name) }

// locked runs fn with mu held, and then sends what fn put into s.out to the server.
func (s *session) locked(fn func()) error {
	s.hold()
	fn()
	s.letGo()
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
func (s *session) parseNamed(name string, body []byte) {
	if s.doubtful[name] && !s.st.skipping {
		s.forget(name, s.stmts[name])
	}
	switch {
	case s.st.skipping:
		return
	case s.stmts[name] != nil:
		s.reject(pgwire.StateDuplicatePrepared, fmt.Sprintf("prepared statement %q already exists", name))
		return
	case s.stmtBytes+len(body)+statementOverhead > maxClientStatements:
		s.reject(pgwire.StateConfigLimitExceeded, fmt.Sprintf(
			"the prepared statements of this client take more than %d bytes", maxClientStatements))
		return
	}
	st := s.b.stmts.get(s.plan, body)
	s.own(name, st)
	if len(s.fresh) < maxAlone {
		s.fresh = append(s.fresh, name)
	}
	s.pending = append(s.pending, name)
	switch {
	case !s.srv.stmts.has(st):
	case s.st.tx == pgwire.TxFailed || s.uncertain(st.name): // the server is to say what it thinks of it
		s.srv.stmts.doubt(st)
	default:
		s.st.push(op{kind: opSaidParse, name: name})
		s.sayLocal()
		return
	}
	s.prepare(st, op{kind: opParse, st: st, name: name})
}

// parseKnown answers Parse without a server connection if the statement is known to be good: a
// client that prepares while others hold every connection need not wait for one. mu is held.
func (s *session) parseKnown(h pgwire.Header) (done bool, err error) {
	if h.Len > maxKnown {
		return false, nil
	}
	body, err := s.c.Reader.Peek(h.Len)
	if err != nil {
		return false, err
	}
	i := bytes.IndexByte(body, 0)
	if i <= 0 || s.stmts[string(body[:i])] != nil || s.stmtBytes+h.Len+statementOverhead > maxClientStatements {
		return false, nil
	}
	st := s.b.stmts.known(s.plan, body[i+1:])
	if st == nil {
		return false, nil
	}
	s.own(string(body[:i]), st)
	s.c.Writer.Send(&pgwire.ParseComplete{})
	return true, s.c.Reader.Skip()
}

// maxKnown bounds the Parse messages parseKnown looks at, in bytes: what a Reader can show.
const maxKnown = 16 << 10

// own gives the client a statement under a name. mu is held.
func (s *session) own(name string, st *statement) {
	if s.stmts == nil {
		s.stmts = make(map[string]*statement)
	}
	s.stmts[name] = st
	s.stmtBytes += st.cost()
	delete(s.doubtful, name)
}

// prepare sends Parse for a statement under its name on servers; o is what will be answered.
// mu is held.
func (s *session) prepare(st *statement, o op) {
	srv := s.srv
	if srv.stmts.stale[st] || s.uncertain(st.name) {
		delete(srv.stmts.stale, st)
		s.closeOnServer(st)
	}
	if !s.st.push(o) {
		return
	}
	s.prepared = true
	s.pending = append(s.pending, st.name)
	if srv.dirt&dirtSettings != 0 {
		srv.dirt |= dirtPrepare // under settings that are not those of st.plan
	}
	srv.stmts.add(st)
	s.sendParse(st.name, st.body)
	if st.told() && s.st.push(op{kind: opInjectedDescribe, st: st, name: o.name}) {
		s.out = (&pgwire.Describe{Object: pgwire.ObjectStatement, Name: st.name}).Append(s.out)
	}
	for old := srv.stmts.surplus(); old != nil; old = srv.stmts.surplus() {
		s.closeOnServer(old)
	}
	for range 2 { // more than this one can add
		if old := srv.stmts.anyStale(); old != nil {
			s.closeOnServer(old)
		}
	}
}

func (s *session) sendParse(name, body string) {
	b := pgwire.AppendHeader(s.out, pgwire.TypeParse, len(name)+1+len(body))
	s.out = append(append(append(b, name...), 0), body...)
}

// closeOnServer closes a statement the client knows nothing of. mu is held.
func (s *session) closeOnServer(st *statement) {
	if s.st.push(op{kind: opInjectedClose, st: st}) {
		s.pending = append(s.pending, st.name)
		s.out = (&pgwire.Close{Object: pgwire.ObjectStatement, Name: st.name}).Append(s.out)
	}
}

// ensure sees to it that the server connection has the client's statement of a name, and
// returns the name it has there. Without ok the message that names it was rejected. mu is held.
func (s *session) ensure(name []byte) (server string, st *statement, ok bool) {
	if len(name) == 0 {
		s.ensureUnnamed()
		return "", nil, true
	}
	st = s.stmts[string(name)]
	switch {
	case st == nil && ours(name):
		s.reject(pgwire.StateInvalidStatementName, fmt.Sprintf("prepared statement %q does not exist", name))
		return "", nil, false
	case st == nil:
		s.standOut(string(name))
		return string(name), nil, true // by PREPARE in this transaction, or the server's error is the best one
	case st.plan != s.plan:
		old := st
		st = s.b.stmts.get(s.plan, []byte(old.body))
		s.b.stmts.put(old)
		s.stmts[string(name)] = st
	}
	if !s.srv.stmts.has(st) {
		if s.unlike == st {
			s.unlike = nil
		}
		s.prepare(st, op{kind: opInjectedParse, st: st})
		if st.told() {
			s.unseen = st
		}
	}
	return st.name, st, true
}

// ours reports whether a name on the server is one of our own.
func ours(name []byte) bool { return bytes.HasPrefix(name, []byte(namePrefix)) }

// bind forwards Bind with the statement's name on the server.
func (s *session) bind(h pgwire.Header) error {
	start, err := s.c.Reader.Peek(peekSize)
	if err != nil {
		return err
	}
	portal, name, n, err := pgwire.BindNames(start)
	if err == nil {
		err = s.learn(name, true)
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
		server, st, ok := s.ensure(name)
		if skip = !ok; skip {
			return
		}
		if len(name) == 0 {
			s.unnamed.once = s.unnamedNew
		}
		s.noteSweep(portal, name, st)
		s.bound, s.portal = st, append(s.portal[:0], portal...)
		s.st.push(op{kind: opBind, st: st})
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
		switch {
		case m.Object == pgwire.ObjectStatement:
			s.x.likely = false
			var ok bool
			if m.Name, st, ok = s.ensure([]byte(m.Name)); !ok {
				return
			}
			s.unseen = nil
		case s.bound != nil && m.Name == string(s.portal):
			if s.unseen == s.bound && s.bound.parameters.Load() == 0 {
				s.unseen = nil
			}
			if s.prepared || s.bound.columns.Load() == 0 {
				st = s.bound
			}
		}
		s.st.push(op{kind: opDescribe, st: st})
		s.out = m.Append(s.out)
	})
}

// named decodes the body of a Describe or Close, which are alike.
func (s *session) named() (m pgwire.Describe, err error) {
	start, err := s.c.Reader.Peek(peekSize)
	if err == nil && len(start) > 1 && start[0] == pgwire.ObjectStatement {
		err = s.learn(start[1:len(start)-1], true)
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
		st := s.stmts[m.Name]
		if m.Object == pgwire.ObjectStatement && (st != nil || ours([]byte(m.Name))) {
			if st != nil {
				delete(s.stmts, m.Name)
				s.stmtBytes -= st.cost()
				s.pending = append(s.pending, m.Name)
			}
			s.st.push(op{kind: opSaidClose, st: st, name: m.Name})
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
		if o.kind == opSaidParse {
			s.c.Writer.Send(&pgwire.ParseComplete{})
			continue
		}
		s.c.Writer.Send(&pgwire.CloseComplete{})
		if o.st != nil {
			s.b.stmts.put(o.st)
		}
	}
}

// undo corrects the maps after an error: the server did nothing of what failed, and of what was
// on its way after it. mu is held where a pump runs.
func (s *session) undo() {
	var again map[string]bool
	for _, o := range slices.Backward(s.st.undone) {
		switch o.kind {
		case opParse, opInjectedParse:
			if o.st == nil {
				continue // unnamed
			}
			if again == nil {
				again = repeated(s.pending)
			}
			s.srv.stmts.remove(o.st)
			if again[o.st.name] {
				s.srv.stmts.doubt(o.st) // prepared once more since
			}
			s.forget(o.name, o.st)
		case opSaidParse:
			s.forget(o.name, s.stmts[o.name])
		case opInjectedClose:
			if o.st != nil {
				s.srv.stmts.doubt(o.st)
			}
		case opSaidClose:
			switch {
			case o.st == nil:
			case s.stmts[o.name] == nil:
				s.own(o.name, o.st)
			default:
				s.b.stmts.put(o.st)
			}
		}
	}
	clear(s.st.undone)
	s.st.undone = s.st.undone[:0]
}

// repeated tells the names that are there more than once.
func repeated(names []string) map[string]bool {
	again := make(map[string]bool, len(names))
	for _, name := range names {
		_, seen := again[name]
		again[name] = seen
	}
	return again
}

// forget takes a name the client did not get after all.
func (s *session) forget(name string, st *statement) {
	if st == nil || name == "" || s.stmts[name] != st {
		return
	}
	delete(s.stmts, name)
	s.stmtBytes -= st.cost()
	s.b.stmts.put(st)
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
