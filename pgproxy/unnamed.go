package pgproxy

import (
	"math"
	"sync/atomic"

	"github.com/headpond/headpond/pgwire"
)

// The unnamed statement keeps its name; it is parsed again on a server connection whose unnamed
// statement is not the client's. What is sent may be skipped by the server, so that what the unnamed
// statement was before is kept until the answer is there.

// lastChange numbers changes of unnamed statements, so that a server connection can tell whose it has.
var lastChange atomic.Uint64

// unnamed is a client's unnamed statement.
type unnamed struct {
	id     uint64 // of the change that made it; 0 = there is none
	once   bool   // it was used in the pipeline that parsed it
	sweeps bool   // as in statement
	text   []byte // its Parse body after the name; nil = not kept
}

// change is a message on its way that makes the unnamed statement another one.
type change struct {
	id     uint64
	own    bool    // the client's; else the gateway's, which changes only the server's
	was    unnamed // the client's before
	server uint64  // the server's before, as server.unnamed has it
}

// Sizes of unnamed statements, in bytes. One that is bound in the pipeline that parsed it will
// hardly be bound again in a later transaction, on another server connection perhaps.
const (
	smallUnnamed = 1 << 10 // memory a client keeps from one statement to the next
	largeUnnamed = 8 << 10 // kept until the next in any case; up to maxUnnamed if not bound yet
	maxUnnamed   = 256 << 10
)

// change pushes a message that changes the server's unnamed statement, and with own the client's. Not
// ok means that the server will skip it. mu is held.
func (s *session) change(o op, own bool) (id uint64, ok bool) {
	o.id = lastChange.Add(1)
	if !s.st.push(o) {
		return 0, false
	}
	s.changes = append(s.changes, change{id: o.id, own: own, was: s.unnamed, server: s.srv.unnamed})
	return o.id, true
}

// parseUnnamed forwards Parse of the unnamed statement, and keeps its text if that is short.
func (s *session) parseUnnamed(h pgwire.Header) error {
	var body []byte
	if h.Len <= maxUnnamed {
		var err error
		if body, err = s.c.Reader.Body(); err != nil {
			return err
		}
	}
	s.lockShared()
	s.x.likely = h.Len <= largeUnnamed && s.st.empty()
	id, ok := s.change(op{kind: opParse}, true)
	if ok {
		s.unnamed, s.srv.unnamed, s.unnamedNew = unnamed{id: id}, id, true
		if body != nil {
			s.unnamed.text, s.unnamed.sweeps = s.keep(body[1:]), sweeps(body[1:])
		}
	}
	s.unlockShared()
	switch {
	case !ok && body == nil:
		return s.c.Reader.Skip()
	case !ok:
		return nil
	case body == nil:
		return s.raw(h)
	}
	s.srv.w.Header(h.Type, h.Len)
	if _, err := s.srv.w.Write(body); err != nil {
		return s.writeFailed(err)
	}
	return nil
}

// keep returns a copy of a text. mu is held.
func (s *session) keep(text []byte) []byte {
	b := s.spare
	if n := cap(b); n < len(text) || n > 2*len(text)+smallUnnamed {
		return append(make([]byte, 0, len(text)), text...)
	}
	s.spare = nil
	return append(b[:0], text...)
}

// dropUnnamed pushes a Query that destroys the unnamed statement. It reports false, having done
// nothing, where there is none for certain. mu is held.
func (s *session) dropUnnamed() bool {
	if s.unnamed.id == 0 && s.srv.unnamed == 0 && s.changed == len(s.changes) {
		return false
	}
	if _, ok := s.change(op{kind: opQuery, name: s.drop}, true); ok {
		s.noUnnamed()
	}
	return true
}

// noUnnamed notes that neither the client nor the server has an unnamed statement. mu is held.
func (s *session) noUnnamed() { s.unnamed, s.srv.unnamed, s.unnamedNew = unnamed{}, 0, false }

// ensureUnnamed sees to it that the server connection's unnamed statement is the client's. mu is held.
func (s *session) ensureUnnamed() {
	srv := s.srv
	switch {
	case srv.unnamed == s.unnamed.id && s.unnamed.id != 0:
	case s.unnamed.id != 0 && s.unnamed.text != nil:
		if id, ok := s.change(op{kind: opInjectedParse}, false); ok {
			s.sendParse("", string(s.unnamed.text))
			s.unnamed.id, srv.unnamed = id, id
		}
	default: // The server's may be another client's: without it the server says what there is to say.
		if _, ok := s.change(op{kind: opInjectedClose}, false); ok {
			s.out = (&pgwire.Close{Object: pgwire.ObjectStatement}).Append(s.out)
			srv.unnamed = 0
		}
	}
}

// knowsUnnamed reports whether what is on its way to the server decides alike about the unnamed
// statement of the client, about that of the server, and about the message that is to use it. mu is
// held.
func (s *session) knowsUnnamed() bool {
	return s.unnamedNew || s.st.ends == 0 || s.changed == len(s.changes)
}

// parsed notes that the server has done a Parse. Where a server reader runs, mu is held.
func (s *session) parsed() {
	o, ok := s.st.front()
	switch {
	case !ok:
	case o.id != 0:
		s.changesDone(o.id)
	case o.on != nil:
		o.on.text.accepted.Store(true)
		if o.kind == opParse {
			o.st.since = s.b.texts.last.Add(1)
		}
	}
}

// changesDone notes that the server has done, or skipped and undo undone, every change up to one. mu
// is held.
func (s *session) changesDone(id uint64) {
	for ; s.changed < len(s.changes) && s.changes[s.changed].id <= id; s.changed++ {
		c := &s.changes[s.changed]
		if n := cap(c.was.text); c.own && n <= largeUnnamed && n > cap(s.spare) {
			s.spare = c.was.text
		}
		*c = change{}
	}
	if s.changed < len(s.changes) {
		return
	}
	if s.changes, s.changed = s.changes[:0], 0; cap(s.changes) > maxKeptOps {
		s.changes = nil
	}
}

// lastOfAll is for changesDone where the server has nothing more to say.
const lastOfAll = math.MaxUint64

// undoUnnamed corrects what is known of the unnamed statement after an error: the server did nothing of
// the changes that were skipped. One that failed has destroyed it. mu is held where a server reader runs.
func (s *session) undoUnnamed(undone []op) {
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
	s.changesDone(first - 1)
	before := s.changes[s.changed]
	if failed := &s.st.failed; failed.id == first {
		before.server = 0
		if failed.kind == opParse {
			before.was = unnamed{}
		}
	}
	for s.changed < len(s.changes) && s.changes[s.changed].id <= last {
		s.changes[s.changed] = change{}
		s.changed++
	}
	later := s.changes[s.changed:]
	if len(later) == 0 {
		s.unnamed, s.srv.unnamed, s.unnamedNew = before.was, before.server, false
		s.changesDone(last)
		return
	}
	later[0].server = before.server
	for i := range later {
		if later[i].was = before.was; later[i].own {
			return
		}
	}
	s.unnamed = before.was
}

// loseUnnamed notes that the server connection broke: what it did of the changes on their way nobody
// knows. mu is held where a server reader runs.
func (s *session) loseUnnamed() {
	for _, c := range s.changes[s.changed:] {
		if c.own {
			s.noUnnamed()
		}
	}
	s.changesDone(lastOfAll)
}

// trimUnnamed lets go of a large unnamed statement that has served its purpose.
func (s *session) trimUnnamed() {
	if s.unnamed.once && cap(s.unnamed.text) > largeUnnamed {
		s.unnamed.text = nil
	}
}
