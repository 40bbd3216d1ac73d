package pgproxy

import (
	"errors"
	"time"

	"github.com/headpond/headpond/pgwire"
)

// State exposes the queue of pending answers, by messages on the wire.
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

// Client records a message of the client.
func (s *State) Client(typ byte) {
	switch kind, ok := clientOps[typ]; {
	case ok:
		s.st.push(op{kind: kind})
	case typ == pgwire.TypeCopyDone || typ == pgwire.TypeCopyFail:
		s.st.copyDone()
	}
}

// Server records a message of the server.
func (s *State) Server(typ byte, status pgwire.TxStatus) (err error) {
	if !s.st.stray(typ) {
		_, err = s.st.answer(typ, status)
	}
	s.st.local()
	return err
}

// Free reports whether the server connection could be given away.
func (s *State) Free() bool { return s.st.reusable() }

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
	case s.st.reusable() && s.st.due():
		return "free although an answer is due"
	}
	return ""
}

// Unclear reports whether the answers of the server connection cannot be told apart.
func (s *State) Unclear() bool { return s.st.unclear }

// Silent reports whether everything that is known to come has come. More may come all the same: EndDoubt.
func (s *State) Silent() bool { return s.st.settled() }

// EndDoubt notes that no answer to a Sync in the data of a failed COPY comes any more.
func (s *State) EndDoubt() { s.st.strays = 0 }

// IsUnclear reports whether an error ends a server connection whose answers cannot be told apart.
func IsUnclear(err error) bool { return errors.Is(err, errUnclear) }

// endDoubt finds out what the server still answers of the data of a failed COPY, as session.endDoubt does. It reports whether
// there was doubt.
func (d *Machine) endDoubt() bool {
	if d.m.st.strays == 0 || len(d.waiting) > 0 || !d.m.due() {
		return false
	}
	if d.srv.Doubt != nil {
		d.Log("counts the answers of %s", d.srv.Name)
		d.srv.Doubt()
		d.m.st.strays = 0
	}
	return true
}

// Lose ends the lease of a server connection that has broken.
func (d *Machine) Lose() {
	d.m.lost()
	d.srv.Gone, d.srv.Owner = true, nil
	d.srv = nil
}

// InCopy reports whether the machine knows that the server waits for COPY data.
func (d *Machine) InCopy() bool { return d.m.st.copyIn }

// Tick returns the number of the present tick.
func (p *Proxy) Tick() uint32 { return p.ticks.now.Load() }

// EndIdleBefore ends the sessions of clients that have been idle since before a tick.
func (p *Proxy) EndIdleBefore(tick uint32) { p.endIdleBefore(int64(tick)) }

// Idle returns how many clients are idle outside a transaction.
func (p *Proxy) Idle() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		if c.state.Load() == clientIdle {
			n++
		}
	}
	return n
}

// SetEndAfter sets how long a server has to end the statement of a client that has left.
func (p *Proxy) SetEndAfter(d time.Duration) { p.endAfter.Store(int64(d)) }
