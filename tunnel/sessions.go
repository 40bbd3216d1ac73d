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

	mu      sync.Mutex // never held while waiting
	peers   map[string]*peer
	changed chan struct{} // closed, and replaced, when anything below did
	made    uint64
	lost    uint64
	past    traffic            // of sessions that are over
	left    map[string]trouble // why, and since when, peers that were there have no session
	leaving bool               // no more sessions
	work    sync.WaitGroup

	register register
}

// peer is whoever has one or more sessions under one name. sessions.mu guards it.
type peer struct {
	name     string
	sessions []*member
	streams  int // open, which the peer asked for, but for those of members that were given up
}

// member is a session of a peer.
type member struct {
	*mux.Session
	peer  string
	by    proof  // what it has proved to have
	leave func() // gives the session's place back, once

	// sessions.mu guards these.
	of        *peer // whose streams these are; another peer may have the name afterwards
	streams   int   // open, which the peer asked for
	gone      error // why the session was given up; nil: it was not
	examining bool  // whether it answers is being found out
}

// newMember returns a member; leave is called once, when its place is free.
func newMember(peer string, by proof, s *mux.Session, leave func()) *member {
	return &member{Session: s, peer: peer, by: by, leave: sync.OnceFunc(leave)}
}

func newSessions(name string, cfg *Config) *sessions {
	t := &sessions{name: name, log: cfg.Logger, peers: map[string]*peer{}, changed: make(chan struct{})}
	t.life, t.end = context.WithCancel(context.Background())
	t.apply(cfg, nil)
	return t
}

// apply changes what may change while sessions run.
func (t *sessions) apply(cfg *Config, peers []Peer) {
	t.policy.Store(newPolicies(cfg.Policy, peers))
	t.streams.Store(int64(cfg.MaxStreams))
	t.silence.Store(int64(cfg.KeepAlive))
}

// notify wakes whoever waits for a change. mu is held.
func (t *sessions) notify() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// tell is notify for whoever does not hold mu.
func (t *sessions) tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.notify()
}

// add takes a session over; on an error it is the caller's to close.
func (t *sessions) add(s *member) error {
	name := s.peer
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leaving {
		return ErrClosed
	}
	p := t.peers[name]
	if p == nil {
		p = &peer{name: name}
		t.peers[name] = p
	}
	s.of = p
	p.sessions = append(p.sessions, s)
	s.CallPeer(p.called(s))
	delete(t.left, name)
	t.made++
	t.notify()
	t.work.Go(func() {
		defer s.leave()
		t.acceptStreams(p, s)
	})
	t.work.Go(func() { refuseChannels(s.Session) })
	return nil
}

// refuseChannels refuses channels for messages until the session is over: nobody would
// ever read them, and they would hold up a drain.
func refuseChannels(s *mux.Session) {
	for {
		ch, err := s.Accept(context.Background())
		if err != nil {
			return
		}
		ch.Reset(codeRefused, "a tunnel carries streams only")
	}
}

// called is the name the peer has proved, by a certificate for instance, or else the one it says of itself.
func (p *peer) called(s *member) string { return cmp.Or(p.name, s.Peer().Name) }

// acceptStreams serves what the other side opens until the session is over.
func (t *sessions) acceptStreams(p *peer, s *member) {
	t.log.Info("tunnel: session begun", "tunnel", t.name, "peer", p.called(s), "address", s.Peer().Addr.String(), "session", s.ID().String())
	for {
		st, err := s.AcceptStream(context.Background())
		if err != nil {
			break
		}
		if !t.enter(p, s) {
			t.refuse(p, st, refuse(ErrBusy, "the peer has as many streams open as the far side allows"))
			continue
		}
		t.counts.accepted.Add(1)
		t.work.Go(func() {
			defer t.exit(p, s)
			t.serve(p, s, st)
		})
	}
	<-s.Done()
	_ = s.Close() // its goroutines
	t.remove(p, s)
}

// enter counts a stream that the peer asks for; false: it has as many as it may, or its session was given up, and
// nobody would count it.
func (t *sessions) enter(p *peer, s *member) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.gone != nil || int64(p.streams) >= t.streams.Load() {
		return false
	}
	p.streams++
	s.streams++
	return true
}

// exit is enter's end.
func (t *sessions) exit(p *peer, s *member) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.gone == nil {
		p.streams--
		s.streams--
	}
}

// giveUp stops counting a session and its streams, which are about to end because of
// err. mu is held; the caller calls finish without it.
func (t *sessions) giveUp(s *member, err error) {
	s.gone = err
	s.of.streams -= s.streams
}

// finish ends a session that was given up, and the streams in it.
func (t *sessions) finish(s *member) {
	s.leave()
	_ = s.Close()
}

// errRestarted ends the sessions of a process whose successor has said hello.
var errRestarted = errors.New("tunnel: the peer is a new process, and the one before is gone")

// restarted is called when a process has proved to be a peer. Sessions under the same name
// of a process that is gone are ended, for their streams can never go on: at once if they
// have no socket, else if they do not answer. (Another process may have the name by
// right: a gateway that drains beside its successor, or one of two that share it.)
func (t *sessions) restarted(name string, instance [16]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	if p == nil || name == "" || t.leaving {
		return
	}
	for _, s := range p.sessions {
		switch {
		case s.gone != nil || s.Peer().Instance == instance:
		case s.Stats().Suspended:
			t.giveUp(s, errRestarted)
			s.leave()
			t.work.Go(func() { t.finish(s) })
		case !s.examining: // one who says hello again and again learns nothing more
			s.examining = true
			t.work.Go(func() { t.examine(s) })
		}
	}
}

// examine ends a session if its process gives no sign of life.
func (t *sessions) examine(s *member) {
	ctx, cancel := context.WithTimeout(t.life, time.Duration(t.silence.Load()))
	defer cancel()
	_, err := s.Ping(ctx)
	t.mu.Lock()
	s.examining = false
	gone := s.gone == nil && err != nil && t.life.Err() == nil && s.Err() == nil
	if gone {
		t.giveUp(s, errRestarted)
	}
	t.mu.Unlock()
	if gone {
		t.finish(s)
	}
}

// isLoss tells whether a session ended by no side's will.
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
	if s.gone != nil {
		err = s.gone
	}
	lost := isLoss(err)
	p.sessions = slices.DeleteFunc(p.sessions, func(o *member) bool { return o == s })
	if len(p.sessions) == 0 && t.peers[p.name] == p {
		delete(t.peers, p.name)
		t.noteLeft(p.name, err)
	}
	t.past.add(s.Stats())
	if lost {
		t.lost++
	}
	t.notify()
	t.mu.Unlock()
	level := slog.LevelInfo
	if lost {
		level = slog.LevelWarn
	}
	t.log.Log(context.Background(), level, "tunnel: session over", "tunnel", t.name, "peer", p.called(s), "session", s.ID().String(), "error", err)
}

// maxLeft bounds sessions.left: whoever has the key may use any name.
const maxLeft = 1000

// noteLeft notes why a peer has no session any more. mu is held.
func (t *sessions) noteLeft(name string, err error) {
	if t.left == nil || len(t.left) >= maxLeft {
		t.left = map[string]trouble{}
	}
	t.left[name] = trouble{err, time.Now()}
}

// choice is what pick has found.
type choice struct {
	best      *member
	suspended bool            // there is none, but one that waits for another socket
	stale     bool            // there are only such that take no more streams
	changed   <-chan struct{} // closed when another pick may find another
	leaving   bool            // there will be none
}

// pick finds the session of a peer that is best for one more stream: one that has a
// socket, with the fewest streams.
func (t *sessions) pick(name string) (c choice) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.changed, c.leaving = t.changed, t.leaving
	p := t.peers[name]
	if p == nil {
		return c
	}
	least := 0
	for _, s := range p.sessions {
		st := s.Stats()
		switch {
		case s.gone != nil:
		case s.Draining():
			c.stale = true
		case st.Suspended:
			c.suspended = true
		case c.best == nil || st.Channels < least:
			c.best, least = s, st.Channels
		}
	}
	return c
}

// lookAgain is how often those who want a stream look whether a session that has
// lost its socket has another. (Who has a stream just waits.)
const lookAgain = 25 * time.Millisecond

// awaitSocket waits a little. It fails when ctx ends: a stream that was opened now
// would wait as long as the session does.
func awaitSocket(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(lookAgain)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return fmt.Errorf("%w: the session has lost its socket, and has no other yet: %w", ErrNotConnected, context.Cause(ctx))
	}
	return nil
}

// open opens a stream in a session of the peer. Without one it asks idle, which
// may wait for a change, or says why not to.
func (t *sessions) open(ctx context.Context, name, target string, id mux.ID, idle func(stale bool, changed <-chan struct{}) error) (*mux.Stream, error) {
	for {
		c := t.pick(name)
		s := c.best
		if s == nil {
			err := ErrClosed
			switch {
			case c.suspended:
				err = awaitSocket(ctx, c.changed)
			case !c.leaving:
				err = idle(c.stale, c.changed)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		st, err := s.OpenStream(ctx, target, mux.WithID(id), mux.NoWait())
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

// retire ends a session that has used up its numbers for streams (2³¹ of them)
// once those that are open are over.
func (t *sessions) retire(s *member) {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.Drain(now) // it begins
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.leaving {
		t.work.Go(func() { _ = s.Drain(t.life) })
	}
}

// drain takes no more sessions and streams and waits until those there are have
// ended. When ctx ends first, the rest is cut off and the error says how much.
func (t *sessions) drain(ctx context.Context) error {
	all := t.leave()
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

// leave takes no more sessions and returns those there are.
func (t *sessions) leave() []*member {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving = true
	t.notify()
	var all []*member
	for _, p := range t.peers {
		all = append(all, p.sessions...)
	}
	return all
}

// close ends everything now and returns when nothing runs any more.
func (t *sessions) close() {
	t.end()
	var wg sync.WaitGroup
	for _, s := range t.leave() {
		wg.Go(func() { _ = s.Close() })
	}
	wg.Wait()
	t.work.Wait()
}

// draining reports whether a session of the peer drains and has streams.
func (t *sessions) draining(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[name]
	return p != nil && slices.ContainsFunc(p.sessions, func(s *member) bool { return s.Draining() && s.Stats().Channels > 0 })
}
