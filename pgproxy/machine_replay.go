package pgproxy

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode a leased server connection that has other settings than the client gets the client's settings
// in the same write as the client's first request. This is the replay: BEGIN, a SELECT of set_config for each setting,
// and COMMIT, in the extended protocol and without Sync. So the client's request runs in a transaction of its own. If
// the server refuses a setting, it skips everything up to the next Sync, including a Query: no statement of the client
// runs under other settings than its own. The server's answers to the replay go no further. A request with a Query has
// no Sync, so after a refusal the machine itself sends ReadyForQuery. After a refusal the server connection is not used
// any more, and before the client's next request the settings are applied in a separate round trip. That also happens
// whenever replays returns false.

// replays reports whether a replay can give the client's settings to a server connection that the client has leased
// or is about to lease. The settings of both must be known, and no request of the gateway's own may come between,
// because its Sync would end the skipping.
func (m *machine) replays(srv *serverState) bool {
	if m.mode != Transaction || m.startupUnconfirmed || m.applySettingsFirst || m.sub != nil || srv.flags != 0 || len(srv.underClientName) > 0 {
		return false
	}
	if m.hidesSequences() && srv.sequencesOf.staleFor(m) { // see forgetFirst
		return false
	}
	if m.buffersStuck(srv) {
		return false
	}
	i, view := tracked("client_encoding"), m.reported.Value()
	return view.value[i] == srv.params.value[i] && replayable(srv.settings) && replayable(m.settingsKey)
}

// replayable reports whether a replay can replace or apply the settings of a key. A change of role forbids some
// settings and resets others; a short timeout might hit the replay itself.
func replayable(key string) bool {
	for key != "" {
		var name, value string
		name, value, key = nextSetting(key)
		switch {
		case len(name) == len("role") && strings.EqualFold(name, "role"), strings.EqualFold(name, "session_authorization"):
			return false
		case strings.EqualFold(name, "statement_timeout"), strings.EqualFold(name, "transaction_timeout"):
			if !patientTimeout(value) {
				return false
			}
		}
	}
	return true
}

// patientTimeout reports whether the value of a timeout means no timeout, or at least a second. It understands the
// usual spellings.
func patientTimeout(value string) bool {
	digits := strings.TrimRight(value, "abcdefghijklmnopqrstuvwxyz ")
	n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 63)
	if err != nil {
		return false
	}
	switch strings.TrimSpace(value[len(digits):]) {
	case "", "ms":
		return n == 0 || n >= 1000
	case "s", "min", "h", "d":
		return true
	}
	return false
}

// nextSetting splits off the first setting of a key that is not empty; see keyOf.
func nextSetting(key string) (name, value, rest string) {
	setting, rest, _ := strings.Cut(key, "\x00")
	name, value, _ = strings.Cut(setting, "=")
	return name, value, rest
}

// settingIn returns the value of a setting in a key.
func settingIn(key, name string) (value string, ok bool) {
	for key != "" {
		var n, v string
		n, v, key = nextSetting(key)
		if strings.EqualFold(n, name) {
			return v, true
		}
	}
	return "", false
}

// planReplay arranges that the client's next request takes the client's settings to the server connection, which was
// just leased with others. It returns false, and has done nothing, if a replay is not possible.
func (m *machine) planReplay() bool {
	if !m.replays(m.server) {
		return false
	}
	m.replay = true
	return true
}

// replayWith puts the replay, if it is due, before a message that has been judged, in toServer and in the queue. The
// replay must precede everything that the server answers: even a Sync gets it, after a Close that the gateway answered.
func (m *machine) replayWith(msg message, act action) {
	if msg.typ == pgwire.TypeFlush {
		return // settings make no difference to Flush, and it is not answered
	}
	if act.do != pass && act.do != passRest && len(m.toServer) == 0 {
		return // nothing is sent
	}
	m.replay = false
	behind := len(m.toServer)
	m.toServer = m.appendReplay(m.toServer)
	m.server.settings = m.settingsKey
	if len(m.toServer) == behind {
		return // the settings differ only in what this server does not report
	}
	rotate(m.toServer, behind)
	m.st.addFirst(op{kind: opReplay})
	m.restate = true
	m.noteOwnSettings()
	m.noteNamesOfSettings()
}

// rotate moves the first n bytes to the end.
func rotate(b []byte, n int) {
	if n == 0 {
		return
	}
	slices.Reverse(b[:n])
	slices.Reverse(b[n:])
	slices.Reverse(b)
}

// replayStatements are the names of the three statements of which a replay consists. The first replay on a server
// connection prepares them, so that the server does not parse and plan them each time.
type replayStatements struct{ begin, set, commit string }

// Their texts. BEGIN has the isolation level so that SELECT waits for no other transaction, whatever the client has set.
const (
	replayBegin  = "BEGIN ISOLATION LEVEL READ COMMITTED"
	replaySet    = "SELECT pg_catalog.set_config($1,$2,false)"
	replayCommit = "COMMIT"
)

// newReplayStatements returns new names. Nobody can guess them, see namePrefix.
func newReplayStatements() *replayStatements {
	return &replayStatements{namePrefix + rand.Text(), namePrefix + rand.Text(), namePrefix + rand.Text()}
}

// appendBegin appends the messages that execute BEGIN. If first is true, they also prepare the statements, BEGIN before
// it is executed and the others after that: preparing a SELECT takes a snapshot, with the isolation level that is the
// server connection's default. That may wait for other transactions, and BEGIN could not choose the level any more.
func (r *replayStatements) appendBegin(b []byte, first bool) []byte {
	if !first {
		return appendRun(b, r.begin)
	}
	b = appendRun((&pgwire.Parse{Name: r.begin, Query: replayBegin}).Append(b), r.begin)
	b = (&pgwire.Parse{Name: r.set, Query: replaySet}).Append(b)
	return (&pgwire.Parse{Name: r.commit, Query: replayCommit}).Append(b)
}

// staleClosed is how many retired statements a replay closes when it prepares its own: more than it can have added.
const staleClosed = 6

// appendReplay appends the messages that give the server connection the client's settings, none if it has them.
func (m *machine) appendReplay(b []byte) []byte {
	start, stmts := len(b), &m.server.stmts
	if m.shared.losing.Load() {
		stmts.retireReplay()
	}
	run := stmts.replay
	if run == nil {
		run = newReplayStatements()
	}
	b = run.appendBegin(b, stmts.replay == nil)
	from := len(b)
	view, srv := m.reported.Value(), m.server
	for i, name := range trackedNames {
		if srv.params.known[i] && view.known[i] && srv.params.value[i] != view.value[i] {
			b = appendSet(b, run.set, name, view.value[i])
		}
	}
	if srv.settings != m.settingsKey {
		b = m.appendOthers(b, run.set, &view)
	}
	if len(b) == from {
		return b[:start]
	}
	if stmts.replay == nil {
		stmts.replay = run
		for range staleClosed {
			if name := stmts.nextStale(); name != "" {
				b = (&pgwire.Close{Object: pgwire.ObjectStatement, Name: name}).Append(b)
			}
		}
	}
	return appendRun(b, run.commit)
}

// appendOthers appends the calls of the statement set that apply the client's unreported settings.
func (m *machine) appendOthers(b []byte, set string, view *trackedParams) []byte {
	for rest := m.server.settings; rest != ""; {
		var name string
		name, _, rest = nextSetting(rest)
		if i := tracked(name); i >= 0 && m.server.params.known[i] && view.known[i] {
			continue // the server reports it, and it has the client's value by now
		}
		if _, ok := settingIn(m.settingsKey, name); !ok {
			b = appendReset(b, set, name)
		}
	}
	for rest := m.settingsKey; rest != ""; {
		var name, value string
		name, value, rest = nextSetting(rest)
		if has, ok := settingIn(m.server.settings, name); !ok || has != value {
			b = appendSet(b, set, name, value)
		}
	}
	return b
}

// appendRun appends the messages that execute a prepared statement without parameters.
func appendRun(b []byte, statement string) []byte {
	return endRun(beginRun(b, statement, 0, 0))
}

// appendSet appends the messages that execute the statement of set_config for a setting.
func appendSet(b []byte, statement, name, value string) []byte {
	b = beginRun(b, statement, 2, 4+len(name)+4+len(value))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(name))), name...)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
	return endRun(b)
}

// appendReset is appendSet with NULL as the value, which resets the setting.
func appendReset(b []byte, statement, name string) []byte {
	b = beginRun(b, statement, 2, 4+len(name)+4)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(name))), name...)
	return endRun(binary.BigEndian.AppendUint32(b, math.MaxUint32))
}

// beginRun appends the beginning of a Bind with params parameters, which take size bytes; endRun appends its end and
// the Execute.
func beginRun(b []byte, statement string, params byte, size int) []byte {
	const fixed = 1 + 1 + 3*2 // the ends of two names, and three counts
	b = pgwire.AppendHeader(b, pgwire.TypeBind, fixed+len(statement)+size)
	b = append(append(append(b, 0), statement...), 0)
	return append(b, 0, 0, 0, params)
}

func endRun(b []byte) []byte { return append(append(b, 0, 0), executeUnnamed...) }

// executeUnnamed executes the unnamed portal.
var executeUnnamed = (&pgwire.Execute{}).Append(nil)

// replaying reports whether the server is answering the replay, or has not begun to.
func (s *state) replaying() bool {
	o := s.first()
	return o != nil && o.kind == opReplay
}

// behindReplay reports whether a message has to wait for the answer to the replay, or for another server connection:
// it does not belong to the one request that the server skips if it refuses the replay.
func (m *machine) behindReplay(typ byte) bool {
	if m.refusedReplay {
		return m.st.ends > 0 || !m.st.skipping
	}
	return m.st.replaying() && (m.st.ends > 0 || typ == pgwire.TypeQuery || typ == pgwire.TypeFunctionCall)
}

// defersTo reports whether a statement has to wait until the server connection has the client's settings, because
// requests of the gateway's own may have to precede it; see replays. left is judge's result for the statement.
func (m *machine) defersTo(left traces) bool {
	return m.replay && left&(traceUnknown|traceUnread|traceStatements|traceLists|traceReads) != 0
}

// replayAnswer judges a message of the server that answers the replay.
func (m *machine) replayAnswer(msg message) (action, error) {
	switch msg.typ {
	case pgwire.TypeErrorResponse:
		if isFatal(msg.body) {
			return action{do: fatal}, nil
		}
		if bytes.Contains(msg.body, []byte("\x00C"+pgwire.StateInvalidStatementName+"\x00")) {
			m.shared.losing.Store(true) // whatever deallocates them unseen, such as a trigger, will do so again
		}
		m.refused()
		return action{do: pass}, nil
	case pgwire.TypeParameterStatus:
		return m.respelled(msg.body)
	case pgwire.TypeCommandComplete:
		if string(msg.body) == "COMMIT\x00" {
			m.st.drop()
		}
		return action{do: take}, nil
	case pgwire.TypeParseComplete, pgwire.TypeBindComplete, pgwire.TypeDataRow, pgwire.TypeCloseComplete, pgwire.TypeNoticeResponse:
		return action{do: take}, nil
	}
	return action{}, fmt.Errorf("%w: type %q behind settings", errBackendProtocol, msg.typ)
}

// refused notes that the server has refused the replay, and skips the client's request. The client gets the server's
// error. The server connection is left in a failed transaction, of which the client does not learn: see unready.
func (m *machine) refused() {
	m.applySettingsFirst, m.refusedReplay, m.restate = true, true, false
	m.server.mustClose = true
	m.traces, m.checked = 0, 0
	m.st.fail()
	m.undoUnnamed(m.st.undone)
	query := slices.ContainsFunc(m.st.undone, func(o op) bool { return o.kind == opQuery })
	m.undo()
	if query {
		m.st.skipping, m.st.unsynced = false, false
		m.st.add(op{kind: opSaidReady})
	}
}

// unready judges the ReadyForQuery after a refused replay: the client is in no transaction.
func (m *machine) unready() (action, error) {
	if _, err := m.st.readyForQuery(pgwire.TxIdle); err != nil {
		return action{}, err
	}
	m.addToClient(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	return action{do: take}, nil
}

// expected accepts the report of a parameter that already has the client's value, as after a replay, without
// allocating. It returns false, and has done nothing, for any other report.
func (m *machine) expected(body []byte) bool {
	name, value, ok := bytes.Cut(body, []byte{0})
	value, rest, ended := bytes.Cut(value, []byte{0})
	if !ok || !ended || len(rest) > 0 {
		return false
	}
	i, view := tracked(string(name)), m.reported.Value()
	if i < 0 || !view.known[i] || view.value[i] != string(value) {
		return false
	}
	srv := m.server
	srv.params.value[i], srv.params.known[i] = view.value[i], true
	if srv.params == view {
		srv.view = m.reported
	} else {
		srv.view = unique.Make(srv.params)
	}
	return true
}

// respelled judges the report of a setting during the replay: servers before PostgreSQL 14 report at once. The server
// may spell the value its own way.
func (m *machine) respelled(body []byte) (action, error) {
	p, news, err := m.report(body)
	if !news {
		return action{do: take}, err
	}
	view := m.reported.Value()
	if i := tracked(p.Name); i >= 0 && view.known[i] && view.value[i] != p.Value {
		view.value[i] = p.Value
		m.reported = unique.Make(view)
		m.replan()
	}
	return action{do: take}, nil
}

// restates reports whether a message may be the report of a setting that the replay has changed.
func (m *machine) restates(typ byte) bool { return m.restate && typ == pgwire.TypeParameterStatus }

// restated tells the client of settings to which its request has given the values that the server connection had
// before the replay. PostgreSQL 14 and later report a setting only if it differs from the last report, once, before
// ReadyForQuery, and so do not report these.
func (m *machine) restated() {
	if !m.restate {
		return
	}
	m.restate = false
	if m.server.view == m.reported {
		return
	}
	view := m.reported.Value()
	for i, name := range trackedNames {
		if value := m.server.params.value[i]; m.server.params.known[i] && view.known[i] && view.value[i] != value {
			view.value[i] = value
			m.reports |= 1 << i
			m.addToClient(&pgwire.ParameterStatus{Name: name, Value: value})
			m.settingChanged()
		}
	}
	if now := unique.Make(view); now != m.reported {
		m.reported = now
		m.replan()
	}
}
