package pgproxy

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// Pinning. In transaction mode, some session state cannot follow its client to another server
// connection. A client whose transaction leaves such state keeps its server connection until the state
// is gone: the client is pinned.
//
// The text of a statement tells which kinds of state it may leave (pintext.go). Kinds that the server
// can report are then checked: after the transaction, the gateway asks the server for them in the same
// request as for settings (keep.go). The client has its answer by then, and the server connection is
// not in the pool yet. Transactions that cannot leave state are not checked.

// OnState says what happens, in transaction and statement mode, to session state that cannot follow its client to
// another server connection: temporary tables, session-level advisory locks, SQL's PREPARE, cursors
// WITH HOLD and so on.
type OnState int

// The values of OnState.
const (
	PinState    OnState = iota // the client keeps its server connection for as long as such state exists; the default
	RefuseState                // statements that announce such state are refused (0A000); unannounced state is undone
	ResetState                 // such state is undone before the next transaction
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

// pinRules holds a Proxy's rules for pinning, and the number of its clients that are pinned.
type pinRules struct {
	proxy  uint32        // the Proxy's number, unique in the process
	on     atomic.Int32  // an OnState
	max    atomic.Int64  // server connections of a backend that may be pinned; 0 = the backend's pinPlaces.defaultLimit
	also   atomic.Uint32 // traces: those of Config.PinAlso
	pinned atomic.Int64
	checks atomic.Uint64 // see session.askRemains

	listening atomic.Int64 // clients that listen through the shared listening connection

	vacate func(database string, peer unique.Handle[string]) (stop func()) // Proxy.vacate; nil = never; immutable
}

// proxies numbers the Proxies of the process.
var proxies atomic.Uint32

// number returns a number that no other client of any Proxy has.
func (c *Client) number() uint64 { return uint64(c.proxy.pins.proxy)<<32 | uint64(c.id) }

// set takes over the rules of a Config.
func (r *pinRules) set(cfg *Config) {
	r.on.Store(int32(cfg.OnState))
	r.max.Store(int64(cfg.MaxPinned))
	r.also.Store(uint32(cfg.PinAlso.traces()))
	if cfg.OnState != PinState {
		r.also.Store(0)
	}
}

// PinAlso is a set of kinds of session state that pin a client only on request: most clients leave
// such state in passing, and hardly any needs it later. Join values with |. The zero value is the
// empty set.
type PinAlso uint8

// The kinds of state in a PinAlso.
const (
	// PinSequences pins for the values of sequences that currval and lastval return, and for values of a
	// sequence's CACHE that are not used yet. nextval, setval and inserts leave such values. A check
	// follows each transaction that may have used a sequence; it needs PL/pgSQL on the server.
	PinSequences PinAlso = 1 << iota
	// PinSettingNames pins for the names of custom settings. A server keeps each name, with an empty
	// value, for the life of the connection.
	PinSettingNames
	// PinTempBuffers pins once a temporary table was used: temp_buffers cannot be changed after that.
	PinTempBuffers
)

// traces returns the traces for the kinds in p.
func (p PinAlso) traces() (all traces) {
	for i, of := range []traces{traceSequences, traceCustom, traceTemps} {
		if p>>i&1 != 0 {
			all |= of
		}
	}
	return all
}

// pinAlsoTraces returns the traces for which Config.PinAlso pins.
func (m *machine) pinAlsoTraces() traces { return traces(m.rules.also.Load()) }

// pin records the kinds of state for which the client is pinned. takePin has counted the server
// connection.
func (m *machine) pin(kinds traces) {
	if m.server.pins == 0 {
		m.rules.pinned.Add(1)
	}
	m.server.pin(kinds)
}

// pin records the kinds of state for which a client is pinned to the server connection.
func (s *serverState) pin(kinds traces) {
	s.pins = kinds
	s.shownPins.Store(uint32(kinds))
}

// unread reports whether a Query is too long for judge to read all of it.
func (m *message) unread() bool { return len(m.body) < m.size() || m.size() > maxJudgedQuery }

// judged returns how many bytes of a Query the gateway reads: all of it, or of a Query that is too
// long only as much as a Reader can peek at.
func (m *message) judged() int {
	if m.size() > maxJudgedQuery {
		return maxPeek
	}
	return m.size()
}

// judgeBody judges the text of a Query, as far as it was received. quiet is as in verdicts.judge.
func (m *machine) judgeBody(msg message) (left traces, quiet bool) {
	if msg.unread() {
		m.unread = true
		return traceUnknown | traceUnread | definesUnread(msg.body) | lastingIn(msg.body), false
	}
	return m.shared.verdicts.judge(m.shared.knowledge.now.Load(), msg.body)
}

// keepsServer reports whether the client keeps its server connection beyond its transaction.
func (m *machine) keepsServer() bool { return m.pinned || m.server != nil && m.server.pins != 0 }

// tracesOfExecute returns the traces that executing one of the client's prepared statements may leave.
func (m *machine) tracesOfExecute(name []byte) traces {
	switch st := m.stmts[string(statementKey(name))]; {
	case len(name) == 0:
		return m.leftByUnnamed()
	case st != nil:
		return st.tracesOf(m.shared.knowledge.now.Load())
	case (m.server.pins|m.traces)&traceStatements != 0:
		return traceUnknown // prepared by SQL's PREPARE
	}
	return 0
}

// guardReads has the server forget the values of its sequences if a statement, which is parsed or about to
// run, may read values that other clients left.
func (m *machine) guardReads(left traces) {
	if left&traceReads != 0 && !m.shared.asked.Load() {
		m.shared.asked.Store(true)
	}
	if m.staleSequences && left&(traceReads|traceUnknown) != 0 {
		m.forgetSequences()
	}
	m.guardLists(left)
}

// note records the traces that a statement may leave. The statement is about to run.
func (m *machine) note(left traces) {
	if left == 0 {
		return
	}
	m.guardReads(left)
	if left&traceTemps != 0 {
		m.noteTemps()
		m.tempsNoted = left&traceObjects != 0
	}
	m.noteValues(left)
	m.usesSequences = m.usesSequences || left&(traceWrites|traceSequences|traceUnknown) != 0
	m.define(left)
	m.noteUse(left)
	if left&(traceUnknown|traceStatements) != 0 {
		m.server.stmts.retireReplay() // the statement may deallocate the replay's
	}
	if left &= suspicious | traceLess | traceSpoils | called | m.notedPinAlso(); left == traceLess && m.server.pins == 0 {
		return
	}
	m.traces |= left
	if left&called != 0 {
		m.noteCalls()
	}
}

// notedPinAlso returns the traces that note records because of Config.PinAlso. It omits those for which
// the client is pinned already.
func (m *machine) notedPinAlso() (kinds traces) {
	also := m.pinAlsoTraces() &^ m.server.pins
	if kinds = also & lasting; also&traceSequences != 0 {
		kinds |= traceSequences | traceSetval | traceWrites
	}
	return kinds
}

// noteUse records the use of sequences by a client that is pinned for sequences. The record is needed
// if the same transaction has DISCARD SEQUENCES.
func (m *machine) noteUse(left traces) {
	if m.pinAlsoTraces()&m.server.pins&traceSequences == 0 {
		return
	}
	if m.st.empty() && m.st.tx == pgwire.TxIdle {
		m.used = 0 // a transaction begins
	}
	m.used |= left & (traceSequences | traceSetval | traceWrites | traceUnknown)
}

// noteOwnSettings records the traces that the client's own settings leave when the gateway sets them on
// the server.
func (m *machine) noteOwnSettings() {
	if m.mode == Transaction {
		m.traces |= m.settingsTraces()
	}
}

// dropOwnSettings has the server connection closed if noteOwnSettings has recorded anything, for a client that is not pinned: no
// client has to be told of the loss of such state.
func (m *machine) dropOwnSettings() {
	if m.server != nil && m.traces&lasting != 0 {
		m.server.mustClose = true
		m.traces &^= lasting
	}
}

// settingsTraces returns the traces of Config.PinAlso that the client's own settings leave on every server
// connection: the names of custom settings, and a search_path with pg_temp, through which statements
// use temporary tables that look like ordinary ones.
func (m *machine) settingsTraces() (left traces) {
	also := m.pinAlsoTraces() & lasting
	if m.server != nil {
		also &^= m.server.pins
	}
	if also == 0 {
		return 0
	}
	path := m.reported.Value().value[tracked("search_path")] // servers report it from PostgreSQL 18 on
	for key := m.settingsKey; key != ""; {
		var name, value string
		name, value, key = nextSetting(key)
		left |= namesOf(name, true)
		if strings.EqualFold(name, "search_path") {
			path = value
		}
	}
	if strings.Contains(path, "pg_temp") {
		left |= traceTemps
	}
	return left & also
}

// refusesSettings answers a message with an error, and returns true, if the client's own settings would
// pin the client and the limit of pinned clients is reached. Otherwise it does nothing.
func (m *machine) refusesSettings(msg message) bool {
	left := m.settingsTraces()
	if left == 0 || m.mode != Transaction || m.place == hasPlace || m.shared.pins.n.Load() < m.pinLimit() {
		return false
	}
	m.addToClient(m.tooManyPinned(fmt.Sprintf("the client's settings leave state in the session (%v)", left)))
	m.unleased(msg.typ)
	return true
}

// hidesSequences reports whether clients read values of sequences, or are pinned for them, or sequences have a CACHE. If
// so, the server forgets other clients' values before each lease.
func (m *machine) hidesSequences() bool {
	return m.shared.asked.Load() || m.pinAlsoTraces()&traceSequences != 0 || m.shared.knowledge.caches.Load()
}

// onlySelects reports whether hidesSequences is true for a CACHE only, and the message is a plain SELECT, which neither
// takes a value of a sequence nor begins a transaction block.
func (m *machine) onlySelects(msg message) bool {
	if m.shared.asked.Load() || m.pinAlsoTraces()&traceSequences != 0 || msg.typ != pgwire.TypeQuery || msg.unread() {
		return false
	}
	text := withoutNul(msg.body)
	left, plain := m.shared.knowledge.now.Load().judgePlain(text)
	return plain && left == 0 && firstWord(text, "select")
}

// sequenceUse stands for the lease in which a client has last used sequences on a server connection. A client that has
// used sequences on another server connection since must not read the older values: currval would be wrong.
type sequenceUse struct {
	client uint64 // machine.client
	lease  uint32 // machine.sequenceLeases
}

// ofManyClients is the value of serverState.sequencesOf after several clients have used sequences.
var ofManyClients = sequenceUse{client: math.MaxUint64}

// lastSequenceUse returns the last lease in which the client has used sequences.
func (m *machine) lastSequenceUse() sequenceUse { return sequenceUse{m.client, m.sequenceLeases} }

// staleFor reports whether a server connection has sequence state that is not the client's latest.
func (u sequenceUse) staleFor(m *machine) bool {
	return u != sequenceUse{} && u != m.lastSequenceUse()
}

// forgetSequences has the server discard the values that currval and lastval would return to this
// client though they are not its latest. It sends the request before the message that is being judged.
// It does nothing in the middle of a pipeline, or if the client itself may have used sequences.
func (m *machine) forgetSequences() {
	if m.usesSequences || m.st.unsynced || m.st.skipping || m.st.copyIn || m.st.tx == pgwire.TxFailed {
		return
	}
	if _, ok := m.change(op{kind: opOwn}, false); ok {
		m.staleSequences, m.server.unnamed, m.server.sequencesOf = false, 0, sequenceUse{}
		m.ask(&pgwire.Query{SQL: "DISCARD SEQUENCES"})
	}
}

// forgets records that the server has discarded the client's values of sequences at its request: those on other server
// connections are gone for it, too.
func (m *machine) forgets() {
	m.sequencesDiscarded = true
	m.sequenceLeases++
	if !m.usesSequences {
		m.staleSequences, m.server.sequencesOf = false, sequenceUse{}
	}
}

// refusalOfUse is refusal for a statement that is about to run.
func (m *machine) refusalOfUse(left traces) *pgwire.ErrorResponse {
	if m.staleSequences && left&(traceReads|traceSequences) == traceReads && m.st.unsynced && !m.usesSequences { // guardReads could not send its request in the middle of a pipeline
		return errorResponse(pgwire.SeverityError, pgwire.StateNotInPrerequisiteState, "lastval and currval are not yet defined in this session", "")
	}
	return m.refusal(left)
}

// refusal returns the error that replaces a statement, or nil if the statement may run. A statement
// that announces state has its server connection counted as pinned from then on, at least to the end
// of its transaction.
func (m *machine) refusal(left traces) *pgwire.ErrorResponse {
	if left = m.announced(left); left == 0 || m.mode != Transaction {
		return nil
	}
	on := OnState(m.rules.on.Load())
	if on == ResetState { // ResetState undoes state afterwards, except LISTEN: the client would wait for notifications for ever
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
		m.dropOwnSettings()
		return m.tooManyPinned(fmt.Sprintf("this would leave state in the session (%v)", left))
	}
	return nil
}

// announced returns the kinds of state that pin, of those that a statement may leave.
func (m *machine) announced(left traces) traces {
	if left&traceLasts != 0 {
		left |= traceObjects
	} else {
		left &^= traceObjects
	}
	kinds := evident | traceObjects
	if left&traceChannels != 0 && m.channelsPin() {
		kinds |= traceChannels
	}
	kinds |= m.pinAlsoTraces() & lasting
	if left |= m.traces & lasting; m.keepsServer() { // see noteOwnSettings
		left &^= m.server.pins & lasting
	}
	return left & kinds
}

// channelsPin reports whether LISTEN will pin the client, as far as the gateway can tell before the
// statement runs.
func (m *machine) channelsPin() bool {
	return m.server != nil && m.otherEncoding() || m.shared.cannotListen != nil && m.shared.cannotListen() != nil
}

// tooManyPinned returns the error for a client that cannot be pinned because the limit is reached.
func (m *machine) tooManyPinned(what string) *pgwire.ErrorResponse {
	return errorResponse(pgwire.SeverityError, pgwire.StateConfigLimitExceeded,
		fmt.Sprintf("%s, and no more clients may keep a server connection for that: max_pinned is %d", what, m.pinLimit()),
		"Raise max_pinned of the listener and max_size of the pool, use a listener with mode: session, or do without such state.")
}

// refuseQuery answers a Query with an error. The server gets a statement with a syntax error instead,
// so that its transaction fails as it would after the error.
func (m *machine) refuseQuery(e *pgwire.ErrorResponse) action {
	m.listing = listing{}
	if _, ok := m.change(op{kind: opQuery, err: e}, true); ok {
		m.noUnnamed()
		m.ask(&pgwire.Query{SQL: rejectSQL})
	}
	return action{do: take}
}

// stateCheck returns the kinds of state for which the gateway asks the server at the end of a transaction,
// and whether it asks for settings, too.
func (m *machine) stateCheck() (parts traces, settings bool) {
	srv := m.server
	if m.traces&called != 0 { // keep has not asked, or not got the answer that it hoped for
		m.forgetCalls()
		m.traces |= traceUnknown
		srv.stmts.retireReplay()
	}
	parts = m.traces & checkable
	if m.traces&traceUnknown != 0 || m.traces != 0 && srv.pins != 0 {
		parts = checkable
	}
	if m.checksSequences(m.traces) {
		parts |= traceSequences
	}
	if m.traces&traceUnknown != 0 {
		srv.flags |= leftSettings
		m.unnamedSetting = true // pg_settings does not list custom settings
	}
	if m.checked, m.traces = m.traces, 0; m.sequencesDiscarded {
		m.checked |= m.used
	}
	m.used = 0
	m.epoch = m.shared.knowledge.epochOn(srv)
	srv.mustClose = srv.mustClose || m.checked&(indelible|lasting|traceSpoils) != 0
	return parts, srv.flags&leftSettings != 0
}

// checksSequences reports whether the gateway asks the server for the use of sequences, given the
// traces of a transaction.
func (m *machine) checksSequences(left traces) bool {
	also := m.pinAlsoTraces()
	if !m.sequencesDiscarded {
		also &^= m.server.pins
	}
	return also&traceSequences != 0 && left&(traceSequences|traceWrites|traceUnknown|traceLess) != 0 && !m.staleSequences
}

// stateChecks holds a condition for each kind of state that a server can report. Names are qualified:
// the client's search_path may be anything.
var stateChecks = []struct {
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

// usedSequencesSQL precedes a check for traceSequences, in the same transaction. It sets xmlbinary,
// which serves as a flag here, to 'hex' if lastval has a value or the client must not read it. Servers
// have no view of lastval, and an error of lastval that nothing catches would be written to their
// logs.
const usedSequencesSQL = "SET LOCAL xmlbinary = base64;DO LANGUAGE plpgsql 'BEGIN BEGIN PERFORM pg_catalog.lastval();" +
	"EXCEPTION WHEN SQLSTATE ''55000'' THEN RETURN; WHEN OTHERS THEN NULL; END; SET LOCAL xmlbinary = hex; END';"

// stateSQL returns an expression whose value is the set of those kinds in parts that exist on the
// server.
func stateSQL(parts traces) string {
	var b strings.Builder
	b.WriteString("0")
	for _, part := range stateChecks {
		if parts&part.of != 0 {
			fmt.Fprintf(&b, " OPERATOR(pg_catalog.+) CASE WHEN %s THEN %d ELSE 0 END", part.sql, part.of)
		}
	}
	return b.String()
}

// seenIn returns the kinds of state in the answer to stateSQL.
func seenIn(row pgwire.Param) traces {
	n, _ := strconv.ParseUint(row.Value, 10, 32)
	return traces(n) & (checkable | traceSequences)
}

// ownAnswer handles a message of the server's answer to one of the gateway's own Queries.
func (m *machine) ownAnswer(msg message) (action, error) {
	if m.st.first().asks {
		return m.questionAnswer(msg)
	}
	lists := m.st.first().lists
	if lists {
		m.listAnswer(msg)
	}
	switch msg.typ {
	case pgwire.TypeErrorResponse:
		if isFatal(msg.body) {
			return action{do: fatal}, nil
		}
		switch o := m.st.first(); {
		case lists:
			return action{do: take}, nil
		case o.name != "":
			m.notExposed(o, msg.body)
			return action{do: take}, nil
		case o.silent: // of restoreNames: the server has the text
			return action{do: take}, nil
		}
		m.staleSequences, m.server.sequencesOf = true, ofManyClients // a late cancel request hit the gateway's own Query
		m.server.flags |= leftPrepare
	case pgwire.TypeReadyForQuery:
		_, err := m.st.readyForQuery(pgwire.TxStatus(firstByte(msg.body)))
		return action{do: take}, err
	}
	return action{do: take}, nil
}

// handleState decides what happens to the state, except settings, that the last transaction left. seen is
// what the server reported. If blind is true, the server could not be asked, and only the statements'
// texts tell.
func (m *machine) handleState(seen traces, blind bool) {
	srv := m.server
	if seen&traceObjects != 0 {
		m.noteTemps()
		m.madeTemps()
		m.endTemps(false)
	}
	if blind {
		seen = srv.pins
	}
	left := seen | (m.checked|srv.pins)&stated | m.leftPinAlso(seen)
	if blind {
		srv.mustClose = srv.mustClose || left != 0
	}
	m.sequencesDiscarded = false
	if left&^traceChannels == traceSequences && !m.mayPin() { // nothing has to be undone: other clients are not told these values
		left &^= traceSequences
	}
	rest := left &^ traceChannels
	m.channelsOnly = left&traceChannels != 0 && !blind && m.checked != 0 && (rest == 0 || !m.mayPin())
	switch {
	case m.checked == 0:
	case m.channelsOnly: // see handOverChannels
		if rest != 0 {
			m.undoState(rest)
		}
	case left == 0 && !blind:
		m.unpin()
	default:
		m.pinOrUndo(left)
		m.listenUndone = m.listenUndone || blind && m.sub != nil && !m.keepsServer()
	}
}

// leftPinAlso returns the traces of Config.PinAlso that the last transaction, or an earlier one, left.
// seen is what the server reported.
func (m *machine) leftPinAlso(seen traces) (left traces) {
	srv, also := m.server, m.pinAlsoTraces()
	if also == 0 {
		return 0
	}
	left = (m.checked | srv.pins) & lasting
	if seen&traceObjects != 0 {
		left |= traceTemps
		srv.mustClose = srv.mustClose || also&traceTemps != 0
	}
	if m.checked&traceSetval != 0 || srv.pins&traceSequences != 0 && !m.sequencesDiscarded {
		left |= traceSequences
	}
	return left & also
}

// mayPin reports whether the client may keep its server connection. If so, the server connection is
// counted as pinned from then on.
func (m *machine) mayPin() bool { return OnState(m.rules.on.Load()) == PinState && m.takePin() }

// pinOrUndo pins the client for the state that it left, or has that state undone if the client must
// not be pinned.
func (m *machine) pinOrUndo(left traces) {
	if left != 0 && m.mayPin() {
		m.pin(left)
		return
	}
	m.undoState(left)
}

// undoState has the state that the client left undone.
func (m *machine) undoState(left traces) {
	m.unpin()
	m.server.flags |= leftAnything
	if OnState(m.rules.on.Load()) == PinState {
		m.undone |= left &^ traceChannels
	}
	m.listenUndone = m.listenUndone || left&traceChannels != 0
}

// errChannelsLost ends a session whose LISTEN was undone. A client that waits for notifications sends
// no statement that an error could answer.
var errChannelsLost = errors.New("LISTEN has been undone")

// errSilenced returns errChannelsLost with the reason.
func (m *machine) errSilenced() error {
	if on := OnState(m.rules.on.Load()); on != PinState {
		return fmt.Errorf("%w: it needs a server connection of its own here, and on_session_state is %v", errChannelsLost, on)
	}
	return fmt.Errorf("%w: it needs a server connection of its own here, and no more clients may keep one: max_pinned is %d", errChannelsLost, m.pinLimit())
}

// reportUndone answers a message with an error that names the state that was undone. It reports false if
// there is none.
func (m *machine) reportUndone(msg message) bool {
	if m.undone == 0 {
		return false
	}
	m.addToClient(m.tooManyPinned(fmt.Sprintf("session state that the last transaction left (%v) has been undone", m.undone)))
	m.undone = 0
	m.unleased(msg.typ)
	return true
}
