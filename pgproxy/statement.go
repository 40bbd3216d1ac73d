package pgproxy

import (
	"container/list"
	"strconv"
	"sync"
	"sync/atomic"
)

// Limits of prepared statements in transaction mode.
const (
	// DefaultStatementCache is how many prepared statements a server connection keeps; each
	// costs the server a plan. The figure is PgBouncer's (max_prepared_statements).
	DefaultStatementCache = 200
	// maxStatement bounds one Parse message, in bytes: it is kept in memory to be sent again.
	maxStatement = 256 << 10
	// maxClientStatements bounds what the statements of one client may take, in bytes of text.
	maxClientStatements = 8 << 20
)

// statement is a text (with parameter types) that clients have prepared. Clients that prepare
// the same text share it, and so do server connections.
type statement struct {
	body string // of Parse after the name: query, NUL, types
	name string // on servers
	refs int    // clients that have it; guarded by statements.mu
	// valid means that a server has accepted it: another client that prepares it need not ask.
	valid atomic.Bool
}

// statements is the table of all of a backend.
type statements struct {
	mu     sync.Mutex // never held across I/O
	byBody map[string]*statement
	last   uint64
}

// get returns the statement with a body, making it if needed, and counts a reference.
func (t *statements) get(body []byte) *statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.byBody[string(body)]
	if st == nil {
		t.last++
		st = &statement{body: string(body), name: "headpond_" + strconv.FormatUint(t.last, 10)}
		if t.byBody == nil {
			t.byBody = make(map[string]*statement)
		}
		t.byBody[st.body] = st
	}
	st.refs++
	return st
}

// known returns the statement with a body if a server has accepted it, and counts a reference.
func (t *statements) known(body []byte) *statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.byBody[string(body)]
	if st == nil || !st.valid.Load() {
		return nil
	}
	st.refs++
	return st
}

// put gives a reference back. Server connections may have the statement for longer; it is only
// not found any more.
func (t *statements) put(st *statement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st.refs--; st.refs == 0 {
		delete(t.byBody, st.body)
	}
}

// prepared is the set of statements a server connection has, the least recently used one
// first to go. Like the connection it belongs to one session at a time.
type prepared struct {
	limit int
	order list.List // of *statement, most recent first
	at    map[*statement]*list.Element
	stale map[*statement]bool // the server may still have it, under a plan that is no use
}

// has reports whether the server has st, and notes the use.
func (p *prepared) has(st *statement) bool {
	e := p.at[st]
	if e == nil {
		return false
	}
	p.order.MoveToFront(e)
	return true
}

// add notes that the server has st. When there are too many, the one returned is to be closed.
func (p *prepared) add(st *statement) (evicted *statement) {
	if p.at == nil {
		p.at = make(map[*statement]*list.Element)
	}
	if p.at[st] == nil {
		p.at[st] = p.order.PushFront(st)
	}
	if len(p.at) <= p.limit {
		return nil
	}
	evicted = p.order.Back().Value.(*statement)
	p.remove(evicted)
	return evicted
}

func (p *prepared) remove(st *statement) {
	if e := p.at[st]; e != nil {
		p.order.Remove(e)
		delete(p.at, st)
	}
}

// doubt takes st out because the server may or may not have it: it is closed before it is
// prepared again.
func (p *prepared) doubt(st *statement) {
	p.remove(st)
	if p.stale == nil {
		p.stale = make(map[*statement]bool)
	}
	p.stale[st] = true
}

// clear forgets all, after DEALLOCATE ALL.
func (p *prepared) clear() {
	p.order.Init()
	clear(p.at)
	clear(p.stale)
}
