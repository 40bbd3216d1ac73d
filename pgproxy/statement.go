package pgproxy

import (
	"container/list"
	"crypto/rand"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unique"
)

// Limits of prepared statements in transaction mode.
const (
	// DefaultStatementCache is how many prepared statements a server connection keeps; each costs the server a plan.
	// It equals PgBouncer's default (max_prepared_statements).
	DefaultStatementCache = 200
	// maxServerText bounds the texts of all statements of one server connection, in bytes: plans of long texts take
	// many times as much of the server's memory.
	maxServerText = 4 << 20
	// maxClientStatements bounds the memory of one client's statements, in bytes. The gateway keeps them to send them
	// again.
	maxClientStatements = 8 << 20
	// statementOverhead is the memory of a statement besides its text, in bytes.
	statementOverhead = 256
)

// namePrefix begins the gateway's names of statements on servers. The suffix is random, so that no client can guess
// the name of another client's statement and EXECUTE it.
const namePrefix = "headpond_"

// statement is a prepared statement of one client. It belongs to the client's session.
//
// A Parse fixes the meaning of its text: types, tables, functions and settings are looked up at that moment. So a
// server's statement serves a client only if it was parsed for the client's own Parse, or after that.
type statement struct {
	*sharedText
	own   uint64 // serverStatement.at of the statement parsed for the client's own Parse; 0 = none yet
	since uint64 // when the client's Parse was answered; before, notYet
	// parameters and columns are the fingerprints (fingerprintOf) of the description that the client got; 0 = none.
	parameters, columns uint64
	loose               bool   // the settings at its Parse will not be known: it is read under the present ones
	moment              uint32 // when a server would have read it last; see moments
}

// notYet is later than every event.
const notYet = math.MaxUint64

// isDescribed reports whether the client got a description of the statement's parameters or columns.
func (s *statement) isDescribed() bool { return s.parameters != 0 || s.columns != 0 }

// served reports whether a server's statement is as good for the client as one that is parsed now, and has the
// description that the client got.
func (s *statement) served(by *serverStatement) bool {
	return (by.at == s.own || by.at > s.since) &&
		(s.parameters == 0 || s.parameters == by.parameters) && (s.columns == 0 || s.columns == by.columns)
}

// sharedText is a text (with parameter types) that clients, or server connections, have prepared under the same
// settings. They share it.
type sharedText struct {
	textKey
	refs     int                     // statements of clients and servers with this text; guarded by sharedTexts.mu
	sweeps   bool                    // it removes named statements
	fetches  bool                    // it is a FETCH, see described
	sets     bool                    // settingsIn finds something in it
	steady   bool                    // changesNoSetting, and not sets
	effect   effect                  // effectOf
	literals bool                    // hasLiterals
	alone    bool                    // runsAlone
	executes []string                // the names of statements that the text executes by SQL, see executedBy; not changed
	judged   atomic.Pointer[verdict] // the last verdict; see leaves
	accepted atomic.Bool             // the last server that was asked has accepted the text
}

// tracesOf returns judge's result for the statement.
func (t *sharedText) tracesOf(c *catalog) traces {
	v := t.judged.Load()
	if v == nil || v.by != c.versionOf() {
		v = &verdict{by: c.versionOf(), left: c.judge([]byte(t.body))}
		t.judged.Store(v)
	}
	return v.left
}

// textKey identifies equal texts.
type textKey struct {
	plan unique.Handle[string]  // the settings that affect the meaning of the text
	read unique.Handle[reading] // other settings, under which the text is read; see reading.go
	of   uint64                 // machine.client, if the server may read the text otherwise; 0 = nobody's; see privacy
	body string                 // the body of Parse after the name: query, NUL, types
}

// cost returns what a statement of the text counts towards maxClientStatements, in bytes.
func (t *sharedText) cost() int { return len(t.body) + statementOverhead }

// sharedTexts is the table of all texts of a backend.
type sharedTexts struct {
	// last numbers events in the order of time: each Parse that is sent to a server, and each answer to a client's
	// Parse.
	last  atomic.Uint64
	mu    sync.Mutex // never held across I/O
	byKey map[textKey]*sharedText
}

// get returns the text of a body under the settings of plan, made if necessary, and adds a reference. of is that of textKey.
func (t *sharedTexts) get(plan unique.Handle[string], read unique.Handle[reading], of uint64, body []byte) *sharedText {
	if text := t.find(plan, read, of, body); text != nil {
		return text
	}
	found := settingsIn(body) // before mu is locked
	made := &sharedText{textKey: textKey{plan, read, of, string(body)}, sweeps: sweeps(body), fetches: fetches(body), sets: found.any(), executes: executedBy(body)}
	calm := changesNoSetting(body)
	made.steady, made.effect, made.literals, made.alone = !made.sets && calm, effectOf(body, calm, found), hasLiterals(body), runsAlone(body)
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

// find is get for a text that exists, nil if there is none.
func (t *sharedTexts) find(plan unique.Handle[string], read unique.Handle[reading], of uint64, body []byte) *sharedText {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.byKey[textKey{plan, read, of, string(body)}]
	if text != nil {
		text.refs++
	}
	return text
}

// getAccepted is find for a text that the last server asked has accepted.
func (t *sharedTexts) getAccepted(plan unique.Handle[string], body []byte) *sharedText {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := t.byKey[textKey{plan, present, 0, string(body)}]
	if text == nil || !text.accepted.Load() {
		return nil
	}
	text.refs++
	return text
}

// addRef adds a reference to a text that has some.
func (t *sharedTexts) addRef(text *sharedText) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text.refs++
}

// put drops a reference.
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
	at   uint64 // when its Parse was sent, in sharedTexts.last's numbers
	// parameters and columns are the fingerprints of the server's description; 0 = it has given none.
	parameters, columns uint64
}

// newServerStatement returns a statement whose Parse is about to be sent.
func (t *sharedTexts) newServerStatement(text *sharedText) *serverStatement {
	at := t.last.Add(1)
	return &serverStatement{text: text, name: namePrefix + rand.Text(), at: at}
}

// prepared is the set of statements of a server connection, one of each text. The least recently used is the first to
// be closed. The set belongs to one session at a time, as the connection does.
type prepared struct {
	limit int
	size  int // of the texts, in bytes
	texts *sharedTexts
	order list.List // of *serverStatement, most recent first
	at    map[*sharedText]*list.Element
	read  bool     // there may be statements of texts with a reading
	stale []string // names of retired statements that the server may still have

	// The gateway's own, which do not count for the limits.
	replay   *replayStatements // see machine_replay.go; nil = none
	question string            // of questionSQL; "" = none
	digest   string            // see digest.go; "" = none
}

// find returns the server's statement of a text, nil if there is none.
func (p *prepared) find(text *sharedText) *serverStatement {
	if e := p.at[text]; e != nil {
		return e.Value.(*serverStatement)
	}
	return nil
}

// use returns the server's statement if it serves the client's, nil otherwise, and notes the use.
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

// add records that a statement is being prepared on the server. It retires the server's previous one of that text.
// The caller calls surplus afterwards.
func (p *prepared) add(on *serverStatement) {
	if old := p.find(on.text); old != nil {
		p.retire(old)
	}
	if p.at == nil {
		p.at = make(map[*sharedText]*list.Element)
	}
	p.at[on.text] = p.order.PushFront(on)
	p.read = p.read || on.text.read != present
	p.size += len(on.text.body)
	p.texts.addRef(on.text)
}

// retireSurplus retires the least recently used statements beyond the limits, but never the newest.
func (p *prepared) retireSurplus() {
	for len(p.at) > 1 && (len(p.at) > p.limit || p.size > maxServerText) {
		p.retire(p.order.Back().Value.(*serverStatement))
	}
}

// remove takes a statement out of the set, and reports whether the set had it.
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

// retire removes a statement that is no longer of use, and marks it to be closed.
func (p *prepared) retire(on *serverStatement) {
	if p.remove(on) {
		p.stale = append(p.stale, on.name)
	}
}

// retireQuestions retires the statements of questions about what clients have left.
func (p *prepared) retireQuestions() {
	for _, name := range []*string{&p.question, &p.digest} {
		if *name != "" {
			p.stale, *name = append(p.stale, *name), ""
		}
	}
}

// retireReplay retires the statements of the replay.
func (p *prepared) retireReplay() {
	if p.replay != nil {
		p.stale = append(p.stale, p.replay.begin, p.replay.set, p.replay.commit)
		p.replay = nil
	}
}

// retireAll retires all statements except for those of the texts in but.
func (p *prepared) retireAll(but map[*sharedText]bool) {
	p.retireReplay()
	p.retireQuestions()
	for e := p.order.Front(); e != nil; {
		on := e.Value.(*serverStatement)
		e = e.Next()
		if !but[on.text] {
			p.retire(on)
		}
	}
}

// retireRead retires the statements of texts that were read under other settings than those of their plan.
func (p *prepared) retireRead() {
	if !p.read {
		return
	}
	p.read = false
	for e := p.order.Front(); e != nil; {
		on := e.Value.(*serverStatement)
		e = e.Next()
		if on.text.read != present {
			p.retire(on)
		}
	}
}

// retireLiterals retires the statements whose literals the server reads again when they are used.
func (p *prepared) retireLiterals() {
	for e := p.order.Front(); e != nil; {
		on := e.Value.(*serverStatement)
		e = e.Next()
		if on.text.literals {
			p.retire(on)
		}
	}
}

// nextStale removes and returns the name of a statement that is to be closed; "" if there is none.
func (p *prepared) nextStale() (name string) {
	if n := len(p.stale); n > 0 {
		name, p.stale = p.stale[n-1], p.stale[:n-1]
	}
	return name
}

// unstale removes one of the last names from those of statements that are to be closed: the server has not prepared the statement.
func (p *prepared) unstale(name string) {
	for i, stale := range slices.Backward(p.stale) {
		if stale == name {
			p.stale = slices.Delete(p.stale, i, i+1)
			return
		}
	}
}

// clear forgets all statements, after DEALLOCATE ALL or at the end of the server connection.
func (p *prepared) clear() {
	for p.order.Len() > 0 {
		p.remove(p.order.Front().Value.(*serverStatement))
	}
	p.stale, p.replay, p.question, p.digest = nil, nil, "", ""
}
