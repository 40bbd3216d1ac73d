package pgproxy

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// serverMessage judges the server's next message. It returns the actions pass, take, more, fatal and refuse; with
// more, n is at most the length of the message. After the message has been handled, call sendLocalAnswers. An error
// means that the server has broken the protocol: its later messages are useless.
func (m *machine) serverMessage(msg message) (action, error) {
	if n := wanted(msg); len(msg.body) < n {
		return action{do: more, n: n}, nil
	}
	o := m.st.first()
	switch {
	case m.st.stray(msg.typ):
		return action{do: pass}, nil
	case o != nil && o.kind.isOwn() && (!asynchronous(msg.typ) || msg.typ == pgwire.TypeNoticeResponse): // notices are then for the gateway
		return m.ownAnswer(msg)
	case m.st.replaying() && msg.typ != pgwire.TypeNotificationResponse:
		return m.replayAnswer(msg)
	}
	if asynchronous(msg.typ) {
		if act, done, err := m.aside(o, msg); done {
			return act, err
		}
	}
	m.completedTemps(o, msg)
	status := pgwire.TxStatus(0)
	switch msg.typ {
	case pgwire.TypeErrorResponse:
		return m.failed(msg.body)
	case pgwire.TypeReadyForQuery:
		if status = pgwire.TxStatus(firstByte(msg.body)); msg.size() != 1 || !status.Valid() {
			return action{}, fmt.Errorf("%w: ReadyForQuery", errBackendProtocol)
		}
		if m.refusedReplay {
			return m.unready()
		}
		m.restated()
		m.vacated()
		if status == pgwire.TxIdle {
			m.endTemps(m.st.tx != pgwire.TxIdle) // a block that no COMMIT has ended before
			m.startOver()
			m.rolledBack = m.rolledBack && m.server.flags&leftSettings != 0
			m.unreported = m.unreported && m.server.flags&leftSettings != 0
		}
		if o != nil && o.deallocates() {
			m.notDeallocated(o.name)
		}
		m.unexposed = nil
	case pgwire.TypeCommandComplete:
		if tagLeavesState(msg.body) {
			m.commandDone(msg.body)
		}
	case pgwire.TypeParameterDescription, pgwire.TypeRowDescription, pgwire.TypeNoData:
		if o.describesStatement() {
			if n := min(msg.size(), maxPeek); len(msg.body) < n {
				return action{do: more, n: n}, nil
			}
			m.described(o, msg)
		}
	case pgwire.TypeParseComplete:
		m.parsed()
	}
	forward, err := m.st.answer(msg.typ, status)
	m.server.mustClose = m.server.mustClose || m.st.spoiled
	if status == pgwire.TxIdle {
		m.concluded() // before the client receives ReadyForQuery
	}
	if m.single && err == nil && status != 0 && status != pgwire.TxIdle {
		return action{do: refuse}, nil
	}
	if !forward {
		if msg.typ == pgwire.TypeReadyForQuery && err == nil {
			m.restored()
		}
		return action{do: take}, err
	}
	return action{do: pass}, err
}

// aside judges a message that a server may send at any time. If done is false, it is passed on, and answers nothing.
func (m *machine) aside(o *op, msg message) (act action, done bool, err error) {
	switch msg.typ {
	case pgwire.TypeNotificationResponse:
		if m.mode == Transaction && !m.listens && m.server.pins&traceChannels == 0 {
			m.server.flags |= leftListen // a function listened: the notification may be for another client
			return action{do: take}, true, nil
		}
		if m.mode == Transaction {
			m.ownNotification(msg.body)
		}
	case pgwire.TypeNoticeResponse:
		return action{do: take}, o != nil && o.takesNotices(), nil
	case pgwire.TypeParameterStatus:
		if o != nil && o.kind == opInjectedExecute && m.mode == Transaction { // of setReading: servers before PostgreSQL 14 report at once
			_, _, err = m.report(msg.body)
			return action{do: take}, true, err
		}
		act, err = m.parameter(msg.body)
		return act, true, err
	}
	return action{}, false, nil
}

// answersOwn reports whether the server is answering a request of the gateway's own.
func (m *machine) answersOwn() bool {
	o := m.st.first()
	return o != nil && o.kind.isOwn()
}

// asynchronous reports whether servers send this type of message at any time.
func asynchronous(typ byte) bool {
	return typ == pgwire.TypeNotificationResponse || typ == pgwire.TypeParameterStatus || typ == pgwire.TypeNoticeResponse
}

// wanted returns how much of a server's message has to be examined, in bytes.
func wanted(msg message) int {
	switch msg.typ {
	case pgwire.TypeReadyForQuery, pgwire.TypeParameterStatus:
		return msg.size()
	case pgwire.TypeCommandComplete:
		return min(msg.size(), maxTag)
	case pgwire.TypeErrorResponse:
		return min(msg.size(), peekSize)
	case pgwire.TypeNotificationResponse:
		return min(msg.size(), pidSize)
	}
	return 0
}

// pidSize is the size of a process ID, with which notifications begin, in bytes.
const pidSize = 4

// maxTag is how much of a command tag is examined, in bytes: the longest tag that matters has 15.
const maxTag = 32

func firstByte(b []byte) byte {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// unchanging reports whether a complete message of the server changes nothing, so that it is passed on without being
// judged: rows, and in the answer to a Query, where no op ends before ReadyForQuery, also the messages around them.
// inQuery is the result of the method inQuery.
func unchanging(inQuery bool, typ byte, body []byte) bool {
	switch typ {
	case pgwire.TypeDataRow, pgwire.TypeCopyData:
		return true
	case pgwire.TypeRowDescription:
		return inQuery
	case pgwire.TypeCommandComplete:
		return inQuery && !tagLeavesState(body)
	}
	return false
}

// inQuery reports whether the server is answering a Query. ok is false if no message may be passed on without being
// judged. If nothing is owed, an unexpected message makes the server connection doubtful, and must be found at its
// release.
func (m *machine) inQuery() (is, ok bool) {
	o := m.st.first()
	if o == nil || o.kind.isOwn() || o.kind == opReplay || m.st.strays > 0 {
		return false, false
	}
	return o.kind == opQuery && !o.deallocates() && !o.temps && !m.tempsOpen && !m.st.copyOut && m.st.ignored == 0, true
}

// passesUnchanged reports whether serverMessage would pass a complete message on unchanged, without messages of the
// machine. The fast path leaves all other messages, and what comes after them, to the session.
func (m *machine) passesUnchanged(typ byte, body []byte) bool {
	o := m.st.first()
	if o == nil || o.kind.isOwn() || o.kind == opReplay || m.st.strays > 0 {
		return false
	}
	switch typ {
	case pgwire.TypeDataRow, pgwire.TypeEmptyQueryResponse:
		return true
	case pgwire.TypeRowDescription, pgwire.TypeNoData, pgwire.TypeParseComplete, pgwire.TypeBindComplete, pgwire.TypePortalSuspended:
		return !o.kind.injected()
	case pgwire.TypeNoticeResponse:
		return !o.takesNotices()
	case pgwire.TypeCommandComplete:
		return !tagLeavesState(body) && !o.kind.injected() && !o.temps && !m.tempsOpen
	case pgwire.TypeReadyForQuery:
		if len(body) != 1 || o.deallocates() || o.silent || o.temps || m.tempsOpen || m.refusedReplay || m.vacating != nil || m.restate && m.server.view != m.reported {
			return false
		}
		status := pgwire.TxStatus(body[0])
		return status == pgwire.TxActive && !m.single || status == pgwire.TxIdle && !m.reset && (m.mode == Session || m.server.flags&leftSettings == 0)
	}
	return false
}

// report decodes a ParameterStatus, and records its value for the server connection. news is false if the client has
// that value already.
func (m *machine) report(body []byte) (p pgwire.ParameterStatus, news bool, err error) {
	if m.expected(body) {
		return p, false, nil
	}
	if err := p.Decode(body); err != nil {
		return p, false, err
	}
	m.server.parameter(pgwire.Param(p))
	return p, true, nil
}

// parameter judges a ParameterStatus. The client gets it if it changes the client's view.
func (m *machine) parameter(body []byte) (action, error) {
	p, news, err := m.report(body)
	if !news {
		return action{do: take}, err
	}
	if m.replay || m.refusedReplay {
		return action{do: take}, nil // a report of settings that are not the client's
	}
	if i := tracked(p.Name); i >= 0 {
		view := m.reported.Value()
		if view.known[i] && view.value[i] == p.Value {
			return action{do: take}, nil
		}
		view.value[i], view.known[i] = p.Value, true
		m.reports |= 1 << i
		m.reported = unique.Make(view)
		m.settingChanged()
		if planned(trackedNames[i]) {
			m.replan()
		}
	}
	return action{do: pass}, nil
}

// settingChanged records that the server connection's settings have changed since it was leased,
// and that statements may have been prepared under the new ones.
func (m *machine) settingChanged() {
	m.server.flags |= leftSettings
	if m.prepared {
		m.server.flags |= leftPrepare
	}
}

// tagLeavesState reports whether the command with this tag may leave state behind. commandDone handles only such tags.
func tagLeavesState(tag []byte) bool {
	if len(tag) == 0 || strings.IndexByte("SRLPDA", tag[0]) >= 0 {
		return !bytes.HasPrefix(tag, []byte("SELECT "))
	}
	return bytes.HasPrefix(tag, []byte("CREATE ")) || bytes.HasPrefix(tag, []byte("IMPORT ")) || bytes.HasPrefix(tag, []byte("COMMIT PREPARED"))
}

// commandDone notes, by the tag of a CommandComplete, what state the command leaves behind.
func (m *machine) commandDone(tag []byte) {
	switch string(tag) {
	case "SET\x00":
		if o := m.st.first(); o == nil || !o.local {
			m.settingChanged()
		}
		m.reset = m.reset || m.defaults
	case "RESET\x00":
		m.settingChanged()
		m.reset, m.settingsReset = true, true
	case "LISTEN\x00":
		m.server.flags |= leftListen
		m.listens = true
	case "PREPARE\x00":
		m.server.flags |= leftPrepare
	case "DECLARE CURSOR\x00":
		m.server.flags |= leftCursor
	case "ROLLBACK\x00":
		m.rolledBack = true
		if o := m.st.first(); o != nil {
			o.temps = false
		}
		m.endTemps(true)
	case "DISCARD PLANS\x00":
		m.readAgain()
	case "DISCARD SEQUENCES\x00":
		m.forgets()
	case "DISCARD ALL\x00":
		m.forgets()
		m.settingChanged()
		m.customBack = append(m.customBack, everything)
		m.reset, m.settingsReset, m.reports = true, true, 1<<len(trackedNames)-1 // all of them, also those for which nothing is reported
		m.deallocateAll()
	case "DEALLOCATE ALL\x00":
		m.deallocateAll()
	case "DEALLOCATE\x00":
		m.deallocated()
	default:
		if m.shared.knowledge.on {
			m.define(m.tagDefines(tag))
		}
	}
}

// failed judges an ErrorResponse. b is the beginning of its body.
func (m *machine) failed(b []byte) (action, error) {
	if isFatal(b) {
		return action{do: fatal}, nil
	}
	m.rolledBack = true
	if m.st.tx == pgwire.TxIdle {
		m.endTemps(true)
	}
	var instead *pgwire.ErrorResponse
	if bytes.Contains(b, []byte("\x00C25006\x00")) {
		m.server.refusedWrite()
	}
	if o := m.st.first(); o != nil {
		o.temps = false
		if o.deallocates() {
			m.notDeallocated(o.name)
		}
		if o.kind == opQuery {
			instead = o.err
		}
		switch {
		case o.on == nil:
		case o.kind == opParse || o.kind == opInjectedParse: // see undo
			o.on.text.accepted.Store(false)
		case slices.ContainsFunc(statementErrors, func(code []byte) bool { return bytes.Contains(b, code) }):
			o.on.text.accepted.Store(false)
			m.server.stmts.retire(o.on)
		}
	}
	if _, err := m.st.answer(pgwire.TypeErrorResponse, 0); err != nil {
		return action{}, err
	}
	m.undoUnnamed(m.st.undone)
	m.undo()
	if m.st.failed.silent {
		m.restoresAgain = m.restoresAgain || bytes.Contains(b, []byte("\x00C"+pgwire.StateQueryCanceled+"\x00"))
		return action{do: take}, nil
	}
	m.st.erred = true
	if instead == nil {
		instead = cmp.Or(m.inPlaceOfError(), m.inPlaceOfUnexposed(b))
	}
	if instead != nil {
		m.addToClient(instead)
		return action{do: take}, nil
	}
	return action{do: pass}, nil
}

// isFatal reports whether an ErrorResponse ends the session. b is the beginning of its body.
func isFatal(b []byte) bool {
	return bytes.Contains(b, []byte("\x00VFATAL\x00")) || bytes.Contains(b, []byte("\x00VPANIC\x00"))
}

// statementErrors are beginnings of the SQLSTATE in an ErrorResponse about a prepared statement that may differ from
// what parsing it now would make: its plan must not change its result type (0A000); something that it was planned
// with is gone, or has another type or name (42); a type is unknown to the system tables (XX); a function has
// deallocated it (26000). The statement's next user has it parsed again.
var statementErrors = [][]byte{[]byte("\x00C0A000\x00"), []byte("\x00C42"), []byte("\x00CXX"), []byte("\x00C26000\x00")}

// inPlaceOfError returns the error to send in place of the server's, nil to pass the server's on. It replaces the error
// of a message that the gateway made fail, and of Bind of a statement that differs from the client's description.
func (m *machine) inPlaceOfError() *pgwire.ErrorResponse {
	switch failed := &m.st.failed; {
	case failed.kind == opRejected:
		return failed.err
	case failed.kind == opBind && failed.st != nil && failed.st == m.redescribed:
		return outdated()
	}
	return nil
}
