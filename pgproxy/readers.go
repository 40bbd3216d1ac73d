package pgproxy

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"
)

// readers are the programs of which a client has asked for values of sequences (currval, lastval) in a later transaction
// than the one that has used the sequence. Only their server connections linger; see linger.go. Any goroutine may use
// it. The zero value has none.
type readers struct {
	list  atomic.Pointer[map[program]*reader] // never modified; nil = empty
	added func(program)                       // called for each new program, as long as none has lost its place; nil = nobody is told

	mu   sync.Mutex // held while list is replaced
	full bool       // a program has lost its place to another one
}

// program is what clients that run the same program have in common.
type program struct{ user, database, application string }

// anyApplication stands for all names of applications of a user in a database. PostgreSQL replaces the byte in names.
const anyApplication = "\x01"

// Limits of the programs that are remembered. Some programs put a number into each application_name: from
// maxApplications on, a user in a database counts as one program.
const (
	maxReaders      = 64
	maxApplications = 8
)

// reader is a program that reads values of sequences. It has credit for each kind of drawing: each read earns creditEarned,
// and each transaction after which other clients must wait costs one. So the server connections of a program that does
// not read most of its values are rarely kept from others.
type reader struct {
	credit [drawKinds]atomic.Int32
	gap    atomic.Int64 // the longest time until a client came back to read, as of late; 0 = not known
}

const (
	creditEarned = 8
	creditMost   = 32
)

// drawKind says how a transaction has used sequences.
type drawKind byte

const (
	drawsByInsert drawKind = iota // an INSERT, nextval or the like, by the text
	drawsByCall                   // perhaps a function, which may do anything
	drawKinds
)

// of returns the program, nil if it is none of the readers.
func (r *readers) of(p program) *reader {
	list := r.list.Load()
	if list == nil {
		return nil
	}
	if one := (*list)[p]; one != nil {
		return one
	}
	p.application = anyApplication
	return (*list)[p]
}

// none reports whether there are no readers.
func (r *readers) none() bool { return r.list.Load() == nil }

// note records that a client of the program has read values of sequences in a later transaction than that in which it has
// used them.
func (r *readers) note(p program, by drawKind) {
	one := r.of(p)
	if one == nil {
		var isNew bool
		if one, isNew = r.add(p); isNew && r.added != nil {
			r.added(p)
		}
	}
	if credit := &one.credit[by]; credit.Load() < creditMost {
		credit.Add(creditEarned)
	}
}

// add makes the program one of the readers, in place of the one with the least credit if there are too many. isNew says that
// added is to be called: if programs lose their places to each other, that would be for each question.
func (r *readers) add(p program) (one *reader, isNew bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one := r.of(p); one != nil {
		return one, false
	}
	list := map[program]*reader{}
	if now := r.list.Load(); now != nil {
		list = maps.Clone(*now)
	}
	same := func(q program, _ *reader) bool { return q.user == p.user && q.database == p.database }
	applications := 0
	for q := range list {
		if same(q, nil) {
			applications++
		}
	}
	if applications >= maxApplications {
		maps.DeleteFunc(list, same)
		p.application = anyApplication
	}
	if len(list) >= maxReaders {
		delete(list, poorest(list))
		r.full = true
	}
	one = new(reader)
	list[p] = one
	r.list.Store(&list)
	return one, !r.full
}

// poorest returns the program with the least credit.
func poorest(list map[program]*reader) (p program) {
	least := int32(0)
	for q, one := range list {
		if sum := one.credit[drawsByInsert].Load() + one.credit[drawsByCall].Load(); p == (program{}) || sum < least {
			p, least = q, sum
		}
	}
	return p
}

// patience returns for how long other clients have to wait for a server connection on which a client of the program has
// used a sequence.
func (r *reader) patience() time.Duration {
	gap := time.Duration(r.gap.Load())
	if gap == 0 {
		return lingerFirst
	}
	return min(max(4*gap, lingerLeast), lingerMost)
}

// came notes after which time a client has come back to read values. Nobody waits for those that take longer than lingerMost.
func (r *reader) came(gap time.Duration) {
	if gap > lingerMost {
		return
	}
	last := time.Duration(r.gap.Load())
	r.gap.Store(int64(max(gap, last-(last-gap)/gapFalls, 1)))
}

// gapFalls is how quickly reader.gap falls: within some hundred reads.
const gapFalls = 64

// pays spends credit for a transaction, and reports whether there was any.
func (r *reader) pays(by drawKind) bool {
	if r.credit[by].Add(-1) >= 0 {
		return true
	}
	r.credit[by].Add(1)
	return false
}
