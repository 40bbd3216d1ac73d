package pgproxy

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/headpond/headpond/pgwire"
)

// In transaction mode a client whose transaction has left state in its session that cannot follow it keeps its server connection until that
// state is gone: it is pinned. What a statement may leave is judged by its text (pintext.go). Where that is something which the server can
// tell of, the gateway has a look once the transaction is over: it asks the server, together with settings (keep.go), after the client
// has been given its answer, and before the server connection goes back to the pool. Transactions that may leave nothing are not followed by a
// look.

// OnState is what becomes, in transaction mode, of session state that cannot follow its client to another server connection: temporary
// tables, session-level advisory locks, SQL's PREPARE, cursors WITH HOLD and so on.
type OnState int

// What can become of it.
const (
	PinState    OnState = iota // the client keeps its server connection for as long as there is such state; the default
	RefuseState                // statements that announce it are refused (0A000); what is left unannounced is undone
	ResetState                 // it is undone before the next transaction
)

// String returns "pin", "refuse" or "reset".
func (o OnState) String() string {
	switch o {
	case RefuseState:
		return "refuse"
	case ResetState:
		return "reset"
	}
	return "pin"
}

// pinRules are a Proxy's, and the number of its clients that are pinned.
type pinRules struct {
	proxy  uint32        // a number of the Proxy's own
	on     atomic.Int32  // an OnState
	max    atomic.Int64  // server connections of a backend that may be pinned; 0 = the backend's pinCount.usual
	also   atomic.Uint32 // traces: those of Config.PinAlso
	pinned atomic.Int64

	listening atomic.Int64 // clients that listen by the listening connection
}

// proxies counts Proxies.
var proxies atomic.Uint32

// number is a number of the client's own among the clients of all Proxies.
func (c *Client) number() uint64 { return uint64(c.proxy.pins.proxy)<<32 | uint64(c.id) }

// set takes them over from a Config.
func (r *pinRules) set(cfg *Config) {
	r.on.Store(int32(cfg.OnState))
	r.max.Store(int64(cfg.MaxPinned))
	r.also.Store(uint32(cfg.PinAlso.traces()))
	if cfg.OnState != PinState {
		r.also.Store(0)
	}
}

// PinAlso are kinds of session state that pin a client only on request: hardly any client misses them, and many leave them in passing. It is a
// set: join them by |. The zero value is none.
type PinAlso uint8

// The kinds.
const (
	// PinSequences are the values that nextval, setval and inserts leave for currval and lastval, and the values of a sequence's CACHE that are not
	// used yet. Transactions that may have used a sequence are followed by a check, for which servers need PL/pgSQL.
	PinSequences PinAlso = 1 << iota
	// PinSettingNames are the names of custom settings, which servers keep, with an empty value, for as long as the connection lasts.
	PinSettingNames
	// PinTempBuffers is that temp_buffers cannot be changed any more once a temporary table was used.
	PinTempBuffers
)

// traces are the traces that mean them.
func (p PinAlso) traces() (all traces) {
	for i, of := range []traces{traceSequences, traceCustom, traceTemps} {
		if p>>i&1 != 0 {
			all |= of
		}
	}
	return all
}

// also are the traces that pin by Config.PinAlso.
func (m *machine) also() traces { return traces(m.rules.also.Load()) }

// pinCount counts the pinned server connections of a backend.
type pinCount struct {
	n     atomic.Int64
	usual atomic.Int64 // how many there may be where nothing else is said; 0 = 1
}

// setUsual leaves half of the connections to everybody else, where there are two.
func (c *pinCount) setUsual(maxSize int) { c.usual.Store(int64(max(maxSize/2, 1))) }

// limit is how many server connections of the backend may be pinned.
func (m *machine) pinLimit() int64 {
	return cmp.Or(m.rules.max.Load(), m.shared.pins.usual.Load(), 1)
}

// takePin takes a place among the pinned server connections, unless there are too many.
func (m *machine) takePin() bool {
	srv := m.server
	if srv.counted {
		return true
	}
	if m.shared.pins.n.Add(1) > m.pinLimit() {
		m.shared.pins.n.Add(-1)
		return false
	}
	srv.counted = true
	return true
}

// pin notes what pins the server connection, which has a place.
func (m *machine) pin(kinds traces) {
	if m.server.pins == 0 {
		m.rules.pinned.Add(1)
	}
	m.server.pin(kinds)
}

// unpin ends what takePin and pin began, if they did.
func (m *machine) unpin() {
	srv := m.server
	if srv == nil {
		return
	}
	srv.parkLater = false
	if srv.pins != 0 {
		srv.pin(0)
		m.rules.pinned.Add(-1)
	}
	if srv.counted {
		srv.counted = false
		m.shared.pins.n.Add(-1)
	}
}

// pin notes what pins the server connection.
func (s *serverState) pin(kinds traces) {
	s.pins = kinds
	s.shownPins.Store(uint32(kinds))
}

// unread reports whether a Query is too long to be judged.
func (m *message) unread() bool { return len(m.body) < m.size() || m.size() > maxJudgedQuery }

// judged returns how much of a Query is looked at, in bytes: all of it, or of one that is too long what a Reader shows.
func (m *message) judged() int {
	if m.size() > maxJudgedQuery {
		return maxPeek
	}
	return m.size()
}

// judgeBody judges the text of a Query, as much as is there. quiet is that of verdicts.judge.
func (m *machine) judgeBody(msg message) (left traces, quiet bool) {
	if msg.unread() {
		m.unread = true
		return traceUnknown | traceUnread | m.definesUnread(msg.body) | lastingIn(msg.body), false
	}
	return m.shared.verdicts.judge(m.shared.knowledge.now.Load(), msg.body)
}

// staying reports whether the client keeps its server connection beyond its transaction.
func (m *machine) staying() bool { return m.pinned || m.server != nil && m.server.pins != 0 }

// leftBy returns what the client's statement of a name may leave, when it is executed.
func (m *machine) leftBy(name []byte) traces {
	switch st := m.stmts[string(statementKey(name))]; {
	case len(name) == 0:
		return m.leftByUnnamed()
	case st != nil:
		return st.leaves(m.shared.knowledge.now.Load())
	case (m.server.pins|m.traces)&traceStatements != 0:
		return traceUnknown // by PREPARE
	}
	return 0
}

// asks has the server forget what it knows of sequences if a statement that is parsed, or about to run, may ask for that.
func (m *machine) asks(left traces) {
	if left&traceAsks != 0 && !m.shared.asked.Load() {
		m.shared.asked.Store(true)
	}
	if m.foreign && left&(traceAsks|traceUnknown) != 0 {
		m.forgetSequences()
	}
	m.guardLists(left)
}

// note notes what a statement that is about to run may leave.
func (m *machine) note(left traces) {
	if left == 0 {
		return
	}
	m.asks(left)
	m.drew = m.drew || left&(traceWrites|traceSequences|traceUnknown) != 0
	if left&traceDefines != 0 {
		m.define()
	}
	m.noteUse(left)
	if left &= suspicious | traceLess | traceSpoils | m.alsoNoted(); left == traceLess && m.server.pins == 0 {
		return
	}
	m.traces |= left
}

// alsoNoted returns what note notes by Config.PinAlso: nothing that the client is pinned for already.
func (m *machine) alsoNoted() (kinds traces) {
	also := m.also() &^ m.server.pins
	if kinds = also & lasting; also&traceSequences != 0 {
		kinds |= traceSequences | traceSetval | traceWrites
	}
	return kinds
}

// noteUse notes use of sequences by a client that is pinned for that: it counts if DISCARD SEQUENCES is among it.
func (m *machine) noteUse(left traces) {
	if m.also()&m.server.pins&traceSequences == 0 {
		return
	}
	if m.st.empty() && m.st.tx == pgwire.TxIdle {
		m.used = 0 // a transaction begins
	}
	m.used |= left & (traceSequences | traceSetval | traceWrites | traceUnknown)
}

// noteBrought notes what the settings that the client brings along leave, once the server gets them.
func (m *machine) noteBrought() {
	if m.mode == Transaction {
		m.traces |= m.brings()
	}
}

// brings returns what the client's settings leave on any server connection, of Config.PinAlso: names of custom ones, and tables of a search_path
// with pg_temp, which look like others.
func (m *machine) brings() (left traces) {
	also := m.also() & lasting
	if m.server != nil {
		also &^= m.server.pins
	}
	if also == 0 {
		return 0
	}
	for key := m.settingsKey; key != ""; {
		var name, value string
		name, value, key = nextSetting(key)
		left |= namesOf(name, true)
		if strings.EqualFold(name, "search_path") && strings.Contains(value, "pg_temp") {
			left |= traceTemps
		}
	}
	return left & also
}

// refusesBrought answers a message of a client whose settings leave what pins on request, while no more clients may be pinned. It reports false,
// having done nothing, for any other.
func (m *machine) refusesBrought(msg message) bool {
	left := m.brings()
	if left == 0 || m.mode != Transaction || m.shared.pins.n.Load() < m.pinLimit() {
		return false
	}
	m.say(m.tooManyPinned(fmt.Sprintf("the client's settings leave state in the session (%v)", left)))
	m.unleased(msg.typ)
	return true
}

// tellsSequences reports whether clients ask for values of sequences, or are pinned for them: others' are forgotten before a lease begins.
func (m *machine) tellsSequences() bool {
	return m.shared.asked.Load() || m.also()&traceSequences != 0
}

// drawnByMany is in serverState.drawn where several clients have used sequences.
const drawnByMany = math.MaxUint64

// forgetSequences has the server forget what currval and lastval would tell of other clients, before the message that is judged. It does
// nothing where the client itself may have used sequences, or in the middle of a pipeline.
func (m *machine) forgetSequences() {
	if m.drew || m.st.unsynced || m.st.skipping || m.st.copyIn || m.st.tx == pgwire.TxFailed {
		return
	}
	if m.askAlone("DISCARD SEQUENCES") {
		m.foreign, m.server.drawn = false, 0
	}
}

// refusal returns the error in the place of a statement, nil if it may run. A statement that announces state has a place among the pinned
// from then on, to the end of its transaction at least.
func (m *machine) refusal(left traces) *pgwire.ErrorResponse {
	if left&traceLasts != 0 {
		left |= traceObjects
	} else {
		left &^= traceObjects
	}
	if m.foreign && left&(traceAsks|traceSequences) == traceAsks && m.st.unsynced && !m.drew { // what asks has sent would be in the middle of a pipeline
		return errorResponse(pgwire.SeverityError, pgwire.StateNotInPrerequisiteState, "lastval and currval are not yet defined in this session", "")
	}
	kinds := evident | traceObjects
	if left&traceChannels != 0 && m.channelsPin() {
		kinds |= traceChannels
	}
	kinds |= m.also() & lasting
	if left |= m.traces & lasting; m.staying() { // see noteBrought
		left &^= m.server.pins & lasting
	}
	if left &= kinds; left == 0 || m.mode != Transaction {
		return nil
	}
	on := OnState(m.rules.on.Load())
	if on == ResetState { // undone afterwards, but for LISTEN: its client would wait for ever
		left &= traceChannels
	}
	switch {
	case left == 0:
	case on != PinState:
		e := errorResponse(pgwire.SeverityError, pgwire.StateFeatureNotSupported,
			fmt.Sprintf("this would leave state in the session (%v), which is not kept in transaction mode: on_session_state is %v", left, on), "")
		e.Hint = "Use a listener with on_session_state: pin, or with mode: session."
		return e
	case !m.takePin():
		m.server.doomed = m.server.doomed || m.traces&lasting != 0 // noteBrought's, of which nobody need be told
		m.traces &^= lasting
		return m.tooManyPinned(fmt.Sprintf("this would leave state in the session (%v)", left))
	}
	return nil
}

// channelsPin reports whether LISTEN will pin the client, as far as is known beforehand.
func (m *machine) channelsPin() bool {
	return m.server != nil && m.otherEncoding() || m.shared.cannotListen != nil && m.shared.cannotListen() != nil
}

// tooManyPinned is the error of a client that cannot be pinned.
func (m *machine) tooManyPinned(what string) *pgwire.ErrorResponse {
	return errorResponse(pgwire.SeverityError, pgwire.StateConfigLimitExceeded,
		fmt.Sprintf("%s, and no more clients may keep a server connection for that: max_pinned is %d", what, m.pinLimit()),
		"Raise max_pinned of the listener and max_size of the pool, use a listener with mode: session, or do without such state.")
}

// refuseQuery answers a Query with an error. The server is asked to run what is no SQL, so that it is where it would be after an error.
func (m *machine) refuseQuery(e *pgwire.ErrorResponse) action {
	if _, ok := m.change(op{kind: opQuery, err: e}, true); ok {
		m.noUnnamed()
		m.ask(&pgwire.Query{SQL: rejectSQL})
	}
	return action{do: take}
}

// look returns which kinds of state the server is to be asked for, now that the transaction is over, and whether it is to be asked for
// settings.
func (m *machine) look() (parts traces, settings bool) {
	srv := m.server
	parts = m.traces & lookable
	if m.traces&traceUnknown != 0 || m.traces != 0 && srv.pins != 0 {
		parts = lookable
	}
	if m.looksAtSequences(m.traces) {
		parts |= traceSequences
	}
	if m.traces&traceUnknown != 0 {
		srv.flags |= leftSettings
		m.unnamedSetting = true // the server does not list custom ones
	}
	if m.looked, m.traces = m.traces, 0; m.forgot {
		m.looked |= m.used
	}
	m.used = 0
	m.epoch = m.shared.knowledge.epochOn(srv)
	srv.doomed = srv.doomed || m.looked&(indelible|lasting|traceSpoils) != 0
	return parts, srv.flags&leftSettings != 0
}

// looksAtSequences reports whether the server is to be asked whether a transaction has used sequences, by what it may have left.
func (m *machine) looksAtSequences(left traces) bool {
	also := m.also()
	if !m.forgot {
		also &^= m.server.pins
	}
	return also&traceSequences != 0 && left&(traceSequences|traceWrites|traceUnknown|traceLess) != 0 && !m.foreign
}

// lookParts are the questions of a look. Names are qualified: the client's search_path may be anything.
var lookParts = []struct {
	of  traces
	sql string
}{
	{traceObjects, "EXISTS (SELECT FROM pg_catalog.pg_depend WHERE refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass" +
		" AND refobjid OPERATOR(pg_catalog.=) pg_catalog.pg_my_temp_schema())"},
	{traceLocks, "EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype OPERATOR(pg_catalog.=) 'advisory' AND pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid())"},
	{traceCursors, "EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE is_holdable)"},
	{traceStatements, "EXISTS (SELECT FROM pg_catalog.pg_prepared_statements WHERE from_sql)"},
	{traceChannels, "EXISTS (SELECT FROM pg_catalog.pg_listening_channels())"},
	{traceSequences, "pg_catalog.current_setting('xmlbinary') OPERATOR(pg_catalog.=) 'hex'"},
}

// usedSequencesSQL goes before a look at traceSequences, in its transaction: xmlbinary, which means nothing to it, is 'hex' if lastval has a
// value, or the client must not know it. Servers have no view of that, and an error of lastval that nobody catches would be in their logs.
const usedSequencesSQL = "SET LOCAL xmlbinary = base64;DO LANGUAGE plpgsql 'BEGIN BEGIN PERFORM pg_catalog.lastval();" +
	"EXCEPTION WHEN SQLSTATE ''55000'' THEN RETURN; WHEN OTHERS THEN NULL; END; SET LOCAL xmlbinary = hex; END';"

// lookSQL returns the expression of the kinds of state there are, of some, as a number.
func lookSQL(parts traces) string {
	var b strings.Builder
	b.WriteString("0")
	for _, part := range lookParts {
		if parts&part.of != 0 {
			fmt.Fprintf(&b, " OPERATOR(pg_catalog.+) CASE WHEN %s THEN %d ELSE 0 END", part.sql, part.of)
		}
	}
	return b.String()
}

// seenIn returns the kinds of state in the answer to lookSQL.
func seenIn(row pgwire.Param) traces {
	n, _ := strconv.ParseUint(row.Value, 10, 32)
	return traces(n) & (lookable | traceSequences)
}

// ownAnswer judges what the server says to a Query of the gateway's own.
func (m *machine) ownAnswer(msg message) (action, error) {
	switch msg.typ {
	case pgwire.TypeErrorResponse:
		if isFatal(msg.body) {
			return action{do: fatal}, nil
		}
		if o := m.st.first(); o.name != "" {
			m.notExposed(o, msg.body)
			return action{do: take}, nil
		}
		m.foreign, m.server.drawn = true, drawnByMany // a cancel request came late
		m.server.flags |= leftPrepare
	case pgwire.TypeReadyForQuery:
		_, err := m.st.ready(pgwire.TxStatus(firstByte(msg.body)))
		return action{do: take}, err
	}
	return action{do: take}, nil
}

// found deals with what the last transaction has left, but for settings: what a look has seen, unless it was blind, and what statements have
// said.
func (m *machine) found(seen traces, blind bool) {
	srv := m.server
	if blind {
		seen = srv.pins
	}
	left := seen | (m.looked|srv.pins)&stated | m.alsoLeft(seen)
	if blind {
		srv.doomed = srv.doomed || left != 0
	}
	m.forgot = false
	if left&^traceChannels == traceSequences && !m.mayPin() { // nobody is told others' values
		left &^= traceSequences
	}
	rest := left &^ traceChannels
	m.parks = left&traceChannels != 0 && !blind && m.looked != 0 && (rest == 0 || !m.mayPin())
	switch {
	case m.looked == 0:
	case m.parks: // see dealWithChannels
		if rest != 0 {
			m.takeAway(rest)
		}
	case left == 0 && !blind:
		m.unpin()
	default:
		m.pinOrUndo(left)
		m.silenced = m.silenced || blind && m.sub != nil && !m.staying()
	}
}

// alsoLeft returns what the last transaction has left, or those before, that pins by Config.PinAlso. seen is what a look has seen.
func (m *machine) alsoLeft(seen traces) (left traces) {
	srv, also := m.server, m.also()
	if also == 0 {
		return 0
	}
	left = (m.looked | srv.pins) & lasting
	if seen&traceObjects != 0 {
		left |= traceTemps
		srv.doomed = srv.doomed || also&traceTemps != 0
	}
	if m.looked&traceSetval != 0 || srv.pins&traceSequences != 0 && !m.forgot {
		left |= traceSequences
	}
	return left & also
}

// mayPin reports whether the client may keep its server connection. It has a place among the pinned then.
func (m *machine) mayPin() bool { return OnState(m.rules.on.Load()) == PinState && m.takePin() }

// pinOrUndo has the client keep its server connection for what it has left there, where it may; else that is to be undone.
func (m *machine) pinOrUndo(left traces) {
	if left != 0 && m.mayPin() {
		m.pin(left)
		return
	}
	m.takeAway(left)
}

// takeAway has what the client has left be undone.
func (m *machine) takeAway(left traces) {
	m.unpin()
	m.server.flags |= leftAnything
	if OnState(m.rules.on.Load()) == PinState {
		m.undone |= left &^ traceChannels
	}
	m.silenced = m.silenced || left&traceChannels != 0
}

// errChannelsLost ends a session that listens no more. A client that waits for notifications sends nothing that could be answered with that.
var errChannelsLost = errors.New("LISTEN has been undone")

// errSilenced is errChannelsLost with the reason.
func (m *machine) errSilenced() error {
	if on := OnState(m.rules.on.Load()); on != PinState {
		return fmt.Errorf("%w: it needs a server connection of its own here, and on_session_state is %v", errChannelsLost, on)
	}
	return fmt.Errorf("%w: it needs a server connection of its own here, and no more clients may keep one: max_pinned is %d", errChannelsLost, m.pinLimit())
}

// tellUndone answers a message with what became of the state that the client left; false = there is nothing to tell.
func (m *machine) tellUndone(msg message) bool {
	if m.undone == 0 {
		return false
	}
	m.say(m.tooManyPinned(fmt.Sprintf("what the last transaction left in the session (%v) has been undone", m.undone)))
	m.undone = 0
	m.unleased(msg.typ)
	return true
}
