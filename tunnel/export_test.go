package tunnel

import (
	"log/slog"

	"github.com/headpond/headpond/mux"
)

// Restarted is called when a process with that instance has proved to be the peer.
func (s *Server) Restarted(peer string, instance [16]byte) { s.sessions.restarted(peer, instance) }

// Members is the bookkeeping of sessions. Its methods are those of the type sessions, except Add, which serves nothing.
type Members struct{ t *sessions }

// NewMembers returns one in which a peer may have that many streams.
func NewMembers(streams int) Members {
	return Members{newSessions("test", &Config{MaxStreams: streams, Logger: slog.New(slog.DiscardHandler)})}
}

// A Member is one of them.
type Member struct{ m *member }

// Add makes s a session of the peer.
func (m Members) Add(name string, s *mux.Session) Member {
	p := m.t.peers[name]
	if p == nil {
		p = &peer{name: name}
		m.t.peers[name] = p
	}
	one := newMember(name, proof{}, s, func() {})
	one.owner = p
	p.sessions = append(p.sessions, one)
	return Member{one}
}

// Enter is countStream, and reports whether the stream's turn has come.
func (m Members) Enter(s Member) bool { return m.Queue(s)() }

// Queue is countStream. The result reports whether the stream's turn has come.
func (m Members) Queue(s Member) (admitted func() bool) {
	w := m.t.countStream(s.m.owner, s.m)
	return func() bool { return w.counted }
}

// Leave is uncountStream.
func (m Members) Leave(s Member) { m.t.uncountStream(s.m.owner, s.m) }

// Drop is drop.
func (m Members) Drop(s Member) {
	m.t.mu.Lock()
	defer m.t.mu.Unlock()
	m.t.drop(s.m, errRestarted)
}

// Remove is remove.
func (m Members) Remove(s Member) { m.t.remove(s.m.owner, s.m) }
