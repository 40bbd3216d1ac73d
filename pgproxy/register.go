package pgproxy

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// errKilled is the end of a session that an operator has killed.
var errKilled = errors.New("an operator has ended it")

// tick is the resolution of the times that a session notes with every statement: reading the clock each time would
// cost more than the rest of the note.
const tick = watchInterval / 4

// ticks is a clock that costs one atomic load to read. Proxy.watch advances it. The first tick is 1; 0 means no time.
type ticks struct{ now atomic.Uint32 }

func (t *ticks) move() { t.now.Store(1 + uint32(clock()/tick)) }

// timeOfTick returns the time of a tick.
func timeOfTick(tickNumber uint32) time.Time { return started.Add(time.Duration(tickNumber-1) * tick) }

// activity is a session's state and when that began, in one atomic number: twice the tick, plus 1 while the session
// waits for its server. 0 means that the client has made no request yet.
type activity struct{ n atomic.Uint32 }

func (t *activity) set(now uint32, works bool) {
	n := now << 1
	if works {
		n |= 1
	}
	t.n.Store(n)
}

// renew is set for a session that waits for its client, from another goroutine: it does not end a wait for the server.
func (t *activity) renew(now uint32) {
	if n := t.n.Load(); n&1 == 0 {
		t.n.CompareAndSwap(n, now<<1)
	}
}

// entry is a Client in the register of sessions.
type entry Client

var _ listener.Resumer = (*entry)(nil)

// Resume implements listener.Resumer.
func (e *entry) Resume(ctx context.Context, conn *listener.Conn) { (*Client)(e).resume(ctx, conn) }

// Kill implements listener.Session.
func (e *entry) Kill(stream uint64) bool {
	c := (*Client)(e)
	if stream != 0 || c.flags.Load()&clientOver != 0 || c.flags.Or(clientKilled)&clientKilled != 0 {
		return false
	}
	c.CountError(listener.ReasonKilled)
	if w := c.worker.Load(); w != nil && w.onKill != nil {
		w.onKill(errKilled)
	}
	if c.state.CompareAndSwap(clientIdle, clientInterrupted) {
		_ = c.Conn.SetReadDeadline(unixPast)
	} else {
		c.cutOff()
	}
	return true
}

var _ listener.Session = (*startup)(nil)

// Kill implements listener.Session, for a client that logs in: it gets 57P01.
func (g *startup) Kill(stream uint64) bool {
	if stream != 0 {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.client != nil:
		return (*entry)(g.client).Kill(0)
	case g.killed:
		return false
	}
	g.killed = true
	g.proxy.srv.CountError(listener.ReasonKilled)
	g.stop()
	_ = g.conn.SetDeadline(unixPast) // under mu: refused sets a later one
	return true
}

// Describe implements listener.Session.
func (g *startup) Describe(all []listener.Info, info listener.Info) []listener.Info {
	info.State = listener.StateStarting
	return append(all, info)
}

// attach adds the login to the register. It returns false if an operator has ended the connection, which is counted already.
func (g *startup) attach() bool {
	open := g.accepted.Attach(g)
	if !open {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.killed = true
	}
	return open
}

func (g *startup) wasKilled() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.killed
}

// handOver makes kills end the session of the client that has logged in.
func (g *startup) handOver(c *Client) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client = c; g.killed {
		c.flags.Or(clientKilled)
	}
}

// Describe implements listener.Session.
func (e *entry) Describe(all []listener.Info, info listener.Info) []listener.Info {
	c := (*Client)(e)
	if c.flags.Load()&clientOver != 0 {
		return all
	}
	info.User, info.Database, info.Application, info.Upstream = c.User, c.Database, c.ApplicationName, c.backend.Name()
	n := c.activity.n.Load()
	if n != 0 {
		info.Since = timeOfTick(n >> 1)
	}
	switch c.state.Load() {
	case clientIdle, clientInterrupted, clientTimedOut:
		info.State = listener.StateIdle
	case clientOpen:
		info.State = listener.StateInTransaction
	default:
		info.State = listener.StateActive
	}
	if w := c.worker.Load(); w != nil && w.session != nil {
		w.session.describeHeld(&info, n&1 == 1)
	}
	if b := c.postgres(); b != nil {
		info.Channels = b.listening.channels(c)
	}
	return append(all, info)
}

// postgres returns the Postgres that runs the client's session, nil if there is none.
func (c *Client) postgres() *Postgres {
	b := postgresOf(c.backend)
	if b != nil && b.cfg.LoginAs == AsClient {
		return b.pairOf(c.Login)
	}
	return b
}

// describeHeld adds what the client holds. Other goroutines call it.
func (s *session) describeHeld(info *listener.Info, works bool) {
	if n := s.readerActivity.n.Load(); n != 0 && !works {
		works = n&1 == 1
		if since := timeOfTick(n >> 1); since.After(info.Since) {
			info.Since = since
		}
	}
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	if srv := s.target; srv != nil && !s.shielded {
		info.Endpoint, info.ServerPID, info.Held, info.Statement = srv.endpoint, srv.key.ProcessID, timeOfTick(srv.heldSince), string(srv.statement)
		pins := traces(srv.shownPins.Load())
		info.Pinned = pins.String()
		switch {
		case works || info.State != listener.StateActive && info.State != listener.StateIdle:
		case pins != 0:
			info.State = listener.StatePinned
		case info.State == listener.StateActive:
			info.State = listener.StateInTransaction
		}
	} else if s.acquiring != nil {
		info.State = listener.StateWaiting
	}
}

// maxStatement is how much of a statement the register shows, in bytes.
const maxStatement = 200

// showsStatements reports whether the register shows the clients' statements.
func (c *Client) showsStatements() bool { return c.proxy.settings.Load().ShowStatements }

// show notes the text of the statement that goes to the server connection.
func (s *session) show(text []byte) {
	if end := bytes.IndexByte(text, 0); end >= 0 {
		text = text[:end]
	}
	s.cancelMu.Lock()
	defer s.cancelMu.Unlock()
	if srv := s.target; srv != nil {
		srv.statement = append(srv.statement[:0], text[:min(len(text), maxStatement)]...)
	}
}

// showMessage notes the text of a client's message that is about to be forwarded, of which the header was read.
func (s *session) showMessage(h pgwire.Header) error {
	switch h.Type {
	case pgwire.TypeQuery, pgwire.TypeParse, pgwire.TypeBind:
	default:
		return nil
	}
	body, err := s.c.Reader.Peek(min(h.Len, peekSize))
	if err == nil {
		s.showBody(h.Type, body)
	}
	return err
}

// showBody notes the text of a message, of which body is the beginning.
func (s *session) showBody(typ byte, body []byte) {
	switch typ {
	case pgwire.TypeParse:
		_, body, _ = bytes.Cut(body, []byte{0}) // after the name
	case pgwire.TypeBind:
		_, name, _, err := pgwire.BindNames(body)
		s.mu.Lock() // a server reader may be removing a statement
		st := s.machine.stmts[string(name)]
		s.mu.Unlock()
		if err != nil || st == nil {
			return
		}
		body = []byte(st.body)
	case pgwire.TypeQuery:
	default:
		return
	}
	s.show(body)
}

// noteHeld notes that the session has a server connection. cancelMu is held.
func (s *session) noteHeld(srv *server) {
	s.hit, s.shielded = false, false
	s.target, srv.heldSince, srv.statement = srv, s.c.proxy.ticks.now.Load(), srv.statement[:0]
}

// Killable returns a context that also ends when an operator kills the client's session. A backend that uses OnCancel
// serves the client in that context, and calls end afterwards.
func (c *Client) Killable(ctx context.Context) (killable context.Context, end func()) {
	killable, kill := context.WithCancelCause(ctx)
	c.worker.Store(&worker{onKill: kill})
	if c.killed() {
		kill(errKilled)
	}
	return killable, func() {
		c.worker.Store(nil)
		kill(context.Canceled)
	}
}

// over returns an error once the session has to end: ctx's error, errKilled or errClientGone.
func (c *Client) over(ctx context.Context) error {
	switch flags := c.flags.Load(); {
	case flags&clientKilled != 0:
		return errKilled
	case flags&clientLeft != 0:
		return errClientGone
	}
	return ctx.Err()
}

// NextInTransaction waits for the client's next message while the session holds something for the client. A drain
// waits for such a session.
func (c *Client) NextInTransaction() (pgwire.Header, error) {
	c.activity.set(c.proxy.ticks.now.Load(), false)
	c.state.Store(clientOpen)
	h, err := c.Reader.Next()
	c.state.Store(clientBusy)
	c.activity.set(c.proxy.ticks.now.Load(), false)
	return h, err
}

// Sessions describes the clients, in no particular order.
func (p *Proxy) Sessions() []listener.Info { return p.srv.Sessions() }

// Kill ends the session with an ID of Sessions: the client gets 57P01, and its statement is canceled. It returns
// false if there is no such session.
func (p *Proxy) Kill(id listener.ID, stream uint64) bool { return p.srv.Kill(id, stream) }

// working is a client whose server was working for it when Proxy.watch checked.
type working struct {
	client   *Client
	activity uint32
}

// stillWorking returns the clients of before whose servers have been working since then, and all whose servers work
// now.
func (p *Proxy) stillWorking(before []working) (still, now []working) {
	p.mu.Lock()
	for _, c := range p.clients {
		if n := c.activity.n.Load(); n&1 == 1 {
			now = append(now, working{c, n})
		}
	}
	p.mu.Unlock()
	return slices.DeleteFunc(before, func(w working) bool { return w.client.activity.n.Load() != w.activity }), now
}
