package pgproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
)

// opKind is the kind of answer to a message on its way to the server.
type opKind byte

const (
	opQuery            opKind = iota // anything, up to ReadyForQuery
	opFunction                       // likewise
	opSync                           // ReadyForQuery
	opParse                          // ParseComplete
	opBind                           // BindComplete
	opDescribe                       // [ParameterDescription] RowDescription or NoData
	opExecute                        // rows, and CommandComplete, EmptyQueryResponse or PortalSuspended
	opClose                          // CloseComplete
	opCopyEnd                        // no answer: the end of the client's COPY data
	opInjectedParse                  // ParseComplete, which the client did not ask for
	opInjectedClose                  // CloseComplete, likewise
	opInjectedDescribe               // ParameterDescription and RowDescription or NoData, likewise
	opInjectedBind                   // BindComplete, likewise
	opInjectedExecute                // CommandComplete without rows, likewise
	opRejected                       // ErrorResponse, which is to be replaced by err
	opSaidClose                      // nothing: CloseComplete is due to the client without asking
	opOwn                            // a Query of the gateway's, the answer to which the client does not see
	opReplay                         // all that belongs to the replay, up to COMMIT, which the client does not see either
	opSaidReady                      // nothing: ReadyForQuery is due to the client without asking
)

// op is a message the server has not answered yet, or an answer that must be sent in order.
type op struct {
	kind opKind
	// silent means that the client does not get its ReadyForQuery, nor its error if it is injected.
	silent bool
	// of opQuery: it is one SET LOCAL or SET TRANSACTION; of opInjectedClose: name is in work.standing; of opOwn: it is for a list
	local bool
	stood bool             // of opOwn: the server had a statement under name before
	st    *statement       // the client's that it prepares, uses or closes; may be nil
	on    *serverStatement // the server's that it prepares or uses; may be nil
	// name is the client's name of st, if it is preparing or closing that; of opQuery and opExecute, those of the statements that are
	// deallocated, with NULs between; of opInjectedClose, the server's, if it is one of ours or local; of opOwn, that of exposeNamed.
	name string
	id   uint64                // of the change of the unnamed statement it is, as work.changes has it; 0 = none
	err  *pgwire.ErrorResponse // of opRejected, and of opQuery: of one that is refused
}

// own reports whether it is a Query of the gateway's own.
func (k opKind) own() bool { return k == opOwn }

// extended reports whether an error before or in the op makes the server skip it.
func (k opKind) extended() bool { return k != opQuery && k != opFunction && k != opSync && !k.own() }

// deallocates reports whether the server deallocates the stand-in of a client's statement.
func (o *op) deallocates() bool { return o.name != "" && (o.kind == opQuery || o.kind == opExecute) }

// injected reports whether the client did not ask for it.
func (k opKind) injected() bool {
	switch k {
	case opInjectedParse, opInjectedClose, opInjectedDescribe, opInjectedBind, opInjectedExecute, opRejected, opOwn, opReplay:
		return true
	}
	return false
}

// tells reports whether the server will describe a statement's parameters and columns.
func (o *op) tells() bool {
	return o != nil && o.on != nil && (o.kind == opDescribe || o.kind == opInjectedDescribe)
}

// ends reports whether the answer ends with ReadyForQuery.
func (k opKind) ends() bool { return k == opQuery || k == opFunction || k == opSync || k.own() }

// errBackendProtocol is the cause when a server sends an answer without a request.
var errBackendProtocol = errors.New("pgproxy: unexpected message from the server")

// state has a session's requests to its server that are not answered yet. It is pure: it gets each
// message in either direction, and returns what to do with it. The caller's lock guards it.
type state struct {
	queue    []op // queue[head:] is not answered yet
	head     int
	ends     int // ops in the queue that end with ReadyForQuery
	answered int // queries, since it was set to 0
	queries  int // the Query messages among them: their effects are unknown before the answer
	tx       pgwire.TxStatus
	unsynced bool // extended messages went out after the last Sync
	skipping bool // the server ignores everything up to the next Sync
	copyIn   bool // the client owes CopyData, CopyDone or CopyFail
	copyOut  bool // the server is sending CopyData
	ignored  bool // a Sync is in the COPY data: the server ignores it, unless the COPY fails before
	doubtful bool // it is unknown how often the server will send ReadyForQuery

	undone []op // extended messages that the last error made the server skip
	failed op   // the one that failed
}

func (s *state) reset() {
	*s = state{queue: s.queue[:0], undone: s.undone[:0], tx: pgwire.TxIdle}
	if cap(s.queue) > maxKeptOps || cap(s.undone) > maxKeptOps {
		s.queue, s.undone = nil, nil
	}
}

// maxKeptOps bounds the memory a client keeps from one lease to the next: those of a statement of
// the extended protocol, and some more.
const maxKeptOps = 32

// add puts an op at the end of the queue, the room of answered ones being used again.
func (s *state) add(o op) {
	if len(s.queue) == cap(s.queue) && s.head > len(s.queue)/2 {
		n := copy(s.queue, s.queue[s.head:])
		clear(s.queue[n:])
		s.queue, s.head = s.queue[:n], 0
	}
	s.queue = append(s.queue, o)
}

// addFirst puts an op before those in the queue.
func (s *state) addFirst(o op) { s.queue = slices.Insert(s.queue, s.head, o) }

func (s *state) empty() bool { return s.head == len(s.queue) }

// owed returns how many messages wait for their answers.
func (s *state) owed() int { return len(s.queue) - s.head }

// deallocated takes the next name off those that the current op deallocates; "" = there is none.
func (s *state) deallocated() (name string) {
	if o := s.first(); o != nil && o.deallocates() {
		name, o.name, _ = strings.Cut(o.name, "\x00")
	}
	return name
}

// heard reports whether the server would execute one more request of the gateway's own: the client's are answered.
func (s *state) heard() bool {
	if s.unsynced || s.skipping || s.copyIn || s.copyOut {
		return false
	}
	for i := s.head; i < len(s.queue); i++ {
		if !s.queue[i].kind.own() {
			return false
		}
	}
	return true
}

// endsBetween reports whether a request of the client is on its way that ends before the next message. The gateway's own come first, and change
// nothing that the client can name.
func (s *state) endsBetween() bool {
	if s.ends == 0 {
		return false
	}
	own := 0
	for i := s.head; i < len(s.queue) && s.queue[i].kind.own(); i++ {
		own++
	}
	return s.ends > own
}

// free reports whether the server could serve another client: all is answered, and no transaction,
// pipeline or COPY is open.
func (s *state) free() bool { return s.settled() && !s.doubtful }

// settled is free without regard to doubt: a doubtful server has said all that is expected.
func (s *state) settled() bool { return s.tx == pgwire.TxIdle && s.closed() }

// closed reports whether at most a transaction is open.
func (s *state) closed() bool {
	return s.empty() && !s.unsynced && !s.skipping && !s.copyIn && !s.copyOut
}

// clean reports whether a ROLLBACK would make it free.
func (s *state) clean() bool { return s.closed() && s.tx.Valid() && !s.doubtful }

// due reports whether the server will send something without more messages of the client.
func (s *state) due() bool { return !s.copyIn && s.ends > 0 || s.copyOut }

// quiet reports whether the server has nothing to say until it hears more.
func (s *state) quiet() bool { return s.empty() && !s.copyIn && !s.copyOut }

// push records a message that goes to the server, or an answer of the gateway to be sent in order.
// A message that the server will ignore is not recorded: false.
func (s *state) push(o op) bool {
	switch {
	case o.kind == opSync && s.copyIn:
		s.ignored = true
		return false
	case o.kind == opSync:
		s.skipping, s.unsynced = false, false
	case s.skipping:
		return false
	case o.kind.extended():
		s.unsynced = true
	default: // messages without Sync are over once they are answered
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

// copyDone notes that the client ended its COPY data.
func (s *state) copyDone() {
	if s.copyIn {
		s.copyIn = false
	} else if !s.empty() && !s.skipping {
		s.add(op{kind: opCopyEnd})
	}
}

// first returns the op the server is answering, nil when there is none. It is valid until the queue changes.
func (s *state) first() *op {
	if s.empty() {
		return nil
	}
	return &s.queue[s.head]
}

// pop takes the op off that first returned.
func (s *state) pop() (was op) {
	was = s.queue[s.head]
	s.drop()
	return was
}

// drop is pop without a copy.
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

// local returns the next answer of our own that is due now, taking it off the queue.
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

// speaksNext reports whether local may have something.
func (s *state) speaksNext() bool {
	o := s.first()
	return o != nil && (o.kind == opCopyEnd || o.kind == opSaidClose || o.kind == opSaidReady)
}

// answer notes a message of the server and reports whether the client is to have it. status is
// the one of ReadyForQuery. After it, local answers may be due.
func (s *state) answer(typ byte, status pgwire.TxStatus) (forward bool, err error) {
	switch typ {
	case pgwire.TypeReadyForQuery:
		return s.ready(status)
	case pgwire.TypeErrorResponse:
		s.fail()
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
		s.copyOut, s.ignored = false, s.ignored && s.copyIn
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

// complete takes off the op a completion belongs to. Injected ones are not forwarded.
func (s *state) complete(typ byte, asked, injected opKind) (forward bool, err error) {
	o := s.first()
	if o == nil || o.kind != asked && o.kind != injected {
		return false, fmt.Errorf("%w: type %q", errBackendProtocol, typ)
	}
	forward = o.kind == asked
	s.drop()
	return forward, nil
}

// ready notes ReadyForQuery. Ops before the one it answers are gone with it.
func (s *state) ready(status pgwire.TxStatus) (forward bool, err error) {
	s.tx, s.copyIn, s.copyOut = status, false, false
	for !s.empty() {
		kind, silent := s.first().kind, s.first().silent
		if s.drop(); kind.ends() {
			if kind != opSync && !kind.own() {
				s.answered++
			}
			return !silent, nil
		}
	}
	if !s.doubtful {
		return true, fmt.Errorf("%w: ReadyForQuery that answers nothing", errBackendProtocol)
	}
	s.skipping, s.unsynced = false, false
	return true, nil
}

// fail notes ErrorResponse: an error in the extended protocol makes the server ignore
// everything up to the next Sync.
func (s *state) fail() {
	s.copyIn, s.copyOut = false, false
	s.doubtful = s.doubtful || s.ignored
	s.undone, s.failed = s.undone[:0], op{}
	o := s.first()
	if o == nil || !o.kind.extended() {
		return
	}
	s.failed = *o
	if !o.silent {
		s.answered++
	}
	for !s.empty() {
		if s.first().kind == opSync {
			return
		}
		s.undone = append(s.undone, s.pop())
	}
	s.skipping = true
}

// abandon makes everything unanswered undone: the server is gone.
func (s *state) abandon() {
	for !s.empty() {
		s.undone = append(s.undone, s.pop())
	}
}

// copyStarts notes CopyInResponse. The server ignores any Sync up to the end of the data, also
// those under way already.
func (s *state) copyStarts() {
	s.copyIn = true
	kept := s.queue[:s.head]
	dropping := true
	for i, o := range s.queue[s.head:] {
		switch {
		case i > 0 && o.kind == opCopyEnd && dropping:
			dropping, s.copyIn = false, false
			continue
		case dropping && o.kind == opSync:
			s.ends--
			s.unsynced, s.ignored = true, true
			continue
		}
		kept = append(kept, o)
	}
	s.queue = kept
}
