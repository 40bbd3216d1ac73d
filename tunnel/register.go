package tunnel

import (
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
)

// register lists the streams that the other side has opened and that are served here.
type register struct {
	mu  sync.Mutex // held for a few instructions
	all map[listener.ID]*relay
}

func (g *register) add(r *relay) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all == nil {
		g.all = map[listener.ID]*relay{}
	}
	g.all[r.id] = r
}

func (g *register) remove(r *relay) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.all, r.id)
}

func (g *register) find(id listener.ID) *relay {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.all[id]
}

// describe appends the streams to all.
func (t *sessions) describe(all []listener.Info) []listener.Info {
	t.mu.Lock()
	draining := t.draining
	t.mu.Unlock()
	t.register.mu.Lock()
	defer t.register.mu.Unlock()
	for _, r := range t.register.all {
		info := r.describe()
		info.Listener, info.Draining = t.name, draining
		all = append(all, info)
	}
	return all
}

// describe returns the row of a stream: its user is the peer, its host the target that the peer has named.
func (r *relay) describe() listener.Info {
	info := listener.Info{
		ID: r.id.String(), Protocol: "tunnel", Client: r.from, User: r.peer, Host: r.st.Name(), Accepted: r.id.Time(), Since: r.id.Time(),
		State: listener.StateWaiting, BytesIn: r.in.Load(), BytesOut: r.out.Load(),
	}
	if name, ok := strings.CutPrefix(info.Host, UpstreamPrefix); ok {
		info.Upstream = name
	}
	if at := r.since.Load(); at > 0 { // conn is set
		info.State, info.Since, info.Endpoint = listener.StateActive, time.Unix(0, at), r.conn.RemoteAddr().String()
		info.Held = info.Since
	}
	return info
}

// kill resets a stream on both sides.
func (t *sessions) kill(id listener.ID, stream uint64) bool {
	r := t.register.find(id)
	switch {
	case r == nil || stream != 0:
		return false
	case r.since.Load() > 0:
		r.abort()
	default:
		r.openerGone.Store(true)
		r.cancelDial()
		reset(r.st, refuse(ErrBroken, "an operator has ended it"))
	}
	return true
}

// Sessions describes the streams that the peers have opened, and connections that are no session yet, in no order.
func (s *Server) Sessions() []listener.Info { return s.sessions.describe(s.listener.Sessions()) }

// Kill resets the stream, or closes the connection, with an ID of Sessions; false = there is none.
func (s *Server) Kill(id listener.ID, stream uint64) bool {
	if !s.sessions.kill(id, stream) {
		return s.listener.Kill(id, stream)
	}
	s.listener.CountError(listener.ReasonKilled)
	return true
}

// Sessions describes the streams that the other side has opened, in no order.
func (c *Client) Sessions() []listener.Info { return c.sessions.describe(nil) }

// Kill is Server.Kill.
func (c *Client) Kill(id listener.ID, stream uint64) bool { return c.sessions.kill(id, stream) }
