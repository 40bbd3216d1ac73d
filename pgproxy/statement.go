package pgproxy

import (
	"container/list"
	"crypto/rand"
	"math"
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
	// maxClientStatements bounds the memory of one client's statements, in bytes: they are kept in memory to be sent
	// again.
	maxClientStatements = 8 << 20
	// statementOverhead is the memory of a statement besides its text, in bytes.
	statementOverhead = 256
)

// namePrefix begins the names of our statements on servers. What follows is random: SQL's EXECUTE would run those of other clients.
const namePrefix = "headpond_"

// statement is a prepared statement of one client. It belongs to the client's session.
//
// A Parse has the meaning of its text when it is sent: types, tables, functions and settings are looked up then. So a
// server's statement serves a client only if it was parsed for the client's own Parse, or after it.
type statement struct {
	*sharedText
	own   uint64 // serverStatement.at of the one that was parsed for the client last
	since uint64 // when the client's Parse was answered; notYet before
	// parameters and columns are the fingerprints (fingerprintOf) of the description that the client got; 0 = it got
	// none.
	parameters, columns uint64
}

// notYet is later than everything.
const notYet = math.MaxUint64

// isDescribed reports whether the client got a description of the statement's parameters or columns.
func (s *statement) isDescribed() bool { return s.parameters != 0 || s.columns != 0 }

// served reports whether a server's statement is as good for the client as one that would be parsed now, with the
// description that the client got.
func (s *statement) served(by *serverStatement) bool {
	return (by.at == s.own || by.at > s.since) &&
		(s.parameters == 0 || s.parameters == by.parameters) && (s.columns == 0 || s.columns == by.columns)
}

// sharedText is a text (with parameter types) that clients have prepared under the same settings, or servers have. They share it.
type sharedText struct {
	textKey
	refs     int                     // statements of clients and of servers; guarded by sharedTexts.mu
	sweeps   bool                    // it takes named statements away
	sets     bool                    // settingsIn finds something in it
	executes []string                // the names of statements that it executes by SQL, see executedBy; it is not changed
	judged   atomic.Pointer[verdict] // the last one; see leaves
	accepted atomic.Bool             // by the server that was asked last
}

// leaves returns what the statement may leave, as judge has it.
func (t *sharedText) leaves(c *catalog) traces {
	v := t.judged.Load()
	if v == nil || v.by != c.versionOf() {
		v = &verdict{by: c.versionOf(), left: c.judge([]byte(t.body))}
		t.judged.Store(v)
	}
	return v.left
}

// textKey identifies equal texts.
type textKey struct {
	plan unique.Handle[string] // the settings that give the text its meaning
	body string                // of Parse after the name: query, NUL, types
}

// cost is the part of maxClientStatements that a statement of a text takes.
func (t *sharedText) cost() int { return len(t.body) + statementOverhead }

// sharedTexts is the table of all of a backend.
type sharedTexts struct {
	// last numbers events of statements in time: each Parse that is sent to a server, and each of a client that is
	// answered.
	last  atomic.Uint64
	mu    sync.Mutex // never held across I/O
	byKey map[textKey]*sharedText
}

// get returns the text with a body under settings, and counts a reference.
func (t *sharedTexts) get(plan unique.Handle[string], body []byte) *sharedText {
	if text := t.find(plan, body); text != nil {
		return text
	}
	made := &sharedText{textKey: textKey{plan, string(body)}, sweeps: sweeps(body), sets: settingsIn(body).any(), executes: executedBy(body)} // mu is not held
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.byKey[made.textKey]
	if text == nil {
		if t.byKey == nil {
			t.byKey = make(map[textKey]*sharedText)
		}
		text = made
		t.byKey[made.textKey] = made
	}
	text.refs++
	return text
}

// find returns the text if it is there, and counts a reference.
func (t *sharedTexts) find(plan unique.Handle[string], body []byte) *sharedText {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.byKey[textKey{plan, string(body)}]
	if text != nil {
		text.refs++
	}
	return text
}

// getAccepted returns the text if the server that was asked last has accepted it, and counts a reference.
func (t *sharedTexts) getAccepted(plan unique.Handle[string], body []byte) *sharedText {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.byKey[textKey{plan, string(body)}]
	if text == nil || !text.accepted.Load() {
		return nil
	}
	text.refs++
	return text
}

// hold counts one more reference to a text that has some.
func (t *sharedTexts) hold(text *sharedText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text.refs++
}

// put gives a reference back.
func (t *sharedTexts) put(text *sharedText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text.refs--; text.refs == 0 {
		delete(t.byKey, text.textKey)
	}
}

// serverStatement is a prepared statement of one server connection. Its name is never given to another one.
type serverStatement struct {
	text *sharedText
	name string
	at   uint64 // when its Parse was sent
	// parameters and columns are how the server described it, as fingerprintOf has it; 0 = it has not.
	parameters, columns uint64
}

// newServerStatement returns one that is about to be parsed.
func (t *sharedTexts) newServerStatement(text *sharedText) *serverStatement {
	at := t.last.Add(1)
	return &serverStatement{text: text, name: namePrefix + rand.Text(), at: at}
}

// maxServerName is the longest name of a serverStatement, in bytes.
const maxServerName = len(namePrefix) + 26

// prepared is the set of statements that a server connection has, one of each text, the least recently used one
// first to go. Like the connection it belongs to one session at a time.
type prepared struct {
	limit int
	size  int // of the texts, in bytes
	texts *sharedTexts
	order list.List // of *serverStatement, most recent first
	at    map[*sharedText]*list.Element
	stale []string // names that the server may still have, of statements that are no use
}

// find returns the statement that the server has of a text, nil if there is none.
func (p *prepared) find(text *sharedText) *serverStatement {
	if e := p.at[text]; e != nil {
		return e.Value.(*serverStatement)
	}
	return nil
}

// use returns the statement that serves a client's, nil if there is none, and notes the use.
func (p *prepared) use(st *statement) *serverStatement {
	e := p.at[st.sharedText]
	if e == nil {
		return nil
	}
	on := e.Value.(*serverStatement)
	if !st.served(on) {
		return nil
	}
	p.order.MoveToFront(e)
	return on
}

// add records that the server gets a statement, in place of its others of the text. Until surplus returns nil there are
// too many.
func (p *prepared) add(on *serverStatement) {
	if old := p.find(on.text); old != nil {
		p.retire(old)
	}
	if p.at == nil {
		p.at = make(map[*sharedText]*list.Element)
	}
	p.at[on.text] = p.order.PushFront(on)
	p.size += len(on.text.body)
	p.texts.hold(on.text)
}

// surplus retires statements that are too many, never the newest.
func (p *prepared) surplus() {
	for len(p.at) > 1 && (len(p.at) > p.limit || p.size > maxServerText) {
		p.retire(p.order.Back().Value.(*serverStatement))
	}
}

// remove takes out a statement that the server has not.
func (p *prepared) remove(on *serverStatement) (was bool) {
	e := p.at[on.text]
	if e == nil || e.Value.(*serverStatement) != on {
		return false
	}
	p.order.Remove(e)
	delete(p.at, on.text)
	p.size -= len(on.text.body)
	p.texts.put(on.text)
	return true
}

// retire takes out a statement that is no use any more: it is to be closed.
func (p *prepared) retire(on *serverStatement) {
	if p.remove(on) {
		p.stale = append(p.stale, on.name)
	}
}

// retireAll retires every statement but those of some texts.
func (p *prepared) retireAll(but map[*sharedText]bool) {
	for e := p.order.Front(); e != nil; {
		on := e.Value.(*serverStatement)
		e = e.Next()
		if !but[on.text] {
			p.retire(on)
		}
	}
}

// nextStale takes out the name of a statement that is to be closed; "" if there is none.
func (p *prepared) nextStale() (name string) {
	if n := len(p.stale); n > 0 {
		name, p.stale = p.stale[n-1], p.stale[:n-1]
	}
	return name
}

// clear forgets all, after DEALLOCATE ALL, or as the server connection ends.
func (p *prepared) clear() {
	for p.order.Len() > 0 {
		p.remove(p.order.Front().Value.(*serverStatement))
	}
	p.stale = nil
}
