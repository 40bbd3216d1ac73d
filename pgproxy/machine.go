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
	server *serverState // of the server connection that is leased; nil = none
	shared *tables
	rules  *pinRules
	params []pgwire.Param // the client's at startup
	client uint64         // Client.number
	mode   Mode
	pinned bool            // session mode: the lease lasts as long as the session
	single bool            // statement mode, else like transaction mode: the client may not begin a transaction block
	unsure bool            // no server has seen the client's settings: half a DateStyle adds to what was set before
	wary   bool            // a server has refused them in a replay: the next one gets them first
	kind   int32           // of kinded; see kindOf
	kinded appliedSettings // the client's settings when kind was asked for
}

// tables are shared by the machines of a backend. They have their own locks, held for a few
// instructions.
type tables struct {
	texts     sharedTexts
	accepted  acceptedParams
	pins      pinCount
	verdicts  verdicts
	knowledge knowledge
	asked     atomic.Bool // some client has asked for values of sequences: currval, lastval

	cannotListen func() error // why LISTEN pins, as Postgres.cannotListen; nil = it does not
}

// serverState is the state of a server connection beyond its socket. It belongs to the session that has leased it.
type serverState struct {
	endpoint string
	params   trackedParams
	view     unique.Handle[trackedParams] // of params
	baseline []pgwire.Param               // everything reported at startup; see report
	newest   *baseline                    // reported to clients; nil = a probe's
	settings string                       // the settings applied, as machine.settingsKey has it
	kind     int32                        // of the settings, when the server connection was given back
	flags    sessionFlags
	// doomed means that it is to be closed: a client wanted to write, and this is a standby, the name of which may stand
	// for the primary by now; or a client of session mode may have left state there that DISCARD ALL does not undo.
	doomed  bool
	stmts   prepared
	unnamed uint64 // whose unnamed statement it has: unnamed.id of a session; 0 = unknown

	pins      traces        // why its client keeps it beyond its transaction; 0 = it does not
	shownPins atomic.Uint32 // the same, for other goroutines
	counted   bool          // by takePin
	parkLater bool          // its client is pinned for what the listening connection may take over later
	pid       uint32        // of its process; 0 = unknown
	hidden    bool          // its client has set what nobody knows the name of: it is undone once the client keeps it no more
	standing  []string      // names of statements that its last client has left, as those of SQL; see closeStanding
	drawn     uint64        // whose values of sequences currval and lastval may tell: machine.client; 0 = nobody's; or drawnByMany
}

// clientView has a client's settings. Idle clients with the same settings share it.
type clientView struct {
	reported    unique.Handle[trackedParams] // the client's values of the parameters servers report
	settingsKey string                       // those of others, in one string; see keyOf
	plan        unique.Handle[string]        // the settings that give texts their meaning
}

// clientStatements are a client's prepared statements.
type clientStatements struct {
	doubtful  map[string]bool // names the client may or may not think it has; nil = none
	stmts     map[string]*statement
	stmtBytes int
	unnamed   unnamed
	undone    traces        // state that was taken from the client, which has not been told
	sub       *subscription // what it listens to by the listening connection; nil = nothing
}

// none reports whether nothing is lost without them.
func (s *clientStatements) none() bool {
	return len(s.doubtful) == 0 && len(s.stmts) == 0 && s.stmtBytes == 0 && s.unnamed.id == 0 && s.undone == 0 && s.sub == nil
}

// work is the state that a machine needs while its session is not idle. Idle ones share one.
type work struct {
	st         state
	toServer   []byte   // for the server, before the client's message that was judged
	toClient   []byte   // for the client, before the server's message that was judged
	partial    bool     // a message to the client is written in part: nothing may come between; the driver's
	fresh      []string // names of prepared statements given since the server connection was leased
	pending    []string // names of statements, clients' and servers', prepared or closed in requests not all answered
	synced     int      // messages of pending before the last Sync: later ones are skipped with them, or not at all
	changes    []change // of the unnamed statement; changes[changed:] are not all answered
	changed    int
	spare      []byte                // room for the text of an unnamed statement
	unnamedNew bool                  // no Sync came after the Parse of the unnamed statement
	prepared   bool                  // a named statement, since the server connection was leased
	bound      *statement            // the statement of the last portal; nil = unknown
	boundOn    *serverStatement      // and the server's
	portal     []byte                // its name
	unseen     *statement            // was prepared again, not yet compared with the client's description; nil = none
	unlike     *statement            // the last one prepared again that differs from it
	sweeping   bool                  // a statement that takes others away was bound since the server connection was leased
	drops      map[string]string     // portals that deallocate one statement, and the name in their text
	standing   map[string]*statement // what the server has under the client's names, see stand
	unexposed  *pgwire.ErrorResponse // of the last exposeNamed, until the Query behind it is answered
	reset      bool                  // RESET or DISCARD ALL was answered since the transaction began; in session mode: since restoreStartup
	resets     bool                  // session mode: a text with RESET, DISCARD or SET … TO DEFAULT is perhaps not answered yet
	defaults   bool                  // session mode: there was a text with SET … TO DEFAULT: any SET may be one that was prepared
	customs    []string              // names of custom settings in texts since the server connection was leased
	reports    uint16                // of which trackedNames a value was reported since then
	undid      bool                  // RESET or DISCARD ALL was answered, or a text has DEFAULT, since the lease or the last keepSettings
	kept       bool                  // the client's settings are not only those of its startup; see keepSettings

	replay        bool // the server connection gets the client's settings with the client's next message: machine_replay.go
	restate       bool // it has got them, and has not reported them yet
	refusedReplay bool // it has refused them

	unnamedSetting bool // a text set something since then, of which nobody knows the name

	traces   traces // what statements may have left, since the last look or the lease
	looked   traces // traces before the last look
	listens  bool   // LISTEN was answered since the server connection was leased
	foreign  bool   // currval and lastval may tell of another client
	parks    bool   // the last look has found channels and nothing else: the listening connection can take over
	silenced bool   // what the client listened to has been undone
	drew     bool   // statements since then may have used sequences
	defines  bool   // a statement that may define something is perhaps not over: knowledge.defining counts it
	unread   bool   // there was a text that is too long to be judged, and its transaction is perhaps not over
	epoch    uint64 // knowledge.epoch, before any statement since the last look or the lease was judged
}

// message is a message to be judged. It has 32 bytes: larger structures are passed on the stack.
type message struct {
	body   []byte // the beginning of its body, as much as is there; it is not kept
	length int32  // bytes of all of it
	typ    byte
}

// newMessage returns one of which the header is known.
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
	end                  // the client ends the session
	fatal                // the server has ended its connection with this error
	refuse               // consume it; the client has begun a transaction block that its mode does not allow: its session ends
)

// action says what a driver does with a message.
type action struct {
	do    verb
	n     int  // see do
	later bool // of lease: if no server connection is free at once, parseLater may do without
}

// whole reports whether n bytes of the body are there, or all of it if it is shorter.
func (m *message) whole(n int) bool { return len(m.body) >= min(n, m.size()) }

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

// bodyLimits are the sizes from which on a client's message is none, by type, in bytes.
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

// begin makes the machine's work begin anew, with a server connection that has been leased.
func (m *machine) begin(server *serverState) {
	m.endDefinition()
	m.server, m.epoch, m.unread = server, m.shared.knowledge.epochOn(server), false
	m.st.reset()
	m.toServer, m.toClient, m.partial = m.toServer[:0], m.toClient[:0], false
	m.prepared, m.fresh, m.pending, m.synced = false, m.fresh[:0], m.pending[:0], 0
	m.unnamedNew, m.sweeping, m.reset, m.resets, m.defaults, m.reports = false, false, false, false, false, 0
	m.traces, m.looked, m.listens, m.drew, m.parks, m.silenced, m.undid = 0, 0, false, false, false, false, false
	m.foreign = server.drawn != 0 && server.drawn != m.client && m.mode == Transaction
	m.bound, m.boundOn, m.unseen, m.unlike = nil, nil, nil, nil
	m.customs, m.unnamedSetting, m.unexposed = m.customs[:0], false, nil
	m.replay, m.restate, m.refusedReplay = false, false, false
	clear(m.drops)
	clear(m.standing)
}

// over reports whether the lease has served its purpose: all is answered, and nothing is left that the client keeps the server connection for,
// as far as is known.
func (m *machine) over() bool {
	return m.st.settled() && !m.pinned && (m.traces|m.server.pins == 0 || m.st.doubtful || m.refusedReplay)
}

// fit reports whether another client may have the server connection now.
func (m *machine) fit() bool { return m.st.free() && !m.server.doomed }

// release ends the lease of a server connection, once over reports that.
func (m *machine) release() {
	m.leaveServer()
	m.forgetServer()
}

// leaveServer notes in the server connection what its next client is to know. It is called before anybody else can have that, and again
// if it is not given back after all.
func (m *machine) leaveServer() {
	m.endDefinition()
	m.unpin()
	if len(m.standing) > 0 {
		m.leaveStanding()
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
	if m.drew {
		m.server.drawn = m.client
		if m.foreign {
			m.server.drawn = drawnByMany
		}
	}
}

// forgetServer is the rest of release: somebody else may have the server connection by now.
func (m *machine) forgetServer() {
	m.changesDone(lastOfAll)
	m.trimUnnamed()
	m.server, m.standing = nil, nil
}

// unleased records that there is no server connection for the client's message: later messages are ignored up to the
// end of its request, which may be the message itself.
func (m *machine) unleased(typ byte) {
	m.st.reset()
	if typ == pgwire.TypeQuery || typ == pgwire.TypeFunctionCall {
		m.say(&pgwire.ReadyForQuery{Status: pgwire.TxIdle})
	} else {
		m.st.skipping = true
	}
}

// alone reports whether all that a lost server connection can have done is one statement outside a transaction: nothing the client sent
// before is undone without its knowledge, and nothing it sent after waits to run outside the transaction it was meant for.
func (m *machine) alone() bool {
	return !m.staying() && m.sub == nil && m.st.ends == 1 && m.st.owed() <= maxAlone+1 && !m.st.first().kind.own() &&
		m.st.tx == pgwire.TxIdle && !m.st.copyIn && !m.st.copyOut && !m.st.unsynced
}

// lost records that the server connection is gone with all its running requests. Names that it prepared may or may not
// be the client's.
func (m *machine) lost() {
	m.dropped()
	for _, name := range m.fresh {
		if m.doubtful == nil {
			m.doubtful = make(map[string]bool)
		}
		m.doubtful[name] = true
	}
	m.loseDefinition()
	m.unpin()
	m.server, m.traces = nil, 0
	m.st.reset()
}

// dropped corrects the maps of statements when running requests will never be answered.
func (m *machine) dropped() {
	m.st.abandon()
	m.undo()
	m.loseUnnamed()
}

// nothingOwed records that the server owes nothing: data kept for running requests is forgotten.
func (m *machine) nothingOwed() {
	m.pending, m.synced = m.pending[:0], 0
	m.changesDone(lastOfAll)
}

// say adds a message to the client, before the server's that is being judged.
func (m *machine) say(msg pgwire.Message) { m.toClient = msg.Append(m.toClient) }

// ask adds a message to the server, before the client's that is being judged.
func (m *machine) ask(msg pgwire.Message) { m.toServer = msg.Append(m.toServer) }

// took empties a buffer whose content has been sent, and keeps its memory for the next message unless that is much.
func took(b []byte) []byte {
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

// caughtUp reports whether a message that has to wait may be judged again.
func (m *machine) caughtUp() bool { return m.st.empty() || m.st.copyIn }

// learned reports whether a message about a statement can be judged before the answers to earlier messages: not if the
// name exists but should not, or the other way round, possibly because earlier messages were skipped; nor if an earlier
// message may deallocate it.
func (m *machine) learned(name []byte, has bool) bool {
	return m.caughtUp() || m.st.heard() || m.knows(name, has)
}

// waited notes that caughtUp has come true for a message that had to wait.
func (m *machine) waited() {
	m.pending, m.synced = m.pending[:0], 0
	if m.st.empty() {
		m.changesDone(lastOfAll)
	}
}
