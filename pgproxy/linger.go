package pgproxy

import (
	"context"
	"time"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// In transaction mode, currval and lastval in a later transaction can be answered by one server connection only: that on
// which the client has used the sequence, as long as no other client has had it. Programs that insert a row and ask for
// its number in the next transaction are known after the first time (readers.go). A server connection on which one of
// their clients has used a sequence lingers: for reader.patience no other client gets it, even if it waits, and later others
// get it last. Whatever the client asks for next, it gets that server connection if it is still there. If it is not, the
// values are gone (forgetSequences), and the server says that currval is not yet defined in this session.

const (
	// lingerFirst is how long others wait for a server connection that lingers, until it is known after which time the
	// program's clients come back. Then it is four times as long, from lingerLeast to lingerMost: most come back sooner, and
	// one that does not gets an error.
	lingerFirst = 20 * time.Millisecond
	lingerLeast = 10 * time.Millisecond
	// lingerMost also bounds for how long a client gets the same server connection again and again while others wait. Then
	// it only gets it to read the values, if it uses no sequence in the same transaction.
	lingerMost = 100 * time.Millisecond
)

// clientValues is what is known of the values of sequences that a client has not read yet.
type clientValues struct {
	awaits bool     // it has used sequences, and not read their values since
	paid   bool     // reader.pays was called for that
	drew   drawKind // how it has used them
}

// lingering is a session's server connection between two leases.
type lingering struct {
	place upstream.Lingering[*server]
	at    time.Duration // when it began to linger, by clock
	since time.Duration // likewise, the first of several times without another client in between
	again bool          // the present lease is that of a server connection that has lingered
	due   bool          // likewise, and it has to be checked first
}

// drawing are the traces of statements that probably use sequences. UPDATE and DELETE may use some by triggers.
const drawing = traceInserts | traceSequences | traceUnknown

// noteValues records that a statement, which is about to run, reads values of sequences, or may use sequences.
func (m *machine) noteValues(left traces) {
	if left&traceReads != 0 {
		if left&traceEarlier != 0 && m.draws == 0 && m.sequenceLeases > 0 {
			m.shared.readers.note(m.program(), m.drew)
		}
		m.awaits, m.reads = false, true
	}
	left &= drawing
	m.draws |= left
	switch {
	case left&^traceUnknown != 0:
		m.clientValues = clientValues{awaits: true, drew: drawsByInsert}
	case left != 0 && !m.awaits:
		m.clientValues = clientValues{awaits: true, drew: drawsByCall}
	}
}

// program returns what the client runs.
func (m *machine) program() program {
	p := program{application: m.reported.Value().value[tracked("application_name")]}
	if m.login != nil {
		p.user, p.database = m.login.User, m.login.Database
	}
	return p
}

// lingers reports whether the server connection, which the client is leaving (see leaveServer), is to linger for the
// client, and for how long others have to wait for it.
func (m *machine) lingers() (d time.Duration, yes bool) {
	if m.mode != Transaction || m.server.sequencesOf != m.lastSequenceUse() || m.shared.readers.none() {
		return 0, false
	}
	r := m.shared.readers.of(m.program())
	if r == nil {
		return 0, false
	}
	if m.awaits = m.awaits && (m.paid || r.pays(m.drew)); !m.awaits {
		return 0, true
	}
	m.paid = true
	return r.patience(), true
}

// readsValues reports whether a message, the first of a request, reads values of sequences.
func (m *machine) readsValues(msg message) bool {
	left, c := traces(0), m.shared.knowledge.now.Load()
	switch msg.typ {
	case pgwire.TypeQuery:
		left, _ = m.shared.verdicts.judge(c, msg.body)
	case pgwire.TypeParse:
		left, _ = m.shared.verdicts.judge(c, afterNul(msg.body))
	case pgwire.TypeBind:
		_, name, _, err := pgwire.BindNames(msg.body)
		if st := m.stmts[string(statementKey(name))]; err == nil && st != nil {
			left = st.tracesOf(c)
		}
	}
	return left&traceReads != 0
}

// logReader logs a new program of readers.
func (b *Postgres) logReader(p program) {
	b.cfg.Logger.Info("clients read currval or lastval in a later transaction than that of their insert: their server connections are kept for a moment after inserts; RETURNING would make that unnecessary",
		"upstream", b.cfg.Name, "user", p.user, "database", p.database, "application_name", p.application)
}

// afterNul returns what is behind the first NUL.
func afterNul(body []byte) []byte {
	return body[min(len(withoutNul(body))+1, len(body)):]
}

// linger gives the leased server connection back as one that lingers, and reports whether it has. It may be another
// session's then.
func (s *session) linger(now time.Duration) bool {
	d, lingers := s.machine.lingers()
	if !lingers {
		return false
	}
	l := &s.lingering
	if !l.again {
		l.since = now
	}
	if s.machine.reads && now-l.since > lingerMost {
		d = 0
	}
	place, ok := s.lease.Linger(d)
	if ok {
		l.place, l.at = place, now
	}
	return ok
}

// resume leases the server connection that lingers for the client. msg is the first message of the client's request.
func (s *session) resume(msg message) (lease upstream.Lease[*server], ok bool) {
	l := &s.lingering
	l.again, l.due = false, false
	if l.place.None() {
		return lease, false
	}
	now, m := clock(), &s.machine
	reads := m.awaits && m.readsValues(msg)
	if reads {
		if r := m.shared.readers.of(m.program()); r != nil {
			r.came(now - l.at)
		}
	}
	due := now-l.at > freshFor && l.place.CheckDue()
	lease, l.again = s.b.up.AcquireLingering(l.place, now-l.since > lingerMost && !reads)
	l.due = due && l.again
	l.place = upstream.Lingering[*server]{}
	return lease, l.again
}

// checked asks a server connection that has lingered for an answer if that is due, as acquires do.
func (s *session) checked() bool {
	if !s.lingering.due {
		return true
	}
	s.lingering.due = false
	ctx, stop := context.WithTimeout(s.ctx, checkTimeout)
	defer stop()
	return check(ctx, s.srv) == nil
}

// endLingering gives the server connection that lingers for the client to others.
func (s *session) endLingering() {
	if l := &s.lingering; !l.place.None() {
		l.place.End()
		l.place = upstream.Lingering[*server]{}
	}
}
