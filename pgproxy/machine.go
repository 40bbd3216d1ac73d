package pgproxy

import (
	"fmt"
	"math"
	"sync/atomic"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// machine is the protocol machine of one session: all rules about the messages of a client and its server, pending
// answers, the places of prepared statements, and the return of the server connection to the pool. It gets each message
// in either direction and returns an action. It has no socket, clock, goroutine or lock. Two drivers feed it: the
// session's straight-line code (relay.go), and the fast path on the loop (fastpath.go). session.mu guards it while a
// server reader runs.
//
// A message is judged when its header and enough of its body have arrived: see action. The machine's own messages
// collect in toServer and toClient; the driver sends them before the judged message, and empties both.
type machine struct {
	*work // nil while the session is idle
	clientView
	clientStatements
	clientValues
	server             *serverState // of the leased server connection; nil = none
	shared             *tables
	rules              *pinRules
	params             []pgwire.Param // the client's startup parameters
	login              *Login         // the client's; nil in tests
	client             uint64         // Client.number
	mode               Mode
	pinned             bool            // session mode: the lease lasts as long as the session
	single             bool            // statement mode: as transaction mode, but the client may not begin a transaction block
	startupUnconfirmed bool            // no server has confirmed the startup settings: half a DateStyle adds to the previous value
	place              placeWait       // of a client that has waited for a place among the pinned, for its message
	kind               int32           // affinity kind of kinded; see kindOf
	sequenceLeases     uint32          // leases in which the client may have used sequences, and times that it has discarded their values
	kindSettings       appliedSettings // the client's settings when kind was computed
}

// tables are shared by the machines of a backend. They have their own locks, held for a few
// instructions.
type tables struct {
	texts     sharedTexts
	accepted  acceptedParams
	readers   readers
	pins      pinPlaces
	verdicts  verdicts
	knowledge *knowledge    // that of one database; pairs of a backend with the same database share it
	also      atomic.Uint32 // traces: those of the Config.PinAlso of any Proxy
	asked     atomic.Bool   // a client has used currval or lastval
	losing    atomic.Bool   // statements of a replay were gone: each replay prepares its own
	given     givenNames

	cannotListen func() error // why LISTEN pins, as Postgres.cannotListen; nil = it does not
}

// serverState is the state of a server connection beyond its socket. It belongs to the session that has leased it.
type serverState struct {
	endpoint string
	peer     unique.Handle[string] // the address that the connection leads to, which other names of the server share; see peerOf
	params   trackedParams
	view     unique.Handle[trackedParams] // of params
	baseline []pgwire.Param               // everything reported at startup; see report
	newest   *baseline                    // the backend's, updated by report; nil for a probe
	settings string                       // the applied settings, in the form of machine.settingsKey
	kind     int32                        // affinity kind of the settings at the last release
	flags    sessionFlags
	// doomed means that the connection must be closed and not reused: for example, a client tried to write to a
	// standby, whose host name may stand for the primary by now, or a client in session mode may have left state that
	// DISCARD ALL does not undo.
	mustClose bool
	replays   bool // a server before PostgreSQL 14, which does not report in_hot_standby, was a standby at the login; see roleOf
	stmts     prepared
	unnamed   uint64 // unnamed.id of the session whose unnamed statement the server has; 0 = unknown

	pins            traces        // why the client keeps the connection after its transaction; 0 = it does not
	shownPins       atomic.Uint32 // a copy of pins for other goroutines
	counted         bool          // takePin has counted pins
	parkLater       bool          // the client is pinned by channels that the listening connection may take over later
	pid             uint32        // process ID of the server; 0 = unknown
	hidden          bool          // the client changed a setting of unknown name, to be reset once the client is not pinned any more
	underClientName []string      // names of statements, as the last client knows them, that it left here; see closeClientNames
	// sequencesOf says whose sequence state the server connection has: what currval and lastval return, and values of
	// a CACHE. The zero value means nobody's.
	sequencesOf sequenceUse
	left        remnants // what clients have left that no statement removes
	digest      digest
}

// clientView has a client's settings, and what is known of them. Idle clients with the same settings share it.
type clientView struct {
	reported           unique.Handle[trackedParams] // the client's values of the parameters servers report
	settingsKey        string                       // the client's other settings, in one string; see keyOf
	plan               unique.Handle[string]        // the settings that affect the meaning of a text
	kept               bool                         // the client has settings besides those of its startup; see keepSettings
	applySettingsFirst bool                         // a server refused the settings in a replay: apply them before the next request
	temps              bool                         // the client may have used temporary tables
	tempSchema         bool                         // it has certainly made one: its session would have a temporary schema
	customsMade        string                       // the names of custom settings that it has ever set, each with a zero behind it; see noteName
}

// clientStatements are a client's prepared statements.
type clientStatements struct {
	doubtful  map[string]bool // names that may or may not exist for the client; nil = none
	stmts     map[string]*statement
	stmtBytes int
	moments   moments // see reading.go
	unnamed   unnamed
	undone    traces        // state that was taken from the client, of which it has not been told
	sub       *subscription // the client's channels on the listening connection; nil = none
}

// none reports whether there is nothing to keep while the session is suspended.
func (s *clientStatements) none() bool {
	return len(s.doubtful) == 0 && len(s.stmts) == 0 && s.stmtBytes == 0 && s.unnamed.id == 0 && s.undone == 0 && s.sub == nil
}

// work is the state that a machine needs while its session is not idle. Idle sessions have none; see works.
type work struct {
	st              state
	toServer        []byte   // messages for the server, before the client's message being judged
	toClient        []byte   // messages for the client, before the server's message being judged
	partial         bool     // part of a message to the client is written: nothing may come in between; set by the driver
	fresh           []string // names of statements prepared since the server connection was leased
	pending         []string // names, clients' and servers', of statements prepared or closed in requests not all answered
	synced          int      // length of pending at the last Sync: messages after that Sync are not skipped with these
	changes         []change // changes of the unnamed statement; changes[changed:] are not all answered
	changed         int
	spare           []byte                // memory for the text of an unnamed statement
	unnamedNew      bool                  // no Sync came after the Parse of the unnamed statement
	prepared        bool                  // a named statement was prepared since the server connection was leased
	bound           *statement            // the statement of the last portal; nil = unknown
	boundOn         *serverStatement      // the server's statement of the last portal
	portal          []byte                // the last portal's name
	describedAgain  *statement            // was prepared again, its description not yet compared with the client's; nil = none
	redescribed     *statement            // the last one prepared again whose description differs from the client's
	sweeping        bool                  // a statement that removes others was bound since the server connection was leased
	drops           map[string]string     // the statement that a portal deallocates, by the portal's name
	underClientName map[string]*statement // statements on the server under the client's names, see setUnderClientName
	unexposed       *pgwire.ErrorResponse // error of the last exposeNamed, until the following Query is answered
	listing         listing               // of a list of prepared statements that waits
	reset           bool                  // RESET or DISCARD ALL was answered since the transaction began; in session mode: since restoreStartup
	restoresAgain   bool                  // session mode: a step of restoreStartup was canceled, by a late cancel request or statement_timeout
	restores        int                   // how often restoreStartup was canceled, one time after the other
	resets          bool                  // session mode: a text with RESET, DISCARD or SET … TO DEFAULT may not be answered yet
	defaults        bool                  // a text of the transaction had SET … TO DEFAULT; in session mode, of the session: any SET may execute it, if it was prepared
	customs         []string              // names of custom settings in texts since the server connection was leased
	reports         uint16                // bits: the trackedNames with a value reported in this transaction
	customGiven     []string              // custom settings that texts may have emptied since the lease or the last keepSettings, behind any RESET
	customBack      []string              // custom settings that texts, or DISCARD ALL, have reset since then; everything stands for all
	rolledBack      bool                  // since then a statement has failed, or ROLLBACK was answered
	settingsReset   bool                  // RESET or DISCARD ALL was answered, or a text has DEFAULT, since the lease or the last keepSettings

	replay        bool // the client's settings go to the server with its next message: machine_replay.go
	restate       bool // the server has the settings by a replay, and has not reported them yet
	refusedReplay bool // the server has refused the replay

	settingsOpen     bool // something that may change settings is not answered, or the Sync behind it is not; see knowsSettings
	settingsUnsynced bool // no Sync came behind it
	readsAgain       bool // if settingsOpen: servers read literals again behind it
	unreported       bool // a statement has changed one of unreportedNames, and perhaps the settings have not been read since
	tempsNoted       bool // the statement being judged makes a temporary table, by its text
	tempsBound       bool // as tempsNoted, of the last Bind
	tempsOpen        bool // the open transaction has made one
	unnamedSetting   bool // a text changed a setting of unknown name

	traces             traces   // what statements may have left, since the last check or the lease
	checked            traces   // traces before the last check
	calledAt           uint64   // knowledge.ddl, when the first call in traces was judged
	calledBy           *callees // what was known when the first call in traces was judged
	asking             asking   // of askBehind; without a callQuestion, there is none
	listens            bool     // LISTEN was answered since the server connection was leased
	channelsOnly       bool     // the last check found channels and nothing else: the listening connection can take over
	listenUndone       bool     // the client's LISTEN has been undone
	used               traces   // use of sequences in this transaction; see noteUse
	sequencesDiscarded bool     // DISCARD SEQUENCES or DISCARD ALL was answered since the last check
	defines            bool     // a statement that may define something may still run: knowledge.defining counts it
	hides              bool     // with defines: one with traceHides, which knowledge.beginHiding counts
	hidesLater         bool     // in session mode: a statement with traceHides, or too long to be read, was prepared, and may run in any later transaction
	unread             bool     // there was a text too long to be judged, and its transaction may not be over
	epoch              uint64   // knowledge.epoch, before any statement since the last check or the lease was judged

	staleSequences bool   // the server connection has sequence state that is not the client's latest; see sequenceUse
	usesSequences  bool   // statements since the lease may have used sequences
	draws          traces // of drawing: what statements since the lease have done, probably
	reads          bool   // statements since the lease have read values of sequences
	selecting      bool   // if not everything is answered: since it was, only messages for which onlySelects is true have come

	vacating func() // ends what vacates has begun; nil = nothing
	alone    string // the database that the last statement bound needs for itself; "" = none

	progress progress // of the lease
	opened   []byte   // the text of BEGIN; see onlyBegun
}

// message is a message to be judged. It has 32 bytes: larger structures are passed on the stack.
type message struct {
	body   []byte // the beginning of its body, as much as is there; it is not kept
	length int32  // length of the whole body, in bytes
	typ    byte
}

// newMessage returns a message of which only the header is known.
func newMessage(h pgwire.Header) message { return message{typ: h.Type, length: int32(h.Len)} }

// size returns how many bytes the body has.
func (m *message) size() int { return int(m.length) }

// verb says what a driver does with the judged message.
type verb byte

const (
	pass     verb = iota // send it on as it is
	passRest             // send on its body from action.n on: toServer has its header and the bytes before
	take                 // consume it; it goes nowhere
	more                 // judge it again when action.n bytes of its body are there; nothing else has happened
	wait                 // judge it again when all that is owed has been answered, see learned; nothing else has happened
	lease                // judge it again with a leased server connection; nothing else has happened
	adapt                // judge it again once the server connection has the client's settings; nothing else has happened
	renew                // judge it again with another server connection, or after forgoes; nothing else has happened
	place                // judge it again once the client has waited for a place among the pinned; nothing else has happened
	end                  // the client ends the session
	fatal                // the server has ended its connection with this error
	refuse               // consume it; the client has begun a transaction block that its mode does not allow: its session ends
)

// action says what a driver does with a message.
type action struct {
	do    verb
	n     int  // see do
	later bool // with lease: if no server connection is free, parseLater may answer instead
}

// hasBody reports whether n bytes of the body are there, or all of it if it is shorter.
func (m *message) hasBody(n int) bool { return len(m.body) >= min(n, m.size()) }

// errBadMessage is the end of a client that breaks the protocol.
func errBadMessage(typ byte, size int) error {
	return fmt.Errorf("%w: type %q with %d bytes", pgwire.ErrMalformed, typ, size)
}

// checkClient refuses messages that no client may send. It needs no machine: a message that is too long is not waited
// for.
func checkClient(typ byte, size int) error {
	if size >= bodyLimits[typ] {
		return errBadMessage(typ, size)
	}
	return nil
}

// bodyLimits are the body sizes in bytes from which on a client's message is invalid, by type.
var bodyLimits = [256]int{
	pgwire.TypeSync: 1, pgwire.TypeFlush: 1, pgwire.TypeCopyDone: 1,
	pgwire.TypeDescribe: maxSmallBody + 1, pgwire.TypeExecute: maxSmallBody + 1, pgwire.TypeClose: maxSmallBody + 1, pgwire.TypeCopyFail: maxSmallBody + 1,
	pgwire.TypeQuery: math.MaxInt, pgwire.TypeParse: math.MaxInt, pgwire.TypeBind: math.MaxInt, pgwire.TypeFunctionCall: math.MaxInt,
	pgwire.TypeCopyData: math.MaxInt, pgwire.TypeTerminate: math.MaxInt,
}

// maxSmallBody is PostgreSQL's limit for messages that are short (PQ_SMALL_MESSAGE_LIMIT without
// the length word), in bytes. Servers disconnect on longer ones, or answer them differently.
const maxSmallBody = 10000 - 4

// peekSize is how much of a message is looked at to understand it. Names and tags are short.
const peekSize = 1024

// begin resets the machine for a server connection that has been leased.
func (m *machine) begin(server *serverState) {
	m.endDefinition()
	m.vacated()
	m.alone = ""
	m.tempsNoted, m.tempsBound, m.tempsOpen = false, false, false
	m.server, m.epoch, m.unread, m.hidesLater = server, m.shared.knowledge.epochOn(server), false, false
	m.st.reset()
	m.toServer, m.toClient, m.partial = m.toServer[:0], m.toClient[:0], false
	m.prepared, m.fresh, m.pending, m.synced = false, m.fresh[:0], m.pending[:0], 0
	m.unnamedNew, m.sweeping, m.reset, m.restoresAgain, m.restores, m.resets, m.defaults, m.reports = false, false, false, false, 0, false, false, 0
	m.calledBy, m.asking = nil, asking{}
	m.traces, m.checked, m.listens, m.usesSequences, m.channelsOnly, m.listenUndone, m.settingsReset, m.sequencesDiscarded = 0, 0, false, false, false, false, false, false
	m.selecting, m.draws, m.reads = false, 0, false
	m.staleSequences = m.mode == Transaction && server.sequencesOf.staleFor(m)
	m.awaits = m.awaits && server.sequencesOf == m.lastSequenceUse()
	m.bound, m.boundOn, m.describedAgain, m.redescribed = nil, nil, nil, nil
	m.customBack, m.rolledBack = m.customBack[:0], false
	m.customs, m.customGiven, m.unnamedSetting, m.unexposed, m.listing = m.customs[:0], m.customGiven[:0], false, nil, listing{}
	m.replay, m.restate, m.refusedReplay, m.settingsOpen, m.settingsUnsynced, m.unreported = false, false, false, false, false, false
	m.used, m.progress = 0, underWay
	if m.mode == Transaction && m.sub == nil && server.left.any() {
		m.progress = notBegun
	}
	if server.settings == m.settingsKey {
		m.noteOwnSettings()
	}
	clear(m.drops)
	clear(m.underClientName)
}

// over reports whether the lease can end: everything is answered, and nothing is known that the client needs the
// server connection for.
func (m *machine) over() bool {
	return m.st.settled() && !m.pinned && (m.traces|m.server.pins == 0 || m.st.strays > 0 || m.refusedReplay)
}

// reusable reports whether another client may have the server connection now.
func (m *machine) reusable() bool {
	return m.st.reusable() && !m.server.mustClose && m.traces&lasting == 0
}

// staysLeased reports whether the server connection stays the client's when everything is answered, as now: its transaction
// is open, or it keeps the connection, and the gateway has nothing to ask the server.
func (m *machine) staysLeased() bool {
	if !m.st.closed() || m.st.strays > 0 || m.refusedReplay || m.sub != nil {
		return false
	}
	return m.st.tx == pgwire.TxActive || m.st.tx == pgwire.TxIdle && m.keepsServer() && !m.server.parkLater && !m.due()
}

// release ends the lease of a server connection. over must have reported true.
func (m *machine) release() {
	m.leaveServer()
	m.forgetServer()
}

// leaveServer records in the server connection's state what its next client must know. It is called before another
// session can get the server connection, and again if the connection is not given back after all.
func (m *machine) leaveServer() {
	m.endDefinition()
	m.unpin()
	if len(m.underClientName) > 0 {
		m.saveClientNames()
	}
	if m.server.settings == m.settingsKey && m.server.view == m.reported {
		m.server.kind = m.kindOf()
	} else {
		m.server.kind = appliedSettings{m.server.view, m.server.settings}.kind()
	}
	if m.server.hidden {
		m.server.hidden = false
		m.server.flags |= leftSettings
	}
	if m.usesSequences {
		m.sequenceLeases++
		m.server.sequencesOf = m.lastSequenceUse()
		if m.staleSequences {
			m.server.sequencesOf = ofManyClients
		}
	}
}

// forgetServer is the second part of release. Another session may have the server connection by now.
func (m *machine) forgetServer() {
	m.changesDone(lastOfAll)
	m.trimUnnamed()
	m.server, m.underClientName = nil, nil
}

// unleased records that there is no server connection for the client's message: later messages are ignored up to the
// end of the request. A Query or FunctionCall is a whole request.
func (m *machine) unleased(typ byte) {
	m.st.reset()
	if typ == pgwire.TypeQuery || typ == pgwire.TypeFunctionCall {
		m.addToClient(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	} else {
		m.st.skipping = true
	}
}

// lostAtMostOne reports whether a lost server connection can have executed no more than one statement outside a
// transaction: nothing that the client sent before is undone without its knowledge, and no message that it sent later
// waits to run outside the transaction it was meant for.
func (m *machine) lostAtMostOne() bool {
	return !m.keepsServer() && m.sub == nil && m.st.ends == 1 && m.st.owed() <= maxAlone+1 && !m.st.first().kind.isOwn() &&
		m.st.tx == pgwire.TxIdle && !m.st.copyIn && !m.st.copyOut && !m.st.unsynced
}

// lost records that the server connection is gone with all its running requests. Statements that the client prepared
// during the lease may or may not exist for it: see doubtful.
func (m *machine) lost() {
	m.forgetUnanswered()
	for _, name := range m.fresh {
		if m.doubtful == nil {
			m.doubtful = make(map[string]bool)
		}
		m.doubtful[name] = true
	}
	m.loseDefinition()
	m.vacated()
	m.unpin()
	if m.usesSequences {
		m.sequenceLeases++
	}
	m.server, m.traces = nil, 0
	m.st.reset()
}

// forgetUnanswered corrects the maps of statements when running requests will never be answered.
func (m *machine) forgetUnanswered() {
	m.st.abandon()
	m.undo()
	m.loseUnnamed()
}

// allAnswered records that the server owes no answer, and drops what was kept for running requests.
func (m *machine) allAnswered() {
	m.pending, m.synced = m.pending[:0], 0
	m.defaults = m.defaults && (m.mode == Session || m.st.tx != pgwire.TxIdle)
	m.changesDone(lastOfAll)
}

// addToClient adds a message to the client, before the server's that is being judged.
func (m *machine) addToClient(msg pgwire.Message) { m.toClient = msg.Append(m.toClient) }

// ask adds a message to the server, before the client's that is being judged.
func (m *machine) ask(msg pgwire.Message) { m.toServer = msg.Append(m.toServer) }

// emptied empties a buffer whose content has been sent. It keeps up to maxKeptBytes of memory for the next message.
func emptied(b []byte) []byte {
	if cap(b) > maxKeptBytes {
		return nil
	}
	return b[:0]
}

// maxKeptBytes bounds the memory that toServer and toClient keep, in bytes: the part of a request with renamed
// statements that a Reader shows.
const maxKeptBytes = maxPeek

// cutShort reports whether a message to the client has been written in part: nothing may be added behind it.
func (m *machine) cutShort() bool { return m.work != nil && m.partial }

// canJudgeAgain reports whether a message that has to wait may be judged again.
func (m *machine) canJudgeAgain() bool { return m.st.empty() || m.st.copyIn }

// learned reports whether a message about a statement can be judged before earlier messages are answered. has says
// whether the statement should exist. The answer is false if it exists and should not, or the other way round,
// possibly because earlier messages were skipped, and if an earlier message may deallocate it.
func (m *machine) learned(name []byte, has bool) bool {
	return m.canJudgeAgain() || m.st.canExecuteOwn() || m.canJudgeName(name, has)
}

// waited notes that all is answered that a message had to wait for.
func (m *machine) waited() {
	m.pending, m.synced = m.pending[:0], 0
	if m.st.empty() {
		m.changesDone(lastOfAll)
	}
}
