package pgproxy

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode prepared statements are the gateway's: a client's names are mapped to names on server
// connections. A client's Parse is always sent, so that the server gives its present meaning. The new statement also
// serves other clients that prepared the same text before; on a server connection without a usable one, the statement
// is prepared again.

// maxNames bounds the part of a Bind with its names, in bytes: as much as a Reader can show.
const maxNames = 16 << 10

// maxName is the length that servers cut names of statements to, in bytes (NAMEDATALEN without the zero).
const maxName = 63

// statementKey returns the key of a name.
func statementKey(name []byte) []byte { return name[:min(len(name), maxName)] }

// rejectTooLarge rejects a Parse of some bytes.
func (m *machine) rejectTooLarge(name string, size int) {
	m.reject(pgwire.StateConfigLimitExceeded, fmt.Sprintf(
		"prepared statement %q takes %d bytes: those of one client may take %d in transaction mode, and %d are taken",
		name, size, maxClientStatements, m.stmtBytes))
}

// knows reports whether a message that uses a statement, or is to make it, can be judged before earlier messages are
// answered.
func (m *machine) knows(name []byte, has bool) bool {
	if len(name) == 0 {
		return m.knowsUnnamed()
	}
	return !m.sweeping && (!m.st.endsBetween() || m.st.queries == 0 && m.certain(string(name), has))
}

// certain reports whether the client has a name, or has it not, as it should, whatever the answers
// to come are.
func (m *machine) certain(name string, has bool) bool {
	st := m.stmts[name]
	if (st != nil) != has || m.uncertain(name) || len(m.pending) >= maxPending {
		return false
	}
	if !has {
		return true
	}
	on := m.server.stmts.find(st.sharedText)
	return on == nil || !m.uncertain(on.name)
}

// maxPending bounds work.pending.
const maxPending = 1000

// uncertain reports whether messages about a statement before the last Sync may have been skipped.
func (m *machine) uncertain(name string) bool { return slices.Contains(m.pending[:m.synced], name) }

// parseNamed gives the client a statement. It reports false, having done nothing, where the server needs the client's settings first.
func (m *machine) parseNamed(name string, full, body []byte) (done bool) {
	if m.doubtful[name] && !m.st.skipping {
		m.forget(name, m.stmts[name])
	}
	switch size := len(body) + statementOverhead; {
	case m.st.skipping:
		return true
	case m.stmts[name] != nil:
		m.reject(pgwire.StateDuplicatePrepared, fmt.Sprintf("prepared statement %q already exists", full))
		return true
	case m.stmtBytes+size > maxClientStatements:
		m.rejectTooLarge(name, size)
		return true
	}
	text := m.shared.texts.get(m.plan, body)
	left := text.leaves(m.shared.knowledge.now.Load())
	if m.defersTo(left) {
		m.shared.texts.put(text)
		return false
	}
	if e := m.refusal(left); e != nil {
		m.shared.texts.put(text)
		m.rejectWith(e)
		return true
	}
	if m.mayExecute(left) {
		m.exposeNames(text.executes)
	}
	m.asks(left)
	if (m.server.pins|m.traces)&traceStatements != 0 {
		m.probe(name, body)
	}
	st := &statement{sharedText: text, since: notYet}
	m.own(name, st)
	if len(m.fresh) < maxAlone {
		m.fresh = append(m.fresh, name)
	}
	m.pending = append(m.pending, name)
	m.prepare(st, op{kind: opParse, name: name})
	return true
}

// probe has the server refuse a Parse if SQL has prepared a statement of its name.
func (m *machine) probe(name string, body []byte) {
	m.standOut(name)
	m.st.push(op{kind: opInjectedParse})
	m.sendParse(name, string(body))
	m.st.push(op{kind: opInjectedClose})
	m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
}

// own gives the client a statement under a name.
func (m *machine) own(name string, st *statement) {
	if m.stmts == nil {
		m.stmts = make(map[string]*statement)
	}
	m.stmts[name] = st
	m.stmtBytes += st.cost()
	delete(m.doubtful, name)
}

// prepare sends Parse for a client's statement under a new name; o is the op that will be answered. The server must not
// be skipping.
func (m *machine) prepare(st *statement, o op) *serverStatement {
	srv, on := m.server, m.shared.texts.newServerStatement(st.sharedText)
	if st.since == notYet {
		st.own = on.at
	}
	o.st, o.on = st, on
	m.st.push(o)
	m.prepared = true
	m.pending = append(m.pending, on.name)
	if srv.flags&leftSettings != 0 {
		srv.flags |= leftPrepare // under settings that are not those of st.plan
	}
	srv.stmts.add(on)
	m.sendParse(on.name, st.body)
	if st.isDescribed() && m.st.push(op{kind: opInjectedDescribe, st: st, on: on}) {
		m.ask(&pgwire.Describe{Object: pgwire.ObjectStatement, Name: on.name})
	}
	srv.stmts.surplus()
	for range 3 { // more than this one can add, but for long texts
		if name := srv.stmts.nextStale(); name != "" {
			m.closeOnServer(name)
		}
	}
	return on
}

func (m *machine) sendParse(name, body string) {
	b := pgwire.AppendHeader(m.toServer, pgwire.TypeParse, len(name)+1+len(body))
	m.toServer = append(append(append(b, name...), 0), body...)
}

// closeOnServer closes a statement that no client is served by any more.
func (m *machine) closeOnServer(name string) {
	if m.st.push(op{kind: opInjectedClose, name: name}) {
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	}
}

// ensure sees to it that the server connection has a statement that serves the client's of a name, and returns the name it has
// there. Without ok the message that names it was rejected.
func (m *machine) ensure(name []byte) (server string, st *statement, on *serverStatement, ok bool) {
	if len(name) == 0 {
		m.ensureUnnamed()
		return "", nil, nil, true
	}
	st = m.stmts[string(statementKey(name))]
	switch {
	case st == nil && ours(name):
		m.reject(pgwire.StateInvalidStatementName, fmt.Sprintf("prepared statement %q does not exist", name))
		return "", nil, nil, false
	case st == nil:
		m.standOut(string(statementKey(name)))
		return string(name), nil, nil, true // by PREPARE in this transaction, or the server's error is the best one
	case st.plan != m.plan:
		old := st.sharedText
		st.sharedText = m.shared.texts.get(m.plan, []byte(old.body))
		m.shared.texts.put(old)
	}
	if on = m.server.stmts.use(st); on == nil {
		if m.unlike == st {
			m.unlike = nil
		}
		on = m.prepare(st, op{kind: opInjectedParse})
		if st.isDescribed() {
			m.unseen = st
		}
	}
	return on.name, st, on, true
}

// ensureFor is ensure for Bind of a statement that leaves some traces. One that lists statements is listed under the client's name: that is the
// one that runs.
func (m *machine) ensureFor(name []byte, left traces) (server string, st *statement, on *serverStatement, ok bool) {
	if left&traceLists != 0 && len(name) > 0 {
		key := string(statementKey(name))
		if st = m.stmts[key]; st != nil && m.standing[key] == st {
			return key, st, nil, true
		}
	}
	return m.ensure(name)
}

// ours reports whether a name on the server is one of our own.
func ours(name []byte) bool { return bytes.HasPrefix(name, []byte(namePrefix)) }

// sayLocal gives the client the answers of our own that are due.
func (m *machine) sayLocal() {
	if !m.st.speaksNext() {
		return
	}
	for !m.partial {
		o, ok := m.st.local()
		if !ok {
			return
		}
		if o.kind == opSaidReady {
			m.say(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			continue
		}
		m.say(&pgwire.CloseComplete{})
		if o.st != nil {
			m.shared.texts.put(o.st.sharedText)
		}
	}
}

// undo corrects the maps after an error: the server executed neither the failed message nor those
// behind it.
func (m *machine) undo() {
	for _, o := range slices.Backward(m.st.undone) {
		switch o.kind {
		case opParse, opInjectedParse:
			if o.on == nil {
				continue // unnamed
			}
			m.server.stmts.remove(o.on)
			m.forget(o.name, o.st)
		case opInjectedClose:
			switch {
			case o.local:
				m.stand(o.name, nil)
			case o.name != "":
				m.server.stmts.stale = append(m.server.stmts.stale, o.name)
			}
		case opSaidClose:
			switch {
			case o.st == nil:
			case m.stmts[o.name] == nil:
				m.own(o.name, o.st)
			default:
				m.shared.texts.put(o.st.sharedText)
			}
		}
	}
	clear(m.st.undone)
	m.st.undone = m.st.undone[:0]
}

// forget takes a name the client did not get after all.
func (m *machine) forget(name string, st *statement) {
	if st == nil || name == "" || m.stmts[name] != st {
		return
	}
	delete(m.stmts, name)
	m.stmtBytes -= st.cost()
	m.shared.texts.put(st.sharedText)
}

// deallocateAll notes that a server connection, and the client's view, lost all statements but the
// unnamed one.
func (m *machine) deallocateAll() {
	m.server.stmts.clear()
	clear(m.standing)
	if m.mode == Transaction {
		m.forgetStatements()
	}
}

// forgetStatements gives the client's references back.
func (m *machine) forgetStatements() {
	for _, st := range m.stmts {
		m.shared.texts.put(st.sharedText)
	}
	m.stmts, m.stmtBytes = nil, 0
}

// reject answers a message that cannot be passed on with an error, as the server would: the server
// is asked to parse invalid SQL, so that its error comes in order and everything up to the next
// Sync is skipped there as well as here; the client gets our text.
func (m *machine) reject(code, message string) {
	m.rejectWith(errorResponse(pgwire.SeverityError, code, message, ""))
}

func (m *machine) rejectWith(e *pgwire.ErrorResponse) {
	if _, ok := m.change(op{kind: opRejected, err: e}, false); ok {
		m.server.unnamed = 0
		m.sendParse("", rejectSQL+"\x00\x00\x00")
	}
}

// rejectSQL is not SQL.
const rejectSQL = "headpond: rejected"
