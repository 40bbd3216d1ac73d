package pgproxy

import (
	"cmp"
	"math"
	"sync/atomic"
	"unique"

	"github.com/headpond/headpond/pgwire"
)

// The unnamed statement keeps its name. The gateway parses it again on a server connection whose unnamed statement is
// not the client's. The server may skip a message, so the record of the previous unnamed statement is kept until the
// answer arrives.

// lastChange numbers the changes of unnamed statements, so that a server connection can record whose it has.
var lastChange atomic.Uint64

// unnamed is a client's unnamed statement.
type unnamed struct {
	id     uint64                // of the change that made it; 0 = no unnamed statement
	once   bool                  // it was bound in the pipeline that parsed it
	sweeps bool                  // as in sharedText
	sets   bool                  // as in sharedText
	steady bool                  // as in sharedText
	effect effect                // as in sharedText
	loose  bool                  // as in statement
	left   traces                // what it may leave
	by     uint32                // catalog.version, as of left
	text   []byte                // its Parse body after the name; nil = not kept
	plan   unique.Handle[string] // machine.plan at its Parse, once that is answered; see unnamedRead
	moment uint32                // as in statement, likewise
}

// change is a message on its way that replaces or removes the unnamed statement.
type change struct {
	id     uint64
	own    bool    // it changes the client's statement; else only the server's, for the gateway
	was    unnamed // the client's statement before
	server uint64  // server.unnamed before
}

// Sizes of unnamed statements, in bytes. A statement that is bound in the pipeline that parsed it will hardly be
// bound again in a later transaction, perhaps on another server connection.
const (
	smallUnnamed = 1 << 10 // memory that a client keeps from one statement to the next
	largeUnnamed = 8 << 10 // longer texts are dropped once bound in that way
	maxUnnamed   = 256 << 10
)

// change pushes a message that changes the server's unnamed statement and, if own is set, the client's. ok is false
// if the server will skip the message.
func (m *machine) change(o op, own bool) (id uint64, ok bool) {
	o.id = lastChange.Add(1)
	if !m.st.push(o) {
		return 0, false
	}
	m.changes = append(m.changes, change{id: o.id, own: own, was: m.unnamed, server: m.server.unnamed})
	return o.id, true
}

// parseUnnamed judges Parse of the unnamed statement, and keeps its text if that is short.
func (m *machine) parseUnnamed(msg message) action {
	kept := msg.size() <= maxUnnamed
	if kept && !msg.hasBody(msg.size()) {
		return action{do: more, n: msg.size()}
	}
	c := m.shared.knowledge.now.Load()
	left, quiet := traceUnknown|traceUnread, false
	if !kept && len(msg.body) > 0 {
		left |= lastingIn(msg.body[1:]) | definesUnread(msg.body[1:])
	}
	if kept {
		left, quiet = m.shared.verdicts.judge(c, msg.body[1:])
	} else {
		m.unread = true
	}
	if m.defersTo(left) {
		return action{do: adapt}
	}
	if m.awaitsPlace(left) {
		return action{do: place}
	}
	if kept && left&traceShows != 0 {
		if before := m.beforeShowing(msg.body[1:], nil); before != pass {
			return action{do: before}
		}
	}
	var names []string
	if kept && left&exposing != 0 {
		names = m.executedIn(left, msg.body[1:])
		if m.exposesLater(left, names) {
			return action{do: wait}
		}
	}
	if waits, e := m.listInBlock(left); waits {
		return action{do: wait}
	} else if e = cmp.Or(e, m.refusal(left)); e != nil {
		m.rejectWith(e)
		return action{do: take}
	}
	m.exposeNames(names)
	if kept && left&traceShows != 0 {
		m.restoreNames(msg.body[1:])
	}
	m.guardReads(left)
	id, ok := m.change(op{kind: opParse}, true)
	if !ok {
		return action{do: take}
	}
	m.unnamed, m.server.unnamed, m.unnamedNew = unnamed{id: id, left: left, by: c.versionOf(), loose: m.settingsUnsynced}, id, true
	if kept {
		m.unnamed.text = m.keep(msg.body[1:])
		var found textSettings
		if !quiet {
			found = settingsIn(msg.body[1:])
			m.unnamed.sweeps, m.unnamed.sets = sweeps(msg.body[1:]), found.any()
		}
		calm := changesNoSetting(m.unnamed.text)
		m.unnamed.steady, m.unnamed.effect = !m.unnamed.sets && calm, effectOf(m.unnamed.text, calm, found)
	}
	return action{do: pass}
}

// leftByUnnamed returns what the client's unnamed statement may leave.
func (m *machine) leftByUnnamed() traces {
	u, c := &m.unnamed, m.shared.knowledge.now.Load()
	switch {
	case u.id == 0 || u.by == c.versionOf():
	case u.text != nil:
		u.left, _ = m.shared.verdicts.judge(c, u.text)
		u.by = c.versionOf()
	default:
		return u.left | traceUnknown
	}
	return u.left
}

// keep returns a copy of a text, in spare memory if that fits.
func (m *machine) keep(text []byte) []byte {
	b := m.spare
	if n := cap(b); n < len(text) || n > 2*len(text)+smallUnnamed {
		return append(make([]byte, 0, len(text)), text...)
	}
	m.spare = nil
	return append(b[:0], text...)
}

// dropUnnamed pushes a Query, which destroys the unnamed statement. It returns false, and has done nothing, if there
// is certainly no unnamed statement.
func (m *machine) dropUnnamed(o op) bool {
	if m.unnamed.id == 0 && m.server.unnamed == 0 && m.changed == len(m.changes) {
		return false
	}
	if _, ok := m.change(o, true); ok {
		m.noUnnamed()
	}
	return true
}

// noUnnamed records that neither the client nor the server has an unnamed statement.
func (m *machine) noUnnamed() { m.unnamed, m.server.unnamed, m.unnamedNew = unnamed{}, 0, false }

// ensureUnnamed gives the server connection the client's unnamed statement, if it has another one.
func (m *machine) ensureUnnamed() {
	srv := m.server
	switch {
	case srv.unnamed == m.unnamed.id && m.unnamed.id != 0:
	case m.unnamed.id != 0 && m.unnamed.text != nil:
		read := m.unnamedRead()
		commits := m.needsCommit(runsAlone(m.unnamed.text), read)
		m.beginReading(read, false)
		if id, ok := m.change(op{kind: opInjectedParse}, false); ok {
			m.sendParse("", string(m.unnamed.text))
			m.unnamed.id, srv.unnamed = id, id
		}
		m.endReading(read, false, commits)
	default: // The server's may be another client's. Without it, the server answers with an error.
		if _, ok := m.change(op{kind: opInjectedClose}, false); ok {
			m.ask(&pgwire.Close{Object: pgwire.ObjectStatement})
			srv.unnamed = 0
		}
	}
}

// unnamedRead returns the reading for another Parse of the client's unnamed statement.
func (m *machine) unnamedRead() unique.Handle[reading] {
	u := &m.unnamed
	if u.plan == m.plan && m.knowsSettings() || u.plan == (unique.Handle[string]{}) || !m.canSet() || !hasLiterals(u.text) {
		return present
	}
	return m.explicitly(m.readAs(u.plan, present, u.moment != m.moments.now || !analyzed(u.text)), u.text)
}

// knowsUnnamed reports whether a message that uses the unnamed statement can be judged now: the pending messages have
// the same effect on the client's unnamed statement, on the server's, and on that message.
func (m *machine) knowsUnnamed() bool {
	return m.unnamedNew || !m.st.endsBetween() || m.changed == len(m.changes)
}

// parsed notes that the server has completed a Parse.
func (m *machine) parsed() {
	switch o := m.st.first(); {
	case o == nil:
	case o.id != 0:
		if o.kind == opParse && o.id == m.unnamed.id && !m.unnamed.loose {
			m.unnamed.plan, m.unnamed.moment = m.plan, m.moments.now
		}
		m.changesDone(o.id)
	case o.on != nil:
		o.on.text.accepted.Store(true)
		if o.kind == opParse {
			o.st.since, o.st.moment = m.shared.texts.last.Add(1), m.moments.now
			if o.st.plan != m.plan { // settings were changed in front of it, in the same pipeline
				m.move(o.st, present)
			}
		}
	}
}

// changesDone notes that the server has completed every change up to id, or has skipped it and undoUnnamed has undone
// it.
func (m *machine) changesDone(id uint64) {
	for ; m.changed < len(m.changes) && m.changes[m.changed].id <= id; m.changed++ {
		c := &m.changes[m.changed]
		if n := cap(c.was.text); c.own && n <= largeUnnamed && n > cap(m.spare) {
			m.spare = c.was.text
		}
		*c = change{}
	}
	if m.changed < len(m.changes) {
		return
	}
	if m.changes, m.changed = m.changes[:0], 0; cap(m.changes) > maxKeptOps {
		m.changes = nil
	}
}

// lastOfAll makes changesDone complete all changes: the server has nothing more to answer.
const lastOfAll = math.MaxUint64

// undoUnnamed corrects the record of the unnamed statement after an error, which made the server skip some changes. A
// failed Parse has destroyed the unnamed statement.
func (m *machine) undoUnnamed(undone []op) {
	var first, last uint64
	for _, o := range undone {
		if o.id != 0 && first == 0 {
			first = o.id
		}
		last = max(last, o.id)
	}
	if first == 0 {
		return
	}
	m.changesDone(first - 1)
	before := m.changes[m.changed]
	if failed := &m.st.failed; failed.id == first {
		before.server = 0
		if failed.kind == opParse {
			before.was = unnamed{}
		}
	}
	for m.changed < len(m.changes) && m.changes[m.changed].id <= last {
		m.changes[m.changed] = change{}
		m.changed++
	}
	later := m.changes[m.changed:]
	if len(later) == 0 {
		m.unnamed, m.server.unnamed, m.unnamedNew = before.was, before.server, false
		m.changesDone(last)
		return
	}
	later[0].server = before.server
	for i := range later {
		if later[i].was = before.was; later[i].own {
			return
		}
	}
	m.unnamed = before.was
}

// loseUnnamed records that the server connection broke: it is unknown which changes it made.
func (m *machine) loseUnnamed() {
	for _, c := range m.changes[m.changed:] {
		if c.own {
			m.noUnnamed()
		}
	}
	m.changesDone(lastOfAll)
}

// trimUnnamed drops the text of a large unnamed statement that has been bound in the pipeline that parsed it.
func (m *machine) trimUnnamed() {
	if m.unnamed.once && cap(m.unnamed.text) > largeUnnamed {
		m.unnamed.text = nil
	}
}
