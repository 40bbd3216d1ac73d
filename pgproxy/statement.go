package pgproxy

import (
	"container/list"
	"strconv"
	"sync"
	"sync/atomic"
	"unique"
)

// Limits of prepared statements in transaction mode.
const (
	// DefaultStatementCache is how many prepared statements a server connection keeps; each
	// costs the server a plan. The figure is PgBouncer's (max_prepared_statements).
	DefaultStatementCache = 200
	// maxServerText bounds the text of the statements of one server connection, in bytes: plans
	// of long texts take many times as much of the server's memory.
	maxServerText = 4 << 20
	// maxStatement bounds one Parse message, in bytes: it is kept in memory to be sent again.
	maxStatement = 256 << 10
	// maxClientStatements bounds what the statements of one client may take, in bytes.
	maxClientStatements = 8 << 20
	// statementOverhead is what a statement takes besides its text, in bytes.
	statementOverhead = 256
)

// namePrefix begins the names of our statements on servers. Clients cannot reach them by it.
const namePrefix = "headpond_"

// statement is a text (with parameter types) that clients have prepared under the same settings.
// They share it, and so do server connections.
type statement struct {
	statementKey
	name string // on servers
	refs int    // clients that have it; guarded by statements.mu
	// sweeps means that it takes named statements away.
	sweeps bool
	// valid means that a server has accepted it: another client that prepares it need not ask.
	valid atomic.Bool
	// parameters and columns are what clients were told of, as shapeOf has it; 0 = none was.
	parameters, columns atomic.Uint64
}

// statementKey is what makes statements the same.
type statementKey struct {
	plan unique.Handle[string] // the settings that give the text its meaning
	body string                // of Parse after the name: query, NUL, types
}

// cost is what a statement takes of maxClientStatements.
func (s *statement) cost() int { return len(s.body) + statementOverhead }

// statements is the table of all of a backend.
type statements struct {
	mu    sync.Mutex // never held across I/O
	byKey map[statementKey]*statement
	last  uint64
}

// get returns the statement with a body under settings, making it if needed, and counts a
// reference.
func (t *statements) get(plan unique.Handle[string], body []byte) *statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.byKey[statementKey{plan, string(body)}]
	if st == nil {
		st = t.add(statementKey{plan, string(body)})
		st.sweeps = sweeps(body)
	}
	st.refs++
	return st
}

// add makes a statement, in the place of what there was. mu is held.
func (t *statements) add(key statementKey) *statement {
	t.last++
	st := &statement{statementKey: key, name: namePrefix + strconv.FormatUint(t.last, 10)}
	if t.byKey == nil {
		t.byKey = make(map[statementKey]*statement)
	}
	t.byKey[key] = st
	return st
}

// renew returns a statement for clients that were told something else than those of old, of the same text, and counts a reference.
func (t *statements) renew(old *statement, parameters, columns uint64) *statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.byKey[old.statementKey]
	if st == nil || st == old || !mayBe(&st.parameters, parameters) || !mayBe(&st.columns, columns) {
		st = t.add(old.statementKey)
		st.sweeps = old.sweeps
		st.valid.Store(true)
	}
	st.parameters.CompareAndSwap(0, parameters)
	st.columns.CompareAndSwap(0, columns)
	st.refs++
	return st
}

// mayBe reports whether two shapes are the same as far as is known.
func mayBe(told *atomic.Uint64, is uint64) bool {
	was := told.Load()
	return was == 0 || is == 0 || was == is
}

// outdate sees to it that clients to come get another statement: for them st would be prepared anew.
func (t *statements) outdate(st *statement) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey[st.statementKey] == st {
		delete(t.byKey, st.statementKey)
	}
}

// known returns the statement if a server has accepted it, and counts a reference.
func (t *statements) known(plan unique.Handle[string], body []byte) *statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.byKey[statementKey{plan, string(body)}]
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
	if st.refs--; st.refs == 0 && t.byKey[st.statementKey] == st {
		delete(t.byKey, st.statementKey)
	}
}

// prepared is the set of statements a server connection has, the least recently used one
// first to go. Like the connection it belongs to one session at a time.
type prepared struct {
	limit int
	text  int       // bytes
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

// add notes that the server has st. Until surplus returns nil there are too many.
func (p *prepared) add(st *statement) {
	if p.at == nil {
		p.at = make(map[*statement]*list.Element)
	}
	if p.at[st] == nil {
		p.at[st] = p.order.PushFront(st)
		p.text += len(st.body)
	}
}

// surplus takes out a statement that is to be closed because there are too many, never the
// newest; nil if there are not.
func (p *prepared) surplus() *statement {
	if len(p.at) < 2 || len(p.at) <= p.limit && p.text <= maxServerText {
		return nil
	}
	st := p.order.Back().Value.(*statement)
	p.remove(st)
	return st
}

func (p *prepared) remove(st *statement) {
	if e := p.at[st]; e != nil {
		p.order.Remove(e)
		delete(p.at, st)
		p.text -= len(st.body)
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

// doubtAll doubts every statement, after a DEALLOCATE of one of them, nobody knows which.
func (p *prepared) doubtAll() {
	for st := range p.at {
		p.doubt(st)
	}
}

// anyStale takes out a statement that is in doubt, to be closed; nil if there is none.
func (p *prepared) anyStale() *statement {
	for st := range p.stale {
		delete(p.stale, st)
		return st
	}
	return nil
}

// clear forgets all, after DEALLOCATE ALL.
func (p *prepared) clear() {
	p.order.Init()
	clear(p.at)
	clear(p.stale)
	p.text = 0
}
