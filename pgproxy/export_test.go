package pgproxy

import (
	"context"
	"unsafe"

	"github.com/headpond/headpond/pgwire"
)

// ClientSize is what a Client takes of the heap.
const ClientSize = unsafe.Sizeof(Client{})

// Deallocated exposes deallocates.
var Deallocated = deallocates

// ParseOptions exposes parseOptions.
var ParseOptions = parseOptions

// State exposes the state machine by what goes over the wire.
type State struct{ st state }

// NewState returns the state of a fresh lease.
func NewState() *State {
	s := &State{}
	s.st.reset()
	return s
}

var clientOps = map[byte]opKind{
	pgwire.TypeQuery: opQuery, pgwire.TypeFunctionCall: opFunction, pgwire.TypeSync: opSync, pgwire.TypeParse: opParse,
	pgwire.TypeBind: opBind, pgwire.TypeDescribe: opDescribe, pgwire.TypeExecute: opExecute, pgwire.TypeClose: opClose,
}

// Client tells of a message of the client.
func (s *State) Client(typ byte) {
	switch kind, ok := clientOps[typ]; {
	case ok:
		s.st.push(op{kind: kind})
	case typ == pgwire.TypeCopyDone || typ == pgwire.TypeCopyFail:
		s.st.copyDone()
	}
}

// Server tells of a message of the server.
func (s *State) Server(typ byte, status pgwire.TxStatus) error {
	_, err := s.st.answer(typ, status)
	s.st.local()
	return err
}

// Free reports whether the server connection could be given away.
func (s *State) Free() bool { return s.st.free() }

// Due reports whether the server owes an answer.
func (s *State) Due() bool { return s.st.due() }

// Check looks for contradictions inside.
func (s *State) Check() string {
	ends := 0
	for _, o := range s.st.queue[s.st.head:] {
		if o.kind.ends() {
			ends++
		}
	}
	switch {
	case ends != s.st.ends:
		return "the count of answers that end with ReadyForQuery is wrong"
	case s.st.free() && s.st.due():
		return "free although an answer is due"
	}
	return ""
}

// Statements returns how many statements the table has, and how many one server connection has
// and may have.
func (b *Postgres) Statements(ctx context.Context) (shared, onServer, doubtful int) {
	lease, err := b.up.Acquire(ctx)
	if err != nil {
		return -1, -1, -1
	}
	defer lease.Release()
	b.texts.mu.Lock()
	defer b.texts.mu.Unlock()
	return len(b.texts.byKey), len(lease.Value().stmts.at), len(lease.Value().stmts.stale)
}
