package pgproxy

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/headpond/headpond/pgwire"
)

// clientMessage judges the client's next message. An error means that the session ends; the machine has not changed.
func (m *machine) clientMessage(msg message) (action, error) {
	if err := checkClient(msg.typ, msg.size()); err != nil {
		return action{}, err
	}
	if msg.typ == pgwire.TypeTerminate {
		return action{do: end}, nil
	}
	if m.server == nil {
		return m.withoutServer(msg)
	}
	switch msg.typ {
	case pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail:
		return m.copied(msg), nil
	case pgwire.TypeFlush:
		return action{do: pass}, nil
	}
	if m.mode == Session {
		return m.inSession(msg)
	}
	if m.behindReplay(msg.typ) {
		return action{do: wait}, nil
	}
	if m.replay && m.st.empty() && !m.replays(m.server) {
		return action{do: adapt}, nil // another client's statements have changed the answer since the lease
	}
	act, err := m.inTransaction(msg)
	if m.progress != underWay && err == nil {
		m.noteProgress(msg, act)
	}
	if m.replay && err == nil {
		m.replayWith(msg, act)
	}
	return act, err
}

// inTransaction judges a message of a client in transaction mode that has a server connection. Messages about COPY
// are judged before.
func (m *machine) inTransaction(msg message) (action, error) {
	if m.staleSequences || len(m.server.underClientName) > 0 {
		m.forgetFirst(msg)
	}
	switch msg.typ {
	case pgwire.TypeQuery:
		return m.query(msg), nil
	case pgwire.TypeFunctionCall:
		return m.call(msg), nil
	case pgwire.TypeSync:
		m.unnamedNew, m.synced, m.settingsUnsynced = false, len(m.pending), false
		m.vacatesSynced()
		m.st.push(op{kind: opSync})
		return action{do: pass}, nil
	case pgwire.TypeParse:
		return m.parse(msg)
	case pgwire.TypeBind:
		return m.bind(msg)
	case pgwire.TypeDescribe:
		return m.describe(msg)
	case pgwire.TypeClose:
		return m.closeObject(msg)
	}
	return m.execute(msg), nil
}

// forgetFirst removes what other clients have left on the server, before a client's message outside a transaction.
func (m *machine) forgetFirst(msg message) {
	first := m.st.closed() && m.st.tx == pgwire.TxIdle
	if first && len(m.server.underClientName) > 0 {
		m.closeClientNames()
	}
	if m.staleSequences && (first || m.selecting) && m.hidesSequences() {
		if m.selecting = m.onlySelects(msg); !m.selecting {
			m.forgetSequences()
		}
	}
}

// extendedOps are the ops of messages of the extended protocol, by type.
var extendedOps = [256]opKind{
	pgwire.TypeParse: opParse, pgwire.TypeBind: opBind, pgwire.TypeDescribe: opDescribe, pgwire.TypeExecute: opExecute, pgwire.TypeClose: opClose,
}

// withoutServer judges a message while no server connection is leased.
func (m *machine) withoutServer(msg message) (action, error) {
	switch msg.typ {
	case pgwire.TypeCopyData, pgwire.TypeCopyDone, pgwire.TypeCopyFail, pgwire.TypeFlush:
		return action{do: take}, nil // the rest of a COPY that failed; servers ignore it too
	case pgwire.TypeSync:
		m.st.skipping = false
		m.addToClient(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
		return action{do: take}, nil
	}
	if m.st.skipping || m.reportUndone(msg) || m.refusesSettings(msg) {
		return action{do: take}, nil
	}
	switch {
	case m.mode != Transaction:
	case msg.typ == pgwire.TypeQuery:
		text, act := m.deallocating(msg)
		if act.do == more || text != "" && m.deallocate(text) {
			return act, nil
		}
	case msg.typ == pgwire.TypeParse:
		unnamed := len(msg.body) > 0 && msg.body[0] == 0
		return action{do: lease, later: !unnamed && msg.size() <= maxNames-headerSize}, nil
	}
	return action{do: lease}, nil
}

// copied judges a part of the client's COPY data.
func (m *machine) copied(msg message) action {
	if !m.st.copyIn && m.st.empty() {
		return action{do: take} // the rest of a COPY that failed; servers ignore it too
	}
	if msg.typ != pgwire.TypeCopyData {
		m.st.copyDone()
	}
	return action{do: pass}
}

// query judges Query in transaction mode.
func (m *machine) query(msg message) action {
	if n := msg.judged(); !msg.hasBody(n) {
		return action{do: more, n: n}
	}
	left, quiet := m.judgeBody(msg)
	if m.defersTo(left) {
		return action{do: adapt}
	}
	if m.awaitsPlace(left) {
		return action{do: place}
	}
	if left&traceShows != 0 {
		if before := m.beforeShowing(msg.body, nil); before != pass {
			return action{do: before}
		}
	}
	if e := m.refusalOfUse(left); e != nil {
		return m.refuseQuery(e)
	}
	if left&exposing != 0 {
		names := m.executedIn(left, msg.body)
		if m.exposesLater(left, names) {
			return action{do: wait}
		}
		switch waits, e := m.listInBlock(left); {
		case waits:
			return action{do: wait}
		case e != nil:
			return m.refuseQuery(e)
		}
		m.exposeNames(names)
	}
	if left&traceShows != 0 {
		m.restoreNames(msg.body)
	}
	if left&traceAlone != 0 {
		m.vacates(msg.body)
	}
	if quiet {
		m.note(left)
		if left&traceCustom != 0 {
			m.noteUnknownName()
		}
		m.pushQuery(op{kind: opQuery, ends: m.endsTransaction(msg.body)}, false)
		return action{do: pass}
	}
	text, act := m.deallocating(msg)
	drop := ""
	if text != "" {
		if m.canAnswerQuery() && m.deallocate(text) {
			return act
		}
		names := deallocations(text, m.reported.Value().value[tracked("client_encoding")])
		m.sweeping = m.sweeping || len(names) > 0 // so that learned waits for all answers
		if !m.learnedAll(names) {
			return action{do: wait}
		}
		drop = m.prepareStandIns(names)
	}
	m.note(left)
	again := m.noteSettings(msg.body, left).path || firstWord(msg.body, "discard")
	m.pushQuery(op{kind: opQuery, name: drop, local: onlyForTransaction(msg.body), ends: m.endsTransaction(msg.body)}, again)
	return action{do: pass}
}

// pushQuery records a Query that goes to the server. again is that of mayChange.
func (m *machine) pushQuery(o op, again bool) {
	m.mayChange(true, again || m.tempsNoted, true)
	o.temps, m.tempsNoted = m.tempsNoted, false
	if !m.dropUnnamed(o) {
		m.st.push(o)
	}
}

// call judges FunctionCall in transaction mode.
func (m *machine) call(msg message) action {
	if !msg.hasBody(oidSize) {
		return action{do: more, n: min(msg.size(), oidSize)}
	}
	if m.replay {
		return action{do: adapt}
	}
	if callsSetConfig(msg.body) {
		m.settingChanged()
		m.unnamedSetting = true
		m.noteUnknownName()
		m.note(traceCustom)
	} else {
		m.note(traceUnknown | tracesOfCall(msg.body))
	}
	m.mayChange(true, false, true)
	m.st.push(op{kind: opFunction})
	return action{do: pass}
}

func (m *machine) learnedAll(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !m.learned([]byte(name), true) })
}

// parse judges Parse.
func (m *machine) parse(msg message) (action, error) {
	if !msg.hasBody(peekSize) {
		return action{do: more, n: min(msg.size(), peekSize)}, nil
	}
	i := bytes.IndexByte(msg.body, 0)
	if i == 0 {
		return m.parseUnnamed(msg), nil
	}
	if i < 0 {
		i = len(msg.body)
	}
	name := statementKey(msg.body[:i])
	if msg.size() > maxClientStatements {
		m.rejectTooLarge(string(name), msg.size())
		return action{do: take}, nil
	}
	if !m.learned(name, false) {
		return action{do: wait}, nil
	}
	if !msg.hasBody(msg.size()) {
		return action{do: more, n: msg.size()}, nil
	}
	full, body, ok := bytes.Cut(msg.body, []byte{0})
	if !ok {
		return action{}, fmt.Errorf("%w: no end of the name in Parse", pgwire.ErrMalformed)
	}
	return action{do: m.parseNamed(string(name), full, body)}, nil
}

// bind judges Bind. It is passed on with the statement's name on the server.
func (m *machine) bind(msg message) (action, error) {
	portal, name, n, err := pgwire.BindNames(msg.body)
	if err != nil {
		return m.unreadNames(msg, err)
	}
	if !m.learned(statementKey(name), true) {
		return action{do: wait}, nil
	}
	if m.st.skips() {
		return action{do: take}, nil
	}
	if m.readsLater(name) {
		return action{do: wait}, nil
	}
	left := m.tracesOfExecute(name)
	if m.defersTo(left) {
		return action{do: adapt}, nil
	}
	if m.awaitsPlace(left) {
		return action{do: place}, nil
	}
	shows, before := m.bindShows(left, name, msg.body)
	if before != pass {
		return action{do: before}, nil
	}
	if e := m.refusalOfUse(left); e != nil {
		m.rejectWith(e)
		return action{do: take}, nil
	}
	if left&exposing != 0 {
		names := m.executedBound(left, name)
		if m.exposesLater(m.listsBehind(left, name), names) {
			return action{do: wait}, nil
		}
		switch waits, e := m.listInBlock(left); {
		case waits:
			return action{do: wait}, nil
		case e != nil:
			m.rejectWith(e)
			return action{do: take}, nil
		}
		m.exposeNames(names)
	}
	m.restoreNames(shows)
	m.tempsNoted = false
	m.note(left)
	m.tempsBound, m.tempsNoted = m.tempsNoted, false
	server, st, on, ok := m.ensureFor(name, left)
	if !ok {
		return action{do: take}, nil
	}
	if len(name) == 0 {
		m.unnamed.once = m.unnamedNew
	}
	m.noteSweep(portal, name, st)
	m.noteBound(name, st, left)
	m.bound, m.boundOn, m.portal = st, on, append(m.portal[:0], portal...)
	m.st.push(op{kind: opBind, st: st, on: on, ends: m.noteBind(name, st, left)})
	if on == nil {
		return action{do: pass}, nil // under the client's name
	}
	m.toServer = pgwire.AppendHeader(m.toServer, pgwire.TypeBind, msg.size()-len(name)+len(server))
	m.toServer = append(append(m.toServer, portal...), 0)
	m.toServer = append(append(m.toServer, server...), 0)
	return action{do: passRest, n: n}, nil
}

// unreadNames judges a Bind whose names are not all there.
func (m *machine) unreadNames(msg message, err error) (action, error) {
	switch {
	case !msg.hasBody(peekSize):
		return action{do: more, n: min(msg.size(), peekSize)}, nil
	case !msg.hasBody(maxNames):
		return action{do: more, n: min(msg.size(), maxNames)}, nil
	case msg.size() > maxNames:
		m.reject(pgwire.StateProgramLimitExceeded, fmt.Sprintf("the names in Bind take more than %d bytes", maxNames))
		return action{do: take}, nil
	}
	return action{}, err
}

// listsBehind returns whether a statement with these traces, which is bound, lists prepared statements behind other messages. If only its own Parse
// is not answered, it has waited when it was parsed.
func (m *machine) listsBehind(left traces, name []byte) traces {
	if m.st.ends > 0 || m.st.empty() {
		return left & traceLists
	}
	switch last := m.st.queue[len(m.st.queue)-1]; {
	case last.kind != opParse && last.kind != opInjectedParse:
	case len(name) == 0 && last.on == nil, len(name) > 0 && last.st == m.stmts[string(statementKey(name))]:
		return 0
	}
	return left & traceLists
}

// noteBound is noteSettings for a prepared statement, and notes the database that it needs for itself; st is nil for the unnamed one.
func (m *machine) noteBound(name []byte, st *statement, left traces) {
	m.alone = ""
	switch {
	case left&traceAlone != 0 && st != nil:
		m.alone = databaseAlone([]byte(st.body))
	case left&traceAlone != 0:
		m.alone = databaseAlone(m.unnamed.text)
	case st != nil && st.sets:
		m.noteSettings([]byte(st.body), left)
	case len(name) == 0 && m.unnamed.sets:
		m.noteSettings(m.unnamed.text, left)
	case left&traceCustom != 0:
		m.noteUnknownName()
	}
}

// describe judges Describe.
func (m *machine) describe(msg message) (action, error) {
	object, name, act, err := m.named(msg)
	if act.do != pass || err != nil {
		return act, err
	}
	if m.st.skips() {
		return action{do: take}, nil
	}
	var st *statement
	var on *serverStatement
	switch {
	case object == pgwire.ObjectStatement && m.readsLater(name):
		return action{do: wait}, nil
	case object == pgwire.ObjectStatement:
		m.alone = "" // the server may wait for a lock first
		server, of, by, ok := m.ensure(name)
		if !ok {
			return action{do: take}, nil
		}
		st, on, m.describedAgain = of, by, nil
		if on != nil {
			m.st.push(op{kind: opDescribe, st: st, on: on})
			m.ask(&pgwire.Describe{Object: object, Name: server})
			return action{do: take}, nil
		}
	case m.bound != nil && bytes.Equal(name, m.portal):
		if m.describedAgain == m.bound && m.bound.parameters == 0 {
			m.describedAgain = nil
		}
		if m.prepared || m.bound.columns == 0 {
			st, on = m.bound, m.boundOn
		}
	}
	m.st.push(op{kind: opDescribe, st: st, on: on})
	return action{do: pass}, nil
}

// named returns the object and name in a Describe or Close, with the action pass; or another action.
func (m *machine) named(msg message) (object byte, name []byte, act action, err error) {
	if !msg.hasBody(msg.size()) {
		return 0, nil, action{do: more, n: msg.size()}, nil
	}
	if len(msg.body) < 2 || bytes.IndexByte(msg.body[1:], 0) != len(msg.body)-2 {
		return 0, nil, action{}, errBadMessage(msg.typ, msg.size())
	}
	object, name = msg.body[0], msg.body[1:len(msg.body)-1]
	if object == pgwire.ObjectStatement && !m.learned(statementKey(name), true) {
		return 0, nil, action{do: wait}, nil
	}
	return object, name, action{do: pass}, nil
}

// closeObject judges Close. The gateway itself answers Close of one of the client's statements, the server any other.
func (m *machine) closeObject(msg message) (action, error) {
	object, full, act, err := m.named(msg)
	if act.do != pass || err != nil {
		return act, err
	}
	if m.st.skips() {
		return action{do: take}, nil
	}
	name := string(statementKey(full))
	st := m.stmts[name]
	switch {
	case m.st.copyIn: // the server ends its connection: no Close may come in the data
		m.st.push(op{kind: opClose})
	case object == pgwire.ObjectStatement && (st != nil || isGatewayName(full)):
		if st != nil {
			m.closeStandIn(name)
			delete(m.stmts, name)
			m.stmtBytes -= st.cost()
			m.pending = append(m.pending, name)
		}
		if m.st.strays > 0 { // the answer comes after those
			m.st.push(op{kind: opInjectedClose})
			m.ask(&pgwire.Close{Object: pgwire.ObjectStatement, Name: namePrefix})
		}
		m.st.push(op{kind: opSaidClose, st: st, name: name})
		m.sendLocalAnswers()
		return action{do: take}, nil
	case object == pgwire.ObjectStatement && name == "":
		if _, ok := m.change(op{kind: opClose}, true); ok {
			m.noUnnamed()
		}
	default:
		m.st.push(op{kind: opClose})
	}
	return action{do: pass}, nil
}

// execute judges Execute. It waits for the server's description of a statement that was prepared again: if it differs
// from the client's, Execute gets the error that a server would send.
func (m *machine) execute(msg message) action {
	if st := m.describedAgain; st != nil {
		if !m.canJudgeAgain() {
			return action{do: wait}
		}
		m.describedAgain = nil
		if m.redescribed == st && !m.st.skipping && !m.st.copyIn {
			m.rejectWith(outdated())
			return action{do: take}
		}
	}
	if !msg.hasBody(peekSize) {
		return action{do: more, n: min(msg.size(), peekSize)}
	}
	portal, _, _ := bytes.Cut(msg.body, []byte{0})
	drop := ""
	if len(m.drops) > 0 {
		if name, ok := m.drops[string(portal)]; ok {
			if !m.learned([]byte(name), true) {
				return action{do: wait}
			}
			drop = m.prepareStandIns([]string{name})
		}
	}
	if !m.st.unsynced || !m.st.bound || !bytes.Equal(portal, m.portal) { // noteBind was before, perhaps in another pipeline
		m.mayChange(true, false, false)
	}
	m.st.push(op{kind: opExecute, name: drop, on: m.boundOn, temps: m.tempsBound})
	return action{do: pass}
}

// parseLater answers Parse of a text that a server has accepted before, if the Parse comes alone, or with Sync only,
// while every server connection is in use. The statement is parsed when it is first used. Otherwise a program that
// waits for the answer in the thread that would end its other clients' transactions, as pgbench does, might wait for
// ever. It returns false, and has done nothing, if that is not possible. The message must be whole.
func (m *machine) parseLater(msg message) (done bool) {
	full, body, _ := bytes.Cut(msg.body, []byte{0})
	name := string(statementKey(full))
	if name == "" || m.stmts[name] != nil || m.stmtBytes+len(body)+statementOverhead > maxClientStatements {
		return false
	}
	text := m.shared.texts.getAccepted(m.plan, body)
	if text == nil {
		return false
	}
	m.addOwnStatement(name, &statement{sharedText: text, since: m.shared.texts.last.Add(1), moment: m.moments.now})
	m.addToClient(&pgwire.ParseComplete{})
	return true
}
