package tunnel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/mux"
	"github.com/headpond/headpond/mux/frame"
)

// sessions are the live sessions of one end of a tunnel, and the streams in them.
// Methods may be called from any goroutine.
type sessions struct {
	name    string // for errors and the log
	log     *slog.Logger
	policy  atomic.Pointer[policies]
	streams atomic.Int64 // limit of each peer's
	silence atomic.Int64 // Config.KeepAlive, ns
	life    context.Context
	end     context.CancelFunc
	refused logLimit

	counts struct{ opened, accepted, refused, failed atomic.Uint64 }

	mu       sync.Mutex // never held while waiting
	peers    map[string]*peer
	changed  chan struct{} // closed, and replaced, when anything below did
	made     uint64
	lost     uint64
	past     traffic            // of sessions that are over
	absent   map[string]failure // why, and since when, peers that were connected have no session
	draining bool               // no more sessions
	work     sync.WaitGroup

	register register
}

// peer is the other side of the sessions under one name. sessions.mu guards it.
type peer struct {
	name     string
	sessions []*member
	streams  int     // open streams of the peer, without those of dropped members
	waiting  []*turn // further ones, in the order in which they came
}

// turn is a stream that waits until its peer has fewer streams open. sessions.mu guards it.
type turn struct {
	of      *member
	counted bool
	comes   func() // called when the stream is counted; nil: nobody waits yet
}

// member is a session of a peer.
type member struct {
	*mux.Session
	peer    string
	key     proof  // that it has proved to have
	release func() // ends the session's count against the sessionLimit, once

	// sessions.mu guards these.
	owner   *peer // whose streams these are; another peer may have the name afterwards
	streams int   // open, which the peer asked for
	dropped error // why; nil: the session was not dropped
	probing bool  // a ping is finding out whether the process is alive
}

// newMember returns a member; release is called once, when the session no longer counts against the sessionLimit.
func newMember(peer string, key proof, s *mux.Session, release func()) *member {
	return &member{Session: s, peer: peer, key: key, release: sync.OnceFunc(release)}
}

func newSessions(name string, cfg *Config) *sessions {
	t := &sessions{name: name, log: cfg.Logger, peers: map[string]*peer{}, changed: make(chan struct{})}
	t.life, t.end = context.WithCancel(context.Background())
	t.apply(cfg, nil)
	return t
}

// apply changes the settings that may change while sessions run.
func (t *sessions) apply(cfg *Config, peers []Peer) {
	t.policy.Store(newPolicies(cfg.Policy, peers))
	t.streams.Store(int64(cfg.MaxStreams))
	t.silence.Store(int64(cfg.KeepAlive))
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.peers {
		t.admit(p)
	}
}

// notifyLocked wakes the goroutines that wait for a change. mu is held.
func (t *sessions) notifyLocked() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// notify is notifyLocked for callers without mu.
func (t *sessions) notify() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notifyLocked()
}

// add serves a session from now on; on an error the caller has to close it.
func (t *sessions) add(s *member) error {
	name := s.peer
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.draining {
		return ErrClosed
	}
	p := t.peers[name]
	if p == nil {
		p = &peer{name: name}
		t.peers[name] = p
	}
	s.owner = p
	p.sessions = append(p.sessions, s)
	s.CallPeer(p.displayName(s))
	delete(t.absent, name)
	t.made++
	t.notifyLocked()
	t.work.Go(func() {
		defer s.release()
		t.acceptStreams(p, s)
	})
	t.work.Go(func() { refuseChannels(s.Session) })
	return nil
}

// refuseChannels resets the channels for messages that the other side opens, until the session is over: they are not
// read, and would delay a drain.
func refuseChannels(s *mux.Session) {
	for {
		ch, err := s.Accept(context.Background())
		if err != nil {
			return
		}
		ch.Reset(codeRefused, "a tunnel carries streams only")
	}
}

// displayName returns the name that the peer has proved, for instance by a certificate, or else the name it claims.
func (p *peer) displayName(s *member) string { return cmp.Or(p.name, s.Peer().Name) }

// acceptStreams serves the streams that the other side opens until the session is over.
func (t *sessions) acceptStreams(p *peer, s *member) {
	t.log.Info("tunnel: session begun", "tunnel", t.name, "peer", p.displayName(s), "address", s.Peer().Addr.String(), "session", s.ID().String())
	for {
		st, err := s.AcceptStream(context.Background())
		if err != nil {
			break
		}
		w := t.countStream(p, s)
		if w == nil {
			t.refuse(p, st, refuse(ErrBusy, "too many streams of the peer wait"))
			continue
		}
		t.work.Go(func() {
			switch gone, err := t.await(p, w, st); {
			case gone:
				_ = st.Close()
				return
			case err != nil:
				t.refuse(p, st, err)
				return
			}
			defer t.uncountStream(p, s)
			t.counts.accepted.Add(1)
			t.serve(p, s, st)
		})
	}
	<-s.Done()
	_ = s.Close() // its goroutines
	t.remove(p, s)
}

// countStream counts a stream that the peer has opened, when its turn comes: at once unless the peer is at its limit. The
// result is nil if more wait than the sessions allow to be open: the peer has closed those again, and could add any number.
func (t *sessions) countStream(p *peer, s *member) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int64(len(p.waiting)) >= max(1, int64(len(p.sessions)))*t.streams.Load() {
		return nil
	}
	w := &turn{of: s}
	p.waiting = append(p.waiting, w)
	t.admit(p)
	return w
}

// admit counts streams that wait, first come first served, up to the peer's limit. mu is held.
func (t *sessions) admit(p *peer) {
	for len(p.waiting) > 0 && int64(p.streams) < t.streams.Load() {
		w := p.waiting[0]
		p.waiting = p.waiting[1:]
		if w.of.dropped != nil {
			continue // its turn never comes: the session ends
		}
		p.streams++
		w.of.streams++
		w.counted = true
		if w.comes != nil {
			w.comes()
		}
	}
}

// await waits for the turn of a stream for as long as connecting to its target may take. gone: its opener has left, and is
// not waited for: a peer that opens and resets streams in a loop would leave any number of them.
func (t *sessions) await(p *peer, w *turn, st *mux.Stream) (gone bool, err error) {
	ctx, cancel := context.WithTimeout(t.life, t.policy.Load().of(p.name).patience())
	defer cancel()
	t.mu.Lock()
	w.comes = cancel
	counted := w.counted
	t.mu.Unlock()
	if counted {
		return false, nil
	}
	err = st.WaitStopped(ctx)
	if errors.Is(err, mux.ErrPeerClosed) { // it reads no more, and may still write
		select {
		case <-ctx.Done():
		case <-w.of.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.counted {
		return false, nil
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(o *turn) bool { return o == w })
	return errors.Is(err, mux.ErrReset), refuse(ErrBusy, "the peer has as many streams open as the far side allows")
}

// uncountStream undoes countStream.
func (t *sessions) uncountStream(p *peer, s *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.dropped == nil {
		p.streams--
		s.streams--
		t.admit(p)
	}
}

// drop stops counting a session and its streams, which are about to end because of
// err. mu is held; the caller calls closeDropped without it.
func (t *sessions) drop(s *member, err error) {
	s.dropped = err
	s.owner.streams -= s.streams
	t.admit(s.owner)
}

// closeDropped ends a session after drop, and the streams in it.
func (t *sessions) closeDropped(s *member) {
	s.release()
	_ = s.Close()
}

// errRestarted ends the sessions of a process whose successor has connected.
var errRestarted = errors.New("tunnel: the peer is a new process, and the one before is gone")

// restarted is called when a process has proved to be a peer. It ends the sessions of dead processes under the same name, whose
// streams cannot continue: at once if they have no socket, else if they do not answer a ping. Another live process may share the
// name: a gateway that drains beside its successor, or one of two with one name.
func (t *sessions) restarted(name string, instance [16]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	if p == nil || name == "" || t.draining {
		return
	}
	for _, s := range p.sessions {
		switch {
		case s.dropped != nil || s.Peer().Instance == instance:
		case s.Stats().Suspended:
			t.drop(s, errRestarted)
			s.release()
			t.work.Go(func() { t.closeDropped(s) })
		case !s.probing: // connecting again and again starts no further probes
			s.probing = true
			t.work.Go(func() { t.probe(s) })
		}
	}
}

// probe ends a session if its process does not answer a ping in time.
func (t *sessions) probe(s *member) {
	ctx, cancel := context.WithTimeout(t.life, time.Duration(t.silence.Load()))
	defer cancel()
	_, err := s.Ping(ctx)
	t.mu.Lock()
	s.probing = false
	gone := s.dropped == nil && err != nil && t.life.Err() == nil && s.Err() == nil
	if gone {
		t.drop(s, errRestarted)
	}
	t.mu.Unlock()
	if gone {
		t.closeDropped(s)
	}
}

// isLoss reports whether a session was lost to a failure of its connection or of a process, and not closed by a side.
func isLoss(err error) bool {
	if !errors.Is(err, mux.ErrSessionLost) {
		return errors.Is(err, errRestarted)
	}
	bye, told := errors.AsType[*mux.GoAwayError](err)
	return !told || errors.Is(err, mux.ErrNotResumed) || bye.Code != frame.CodeOver && bye.Code != frame.CodeNone
}

func (t *sessions) remove(p *peer, s *member) {
	err := s.Err()
	t.mu.Lock()
	if s.dropped != nil {
		err = s.dropped
	}
	lost := isLoss(err)
	p.sessions = slices.DeleteFunc(p.sessions, func(o *member) bool { return o == s })
	if len(p.sessions) == 0 && t.peers[p.name] == p {
		delete(t.peers, p.name)
		t.noteAbsent(p.name, err)
	}
	t.past.add(s.Stats())
	if lost {
		t.lost++
	}
	t.notifyLocked()
	t.mu.Unlock()
	level := slog.LevelInfo
	if lost {
		level = slog.LevelWarn
	}
	t.log.Log(context.Background(), level, "tunnel: session over", "tunnel", t.name, "peer", p.displayName(s), "session", s.ID().String(), "error", err)
}

// maxAbsent bounds sessions.absent: a peer with the shared key may use any name.
const maxAbsent = 1000

// noteAbsent records why a peer no longer has a session. mu is held.
func (t *sessions) noteAbsent(name string, err error) {
	if t.absent == nil || len(t.absent) >= maxAbsent {
		t.absent = map[string]failure{}
	}
	t.absent[name] = failure{err, time.Now()}
}

// choice is the result of pick.
type choice struct {
	best      *member
	suspended bool            // best is nil, but a session waits for another socket
	stale     bool            // there are only sessions that take no more streams
	changed   <-chan struct{} // closed when pick may find another
	draining  bool            // there will be no session
}

// pick finds the session of a peer that is best for one more stream: one that has a
// socket, with the fewest streams. A session whose process may be gone, because another
// one has connected, is only used if there is no other.
func (t *sessions) pick(name string) (c choice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.changed, c.draining = t.changed, t.draining
	p := t.peers[name]
	if p == nil {
		return c
	}
	least := 0
	for _, s := range p.sessions {
		st := s.Stats()
		switch {
		case s.dropped != nil:
		case s.Draining():
			c.stale = true
		case st.Suspended:
			c.suspended = true
		case c.best == nil || c.best.probing && !s.probing || c.best.probing == s.probing && st.Channels < least:
			c.best, least = s, st.Channels
		}
	}
	return c
}

// socketPoll is how often a caller that wants a stream checks whether a suspended session has a socket again. Open
// streams just wait.
const socketPoll = 25 * time.Millisecond

// awaitSocket waits for socketPoll or a change. It fails when ctx ends: a stream that was opened without a socket
// would wait as long as the session does.
func awaitSocket(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(socketPoll)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return fmt.Errorf("%w: the session has lost its socket, and has no other yet: %w", ErrNotConnected, context.Cause(ctx))
	}
	return nil
}

// open opens a stream in a session of the peer, and waits while the other side allows no more of them. Without a session it
// asks idle, which may wait for a change, or says why not to.
func (t *sessions) open(ctx context.Context, name, target string, id mux.ID, idle func(stale bool, changed <-chan struct{}) error) (*mux.Stream, error) {
	for {
		c := t.pick(name)
		s := c.best
		if s == nil {
			err := ErrClosed
			switch {
			case c.suspended:
				err = awaitSocket(ctx, c.changed)
			case !c.draining:
				err = idle(c.stale, c.changed)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		options := []mux.Option{mux.WithID(id)}
		if ctx.Value(noWaitKey{}) != nil {
			options = append(options, mux.NoWait())
		}
		st, err := s.OpenStream(ctx, target, options...)
		switch {
		case err == nil:
			t.counts.opened.Add(1)
			return st, nil
		case errors.Is(err, mux.ErrDraining) && !s.Draining():
			t.retire(s)
			continue
		case errors.Is(err, mux.ErrDraining), errors.Is(err, mux.ErrSessionLost), errors.Is(err, mux.ErrSessionClosed):
			continue // it is not picked again
		}
		return nil, explain(err)
	}
}

// retire ends a session that has used up its numbers for streams (2³¹ of them) once its open
// streams are over.
func (t *sessions) retire(s *member) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Drain(now) // it begins
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.draining {
		t.work.Go(func() { _ = s.Drain(t.life) })
	}
}

// drain refuses further sessions and streams and waits until the open streams have ended. When ctx ends first, it cuts
// off the remaining streams, and the error says how many.
func (t *sessions) drain(ctx context.Context) error {
	all := t.beginDrain()
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { _ = s.Drain(ctx) })
	}
	wg.Wait()
	cut := 0
	for _, s := range all {
		if s.Err() == nil {
			cut += s.Stats().Channels
		}
	}
	t.close()
	if cut > 0 {
		return fmt.Errorf("tunnel %q: drain: streams cut off: %d: %w", t.name, cut, context.Cause(ctx))
	}
	return nil
}

// beginDrain refuses further sessions and returns the current ones.
func (t *sessions) beginDrain() []*member {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.draining = true
	t.notifyLocked()
	var all []*member
	for _, p := range t.peers {
		all = append(all, p.sessions...)
	}
	return all
}

// close ends everything now and returns when nothing runs.
func (t *sessions) close() {
	t.end()
	var wg sync.WaitGroup
	for _, s := range t.beginDrain() {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
	t.work.Wait()
}

// anyDraining reports whether a session of the peer drains and has streams.
func (t *sessions) anyDraining(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	return p != nil && slices.ContainsFunc(p.sessions, func(s *member) bool { return s.Draining() && s.Stats().Channels > 0 })
}
