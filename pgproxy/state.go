package pgproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// opKind says which answer to a message is pending.
type opKind byte

const (
	opQuery            opKind = iota // anything, up to ReadyForQuery
	opFunction                       // as opQuery
	opSync                           // ReadyForQuery
	opParse                          // ParseComplete
	opBind                           // BindComplete
	opDescribe                       // [ParameterDescription] RowDescription or NoData
	opExecute                        // rows, and CommandComplete, EmptyQueryResponse or PortalSuspended
	opClose                          // CloseComplete
	opCopyEnd                        // none: it marks the end of the client's COPY data
	opInjectedParse                  // ParseComplete, not for the client
	opInjectedClose                  // CloseComplete, not for the client
	opInjectedDescribe               // ParameterDescription and RowDescription or NoData, not for the client
	opInjectedBind                   // BindComplete, not for the client
	opInjectedExecute                // CommandComplete without rows, not for the client
	opRejected                       // ErrorResponse, replaced by err for the client
	opSaidClose                      // none: the gateway itself sends CloseComplete
	opOwn                            // all answers to a request of the gateway, not for the client
	opReplay                         // all answers to the replay, up to COMMIT, not for the client
	opSaidReady                      // none: the gateway itself sends ReadyForQuery
)

// op is a message that the server has not answered yet, or an answer of the gateway's that must be sent in order.
type op struct {
	kind opKind
	// silent means that the client does not get the ReadyForQuery, nor the error if the op is injected.
	silent bool
	// local means, for opQuery, a single SET LOCAL or SET TRANSACTION; for opInjectedParse and opInjectedClose, that name is in
	// work.underClientName; for opOwn, that the statement is sent for a list.
	local         bool
	swaps         bool             // of the Parse of machine.probe and the client's behind it: the client gets the notices of the former
	temps         bool             // of opQuery and opExecute: it makes a temporary table, by its text
	existedBefore bool             // of opOwn: the server had a statement under name before
	lists         bool             // of opOwn: a request of machine.list
	asks          bool             // of opOwn: a question, see askBehind
	ends          bool             // of opQuery: it is one statement, behind which no transaction is open; of opBind: it may be one, and is no COPY
	st            *statement       // the client's statement that is prepared, used or closed; may be nil
	on            *serverStatement // the server's statement that is prepared or used; may be nil
	// name is the client's name of st while st is being prepared or closed; for opQuery and opExecute, the names of
	// the statements being deallocated, separated by NULs; for opInjectedClose, the name on the server if it is the
	// gateway's or local is set; for opOwn, the statement of exposeNamed.
	name string
	id   uint64                // the id in work.changes if this is a change of the unnamed statement; 0 = it is none
	err  *pgwire.ErrorResponse // the client's error: of opRejected, and of opQuery for a Query that is refused
}

// isOwn reports whether the op is a request of the gateway's own.
func (k opKind) isOwn() bool { return k == opOwn }

// extended reports whether the server skips the op after an error in it or before it, up to Sync.
func (k opKind) extended() bool { return k != opQuery && k != opFunction && k != opSync && !k.isOwn() }

// deallocates reports whether the server deallocates the stand-in of a client's statement.
func (o *op) deallocates() bool { return o.name != "" && (o.kind == opQuery || o.kind == opExecute) }

// injected reports whether the client did not ask for the op.
func (k opKind) injected() bool {
	switch k {
	case opInjectedParse, opInjectedClose, opInjectedDescribe, opInjectedBind, opInjectedExecute, opRejected, opOwn, opReplay:
		return true
	}
	return false
}

// takesNotices reports whether notices in the answer to the op are not for the client.
func (o *op) takesNotices() bool { return (o.kind.injected() && !o.first()) != o.swaps }

// first reports whether the op is the first Parse of a statement of which the gateway itself has answered the client's: its
// notices are for the client. Those of later ones have been.
func (o *op) first() bool { return o.st != nil && o.on != nil && o.st.own == o.on.at }

// describesStatement reports whether the server will describe a statement's parameters and columns.
func (o *op) describesStatement() bool {
	return o != nil && o.on != nil && (o.kind == opDescribe || o.kind == opInjectedDescribe)
}

// ends reports whether the answer ends with ReadyForQuery.
func (k opKind) ends() bool { return k == opQuery || k == opFunction || k == opSync || k.isOwn() }

// errBackendProtocol means that the server sent a message that answers no request.
var errBackendProtocol = errors.New("pgproxy: unexpected message from the server")

// errUnclear is the end of a server connection whose answers cannot be told apart: see state.unclear.
var errUnclear = errors.New("pgproxy: there are requests in the data of a COPY that failed")

// state keeps track of the session's requests that the server has not answered yet. It is pure: it gets each message
// in either direction, and returns what to do with it. The caller's lock guards it.
type state struct {
	queue    []op // queue[head:] is not answered yet
	head     int
	ends     int // ops in the queue that end with ReadyForQuery
	answered int // answered requests; the session sets it back to 0
	queries  int // ops in the queue that are Query messages: their effects are unknown before the answer
	tx       pgwire.TxStatus
	unsynced bool // extended messages went out after the last Sync
	bound    bool // among them is a Bind: a Sync would end its portal, and commit its work
	skipping bool // the server ignores everything up to the next Sync
	copyIn   bool // the client owes CopyData, CopyDone or CopyFail
	copyOut  bool // the server is sending CopyData
	ignored  int  // Syncs in the COPY data: the server ignores them, unless the COPY fails before it reads them
	strays   int  // at most so many of them, in a COPY that has failed, may still be answered by ReadyForQuery; see stray
	unclear  bool // which of the messages in or behind the data of a failed COPY the server answers is unknown
	executed bool // the server has parsed, bound or executed something since the last ReadyForQuery, or has failed
	spoiled  bool // a Sync alone has ended a transaction, see readyForQuery
	erred    bool // the client has got the error of the request that the server is answering

	undone []op // extended messages that the last error made the server skip
	failed op   // the op that failed
}

func (s *state) reset() {
	*s = state{queue: s.queue[:0], undone: s.undone[:0], tx: pgwire.TxIdle}
	if cap(s.queue) > maxKeptOps || cap(s.undone) > maxKeptOps {
		s.queue, s.undone = nil, nil
	}
}

// maxKeptOps bounds the ops that a client keeps memory for from one lease to the next: those of a statement of the
// extended protocol, and some more.
const maxKeptOps = 32

// add appends an op to the queue, and reuses the memory of answered ones.
func (s *state) add(o op) {
	if len(s.queue) == cap(s.queue) && s.head > len(s.queue)/2 {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.queue = append(s.queue, o)
}

// addFirst puts an op before the others in the queue.
func (s *state) addFirst(o op) { s.queue = slices.Insert(s.queue, s.head, o) }

func (s *state) empty() bool { return s.head == len(s.queue) }

// owed returns how many messages wait for their answers.
func (s *state) owed() int { return len(s.queue) - s.head }

// deallocated removes and returns the next name that the current op deallocates; "" = there is none.
func (s *state) deallocated() (name string) {
	if o := s.first(); o != nil && o.deallocates() {
		name, o.name, _ = strings.Cut(o.name, "\x00")
	}
	return name
}

// canExecuteOwn reports whether the server would execute another request of the gateway's now: the client's messages
// are answered. The request's Sync must not end anything of the client's.
func (s *state) canExecuteOwn() bool {
	if s.unsynced && s.bound || s.skipping || s.copyIn || s.copyOut {
		return false
	}
	for i := s.head; i < len(s.queue); i++ {
		if !s.queue[i].kind.isOwn() {
			return false
		}
	}
	return true
}

// single reports whether the messages on their way are those of one statement of the extended protocol, outside a transaction:
// Parse or none, Bind, Describe or none, and Execute.
func (s *state) single() bool {
	last := opSync
	for i := s.head; i < len(s.queue); i++ {
		kind := s.queue[i].kind
		switch kind {
		case opOwn, opReplay, opClose, opInjectedClose, opInjectedDescribe, opSaidClose:
			continue
		case opInjectedParse:
			kind = opParse
		}
		if kind <= last || kind > opExecute {
			return false
		}
		last = kind
	}
	return last == opExecute && s.tx == pgwire.TxIdle
}

// endsAlone reports whether the messages on their way are one request, behind which no transaction is open: one statement
// outside a transaction, or COMMIT.
func (s *state) endsAlone() bool {
	if s.copyIn || s.copyOut || s.skipping || s.unsynced || s.strays > 0 {
		return false
	}
	requests, executed := 0, 0
	for i := s.head; i < len(s.queue); i++ {
		o := &s.queue[i]
		switch {
		case o.kind == opOwn:
		case requests > 0 || o.kind == opRejected || o.kind == opReplay || o.kind == opBind && !o.ends: // a server that refuses the replay skips everything up to a Sync
			return false
		case o.kind == opExecute:
			executed++
		case o.kind == opQuery && o.ends, o.kind == opSync && s.tx == pgwire.TxIdle:
			requests++
		case o.kind.ends():
			return false
		}
	}
	return requests == 1 && executed <= 1
}

// answersQuestion reports whether the server is answering a question.
func (s *state) answersQuestion() bool {
	o := s.first()
	return o != nil && o.asks
}

// canExecuteOwnLater reports whether canExecuteOwn will be true once the client's messages are answered, and is not yet.
func (s *state) canExecuteOwnLater() bool {
	return !s.empty() && !s.canExecuteOwn() && !(s.unsynced && s.bound) && !s.skipping && !s.copyIn
}

// endsBetween reports whether a request of the client is on its way that will end before the client's next message.
// Requests of the gateway's own before it do not count: they change nothing that the client can name.
func (s *state) endsBetween() bool {
	if s.ends == 0 {
		return false
	}
	own := 0
	for i := s.head; i < len(s.queue) && s.queue[i].kind.isOwn(); i++ {
		own++
	}
	return s.ends > own
}

// reusable reports whether the server could serve another client: everything is answered, and no transaction, pipeline
// or COPY is open.
func (s *state) reusable() bool { return s.settled() && s.strays == 0 && !s.unclear }

// settled is reusable without regard to strays: the server has sent everything that is expected.
func (s *state) settled() bool { return s.tx == pgwire.TxIdle && s.closed() }

// closed reports whether nothing is open or unanswered, except perhaps a transaction.
func (s *state) closed() bool {
	return s.empty() && !s.unsynced && !s.skipping && !s.copyIn && !s.copyOut
}

// clean reports whether the server connection would be free after a ROLLBACK.
func (s *state) clean() bool { return s.closed() && s.tx.Valid() && s.strays == 0 && !s.unclear }

// due reports whether the server will send something without further messages from the client.
func (s *state) due() bool { return !s.copyIn && s.ends > 0 || s.copyOut }

// serverSilent reports whether the server has nothing to send until it receives more.
func (s *state) serverSilent() bool { return s.empty() && !s.copyIn && !s.copyOut }

// push records a message that goes to the server, or an answer of the gateway's to be sent in order. It returns false
// for a message that the server will ignore, and does not record it.
func (s *state) push(o op) bool {
	if s.copyIn && o.kind != opSync {
		s.inCopyData()
	}
	switch {
	case o.kind == opSync && s.copyIn:
		s.ignored++
		return false
	case o.kind == opSync:
		s.skipping, s.unsynced = false, false
	case s.skips():
		return false
	case o.kind.extended():
		s.unsynced, s.bound = true, s.unsynced && s.bound || o.kind == opBind
	default: // messages without Sync are complete once they are answered
		s.unsynced = false
	}
	if o.kind.ends() {
		s.ends++
	}
	if o.kind == opQuery {
		s.queries++
	}
	if s.empty() {
		s.queue, s.head = s.queue[:0], 0
	}
	s.add(o)
	return true
}

// skips reports whether the server ignores the client's next message, unless that is Sync: its answer is unknown if a Sync in the data of a COPY
// may have ended the skipping.
func (s *state) skips() bool {
	s.unclear = s.unclear || s.skipping && s.strays > 0
	return s.skipping
}

// copyDone notes that the client ended its COPY data.
func (s *state) copyDone() {
	if s.copyIn {
		s.copyIn = false
	} else if !s.empty() && !s.skipping {
		s.add(op{kind: opCopyEnd})
	}
}

// first returns the op that the server is answering, nil if there is none. It is valid until the queue changes.
func (s *state) first() *op {
	if s.empty() {
		return nil
	}
	return &s.queue[s.head]
}

// pop removes and returns the first op.
func (s *state) pop() (was op) {
	was = s.queue[s.head]
	s.drop()
	return was
}

// drop removes the first op.
func (s *state) drop() {
	o := &s.queue[s.head]
	if o.kind.ends() {
		s.ends--
	}
	if o.kind == opQuery {
		s.queries--
	}
	*o = op{}
	s.head++
}

// local removes and returns the next answer of the gateway's own if that is due now.
func (s *state) local() (o op, ok bool) {
	for {
		switch o := s.first(); {
		case o == nil:
			return op{}, false
		case o.kind == opCopyEnd:
			s.drop()
		case o.kind == opSaidClose, o.kind == opSaidReady:
			return s.pop(), true
		default:
			return op{}, false
		}
	}
}

// hasLocalAnswer reports whether local may return something.
func (s *state) hasLocalAnswer() bool {
	o := s.first()
	return o != nil && (o.kind == opCopyEnd || o.kind == opSaidClose || o.kind == opSaidReady)
}

// answer notes a message of the server and reports whether to forward it to the client. status is that of
// ReadyForQuery. Local answers may be due afterwards.
func (s *state) answer(typ byte, status pgwire.TxStatus) (forward bool, err error) {
	if s.unclear {
		return false, errUnclear
	}
	switch typ {
	case pgwire.TypeReadyForQuery:
		return s.readyForQuery(status)
	case pgwire.TypeParseComplete, pgwire.TypeBindComplete, pgwire.TypeCommandComplete, pgwire.TypeEmptyQueryResponse, pgwire.TypePortalSuspended, pgwire.TypeErrorResponse:
		s.executed = true
	}
	switch typ {
	case pgwire.TypeErrorResponse:
		if s.fail(); s.unclear {
			return false, errUnclear
		}
		return true, nil
	case pgwire.TypeParseComplete:
		return s.complete(typ, opParse, opInjectedParse)
	case pgwire.TypeCloseComplete:
		return s.complete(typ, opClose, opInjectedClose)
	case pgwire.TypeBindComplete:
		return s.complete(typ, opBind, opInjectedBind)
	case pgwire.TypeNoData:
		return s.complete(typ, opDescribe, opInjectedDescribe)
	case pgwire.TypeParameterDescription:
		o := s.first()
		return o == nil || o.kind != opInjectedDescribe, nil
	case pgwire.TypeRowDescription:
		if o := s.first(); o != nil && (o.kind == opDescribe || o.kind == opInjectedDescribe) {
			forward = o.kind == opDescribe
			s.drop()
			return forward, nil
		}
	case pgwire.TypeCommandComplete, pgwire.TypeEmptyQueryResponse, pgwire.TypePortalSuspended:
		if s.copyOut = false; !s.copyIn {
			s.ignored = 0
		}
		switch o := s.first(); {
		case o == nil:
		case o.kind == opExecute:
			s.drop()
			s.answered++
		case o.kind == opInjectedExecute:
			s.drop()
			return false, nil
		}
	case pgwire.TypeCopyInResponse:
		s.copyStarts()
	case pgwire.TypeCopyOutResponse:
		s.copyOut = true
	case pgwire.TypeCopyDone:
		s.copyOut = false
	case pgwire.TypeCopyBothResponse:
		return false, fmt.Errorf("%w: CopyBothResponse", errBackendProtocol)
	}
	return true, nil
}

// complete removes the op that a completion message belongs to. It returns false for an injected one.
func (s *state) complete(typ byte, asked, injected opKind) (forward bool, err error) {
	o := s.first()
	if o == nil || o.kind != asked && o.kind != injected {
		return false, fmt.Errorf("%w: type %q", errBackendProtocol, typ)
	}
	forward = o.kind == asked
	s.drop()
	return forward, nil
}

// readyForQuery notes ReadyForQuery, and removes the op that it answers and all ops before that one. PostgreSQL 18 leaves
// the transaction of a pipeline open behind a Query in it, and a Sync that ends it without a statement spoils the server
// connection: the next statement there, whoever sends it, fails with XX000.
func (s *state) readyForQuery(status pgwire.TxStatus) (forward bool, err error) {
	o := s.first()
	s.spoiled = s.spoiled || s.tx == pgwire.TxActive && status == pgwire.TxIdle && !s.executed && o != nil && o.kind == opSync
	s.tx, s.copyIn, s.copyOut, s.executed, s.erred = status, false, false, false, false
	for !s.empty() {
		kind, silent := s.first().kind, s.first().silent
		if s.drop(); kind.ends() {
			if kind != opSync && !kind.isOwn() {
				s.answered++
			}
			s.strays, s.ignored = s.strays+s.ignored, 0 // of a COPY by Query that has failed
			return !silent, nil
		}
	}
	if s.strays == 0 {
		return true, fmt.Errorf("%w: ReadyForQuery that answers nothing", errBackendProtocol)
	}
	s.strays--
	s.skipping, s.unsynced = false, false
	return true, nil
}

// stray notes a message of the server, before answer. It reports whether that is a ReadyForQuery that answers a Sync in the
// data of a COPY that has failed, and not the first op: every other op but Sync is answered by something else before. After
// the first such answer no stray comes any more.
func (s *state) stray(typ byte) bool {
	if s.strays == 0 || s.unclear || asynchronous(typ) {
		return false
	}
	if typ != pgwire.TypeReadyForQuery {
		s.strays = 0
		return false
	}
	if o := s.first(); o == nil || o.kind == opSync {
		return false
	}
	s.strays--
	return true
}

// fail notes ErrorResponse. After an error in the extended protocol the server ignores everything up to the next
// Sync.
func (s *state) fail() {
	s.copyIn, s.copyOut = false, false
	s.undone, s.failed = s.undone[:0], op{}
	o := s.first()
	if o == nil || !o.kind.extended() {
		return
	}
	s.strays, s.ignored = s.ignored, 0
	s.failed = *o
	if !o.silent {
		s.answered++
	}
	for i := 0; !s.empty(); i++ {
		kind := s.first().kind
		if kind == opSync {
			return
		}
		s.unclear = s.unclear || s.strays > 0 && i > 0 && kind != opCopyEnd // executed if a Sync in the COPY data has ended the skipping
		s.undone = append(s.undone, s.pop())
	}
	s.skipping = true
}

// inCopyData notes a message in the COPY data that is not Sync. The COPY fails: if the server reads the message there, without an answer to
// it. If the COPY has failed before, the server answers the message, but for one of the extended protocol with no Sync in front.
func (s *state) inCopyData() {
	o := s.first()
	s.copyIn = false
	s.unclear = s.ignored > 0 || o == nil || !o.kind.extended()
}

// abandon moves all unanswered ops to undone: the server is gone.
func (s *state) abandon() {
	for !s.empty() {
		s.undone = append(s.undone, s.pop())
	}
}

// copyStarts notes CopyInResponse. The server ignores any Sync up to the end of the COPY data, also those that are
// already on their way.
func (s *state) copyStarts() {
	s.copyIn = true
	kept := s.queue[:s.head]
	dropping, unsynced := true, false
	for i, o := range s.queue[s.head:] {
		switch {
		case i > 0 && o.kind == opCopyEnd && dropping:
			dropping, s.copyIn = false, false
			continue
		case dropping && o.kind == opSync:
			s.ends--
			s.ignored++
			unsynced = true
			continue
		case i > 0 && dropping && o.kind != opSaidClose && o.kind != opSaidReady:
			s.inCopyData()
			dropping = false
		}
		unsynced = unsynced && !o.kind.ends()
		kept = append(kept, o)
	}
	s.queue = kept
	if o := s.first(); unsynced && o != nil && o.kind.extended() {
		s.unsynced, s.bound = true, true
	}
}
