package pgproxy

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode the gateway keeps the prepared statements: it maps a client's names to names on server
// connections. A client's Parse is always sent, so that the statement gets its present meaning. The new statement
// also serves other clients that prepared the same text before. On a server connection without a usable statement,
// the gateway prepares it again.

// maxNames bounds the beginning of a Bind that has the names, in bytes: a Reader can show as much.
const maxNames = 16 << 10

// maxName is the length to which servers truncate the names of statements, in bytes (NAMEDATALEN without the zero).
const maxName = 63

// statementKey returns a name as servers keep it.
func statementKey(name []byte) []byte { return name[:min(len(name), maxName)] }

// rejectTooLarge rejects a Parse of size bytes.
func (m *machine) rejectTooLarge(name string, size int) {
	m.reject(pgwire.StateConfigLimitExceeded, fmt.Sprintf(
		"prepared statement %q takes %d bytes: those of one client may take %d in transaction mode, and %d are taken",
		name, size, maxClientStatements, m.stmtBytes))
}

// canJudgeName reports whether a message that uses or creates a statement can be judged before earlier messages are
// answered. has says whether the statement should exist.
func (m *machine) canJudgeName(name []byte, has bool) bool {
	if len(name) == 0 {
		return m.knowsUnnamed()
	}
	return !m.sweeping && (!m.st.endsBetween() || m.st.queries == 0 && m.nameCertain(string(name), has))
}

// nameCertain reports whether the client has a statement of a name, or has none, as has says, whatever the pending
// answers will be.
func (m *machine) nameCertain(name string, has bool) bool {
	st := m.stmts[name]
	if (st != nil) != has || m.maybeSkipped(name) || len(m.pending) >= maxPending {
		return false
	}
	if !has {
		return true
	}
	m.chooseText(st)
	on := m.server.stmts.find(st.sharedText)
	return on == nil || !m.maybeSkipped(on.name)
}

// maxPending bounds work.pending.
const maxPending = 1000

// maybeSkipped reports whether the server may have skipped messages about a statement before the last Sync.
func (m *machine) maybeSkipped(name string) bool { return slices.Contains(m.pending[:m.synced], name) }

// parseNamed gives the client a statement, and returns take; or it returns adapt, place, wait or renew, and has done nothing.
func (m *machine) parseNamed(name string, full, body []byte) verb {
	if m.doubtful[name] && !m.st.skipping {
		m.forget(name, m.stmts[name])
	}
	switch size := len(body) + statementOverhead; {
	case m.st.skips():
		return take
	case m.stmts[name] != nil:
		m.reject(pgwire.StateDuplicatePrepared, "prepared statement \""+string(full)+"\" already exists")
		return take
	case m.stmtBytes+size > maxClientStatements:
		m.rejectTooLarge(name, size)
		return take
	}
	text := m.textFor(body)
	left := text.tracesOf(m.shared.knowledge.now.Load())
	names := m.executedByText(left, text)
	switch {
	case m.defersTo(left):
		m.shared.texts.put(text)
		return adapt
	case m.awaitsPlace(left):
		m.shared.texts.put(text)
		return place
	case m.exposesLater(left, names):
		m.shared.texts.put(text)
		return wait
	}
	if left&traceShows != 0 {
		if before := m.beforeShowing(body, nil); before != pass {
			m.shared.texts.put(text)
			return before
		}
	}
	if waits, e := m.listInBlock(left); waits {
		m.shared.texts.put(text)
		return wait
	} else if e = cmp.Or(e, m.refusal(left)); e != nil {
		m.shared.texts.put(text)
		m.rejectWith(e)
		return take
	}
	m.exposeNames(names)
	if left&traceShows != 0 {
		m.restoreNames(body)
	}
	m.guardReads(left)
	probes := (m.server.pins|m.traces)&traceStatements != 0
	if probes {
		m.probe(name, body)
	}
	st := &statement{sharedText: text, since: notYet, loose: m.settingsUnsynced, moment: m.moments.now}
	m.addOwnStatement(name, st)
	if len(m.fresh) < maxAlone {
		m.fresh = append(m.fresh, name)
	}
	m.pending = append(m.pending, name)
	m.prepare(st, present, op{kind: opParse, name: name, swaps: probes})
	return take
}

// textFor returns the text of a client's Parse, with a reference.
func (m *machine) textFor(body []byte) *sharedText {
	text := m.shared.texts.get(m.plan, present, 0, body)
	if of := m.privacy(text); of != 0 {
		m.shared.texts.put(text)
		text = m.shared.texts.get(m.plan, present, of, body)
	}
	return text
}

// probe makes the server refuse the Parse that follows if SQL has prepared a statement of that name.
func (m *machine) probe(name string, body []byte) {
	m.closeStandIn(name)
	m.st.push(op{kind: opInjectedParse, swaps: true})
	m.sendParse(name, string(body))
	m.st.push(op{kind: opInjectedClose})
	m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
}

// addOwnStatement adds a statement to the client's, under a name.
func (m *machine) addOwnStatement(name string, st *statement) {
	if m.stmts == nil {
		m.stmts = make(map[string]*statement)
	}
	m.stmts[name] = st
	m.stmtBytes += st.cost()
	delete(m.doubtful, name)
}

// prepare sends Parse for a client's statement under a new name, to be read under read. o is the op for the answer. The
// server must not be skipping messages.
func (m *machine) prepare(st *statement, read unique.Handle[reading], o op) *serverStatement {
	srv, on := m.server, m.shared.texts.newServerStatement(st.sharedText)
	if st.own == 0 {
		st.own = on.at
	}
	commits := m.needsCommit(st.alone, read)
	m.beginReading(read, false)
	o.st, o.on = st, on
	m.st.push(o)
	m.prepared = true
	m.pending = append(m.pending, on.name)
	if srv.flags&leftSettings != 0 {
		srv.flags |= leftPrepare // settings other than those of st.plan
	}
	srv.stmts.add(on)
	m.sendParse(on.name, st.body)
	m.endReading(read, false, commits)
	if st.isDescribed() && m.st.push(op{kind: opInjectedDescribe, st: st, on: on}) {
		m.ask(&pgwire.Describe{Object: pgwire.ObjectStatement, Name: on.name})
	}
	srv.stmts.retireSurplus()
	for range 3 { // long texts aside, that is more than this statement adds
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

// closeOnServer closes a statement that serves no client any more.
func (m *machine) closeOnServer(name string) {
	if m.st.push(op{kind: opInjectedClose, name: name}) {
		m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: name})
	}
}

// ensure prepares the client's statement on the server connection unless that has one that serves, and returns the
// name there. If ok is false, the client's message was rejected.
func (m *machine) ensure(name []byte) (server string, st *statement, on *serverStatement, ok bool) {
	if len(name) == 0 {
		m.ensureUnnamed()
		return "", nil, nil, true
	}
	st = m.stmts[string(statementKey(name))]
	switch {
	case st == nil && isGatewayName(name):
		m.reject(pgwire.StateInvalidStatementName, "prepared statement \""+string(name)+"\" does not exist")
		return "", nil, nil, false
	case st == nil:
		m.closeStandIn(string(statementKey(name)))
		return string(name), nil, nil, true // PREPARE in this transaction made it, or the server's error is the best answer
	}
	m.chooseText(st)
	if on = m.server.stmts.use(st); on == nil && st.read != present && !m.canSet() {
		m.move(st, present)
		on = m.server.stmts.use(st)
	}
	if on == nil {
		if m.redescribed == st {
			m.redescribed = nil
		}
		on = m.prepare(st, m.readOf(st), op{kind: opInjectedParse})
		if st.isDescribed() {
			m.describedAgain = st
		}
	}
	return on.name, st, on, true
}

// ensureFor is ensure for Bind of a statement that leaves some traces. A statement that lists prepared statements
// runs under the client's own name, so that its list shows it by that name.
func (m *machine) ensureFor(name []byte, left traces) (server string, st *statement, on *serverStatement, ok bool) {
	if left&traceLists != 0 && len(name) > 0 {
		key := string(statementKey(name))
		if st = m.stmts[key]; st != nil && (m.underClientName[key] == st || m.exposeInPipeline(key)) {
			return key, st, nil, true
		}
	}
	return m.ensure(name)
}

// isGatewayName reports whether a name on the server is one of the gateway's.
func isGatewayName(name []byte) bool { return bytes.HasPrefix(name, []byte(namePrefix)) }

// sendLocalAnswers gives the client the gateway's own answers that are due.
func (m *machine) sendLocalAnswers() {
	if !m.st.hasLocalAnswer() {
		return
	}
	for !m.partial {
		o, ok := m.st.local()
		if !ok {
			return
		}
		if o.kind == opSaidReady {
			m.addToClient(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
			continue
		}
		m.addToClient(&pgwire.CloseComplete{})
		if o.st != nil {
			m.shared.texts.put(o.st.sharedText)
		}
	}
}

// undo corrects the maps after an error: the server executed neither the failed message nor the skipped ones after
// it.
func (m *machine) undo() {
	for _, o := range slices.Backward(m.st.undone) {
		switch o.kind {
		case opParse, opInjectedParse:
			if o.on == nil {
				switch {
				case o.local:
					m.setUnderClientName(o.name, nil)
				case o.kind == opInjectedParse && o.name != "":
					m.server.stmts.unstale(o.name)
				}
				continue // unnamed, or of exposeInPipeline or inject
			}
			m.server.stmts.remove(o.on)
			m.forget(o.name, o.st)
		case opInjectedClose:
			switch {
			case o.local:
				m.setUnderClientName(o.name, nil)
			case o.name != "":
				m.server.stmts.stale = append(m.server.stmts.stale, o.name)
			}
		case opSaidClose:
			switch {
			case o.st == nil:
			case m.stmts[o.name] == nil:
				m.addOwnStatement(o.name, o.st)
			default:
				m.shared.texts.put(o.st.sharedText)
			}
		}
	}
	clear(m.st.undone)
	m.st.undone = m.st.undone[:0]
}

// forget removes a statement that the client has not got after all, or has no longer.
func (m *machine) forget(name string, st *statement) {
	if st == nil || name == "" || m.stmts[name] != st {
		return
	}
	delete(m.stmts, name)
	m.stmtBytes -= st.cost()
	m.shared.texts.put(st.sharedText)
}

// deallocateAll notes that the server connection and the client have lost all their statements but the unnamed one.
func (m *machine) deallocateAll() {
	m.server.stmts.clear()
	clear(m.underClientName)
	if m.mode == Transaction {
		m.forgetStatements()
	}
}

// forgetStatements drops the client's statements.
func (m *machine) forgetStatements() {
	for _, st := range m.stmts {
		m.shared.texts.put(st.sharedText)
	}
	m.stmts, m.stmtBytes = nil, 0
}

// reject answers a message that cannot be passed on with an error, as a server would. The server is asked to parse
// invalid SQL, so that its error comes in order, and the server skips everything up to the next Sync just as the
// machine does. The client gets the gateway's text.
func (m *machine) reject(code, message string) {
	m.rejectWith(errorResponse(pgwire.SeverityError, code, message, ""))
}

func (m *machine) rejectWith(e *pgwire.ErrorResponse) {
	m.listing = listing{}
	if _, ok := m.change(op{kind: opRejected, err: e}, false); ok {
		m.server.unnamed = 0
		m.sendParse("", rejectSQL+"\x00\x00\x00")
	}
}

// rejectSQL is not valid SQL.
const rejectSQL = "headpond: rejected"
