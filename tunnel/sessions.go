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
	policy  atomic.Pointer[Policy]
	streams atomic.Int64 // limit of each peer's
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
}

// peer is whoever has one or more sessions under one name.
type peer struct {
	name     string
	sessions []*mux.Session
	streams  atomic.Int64 // open, which the peer asked for
}

func newSessions(name string, cfg *Config) *sessions {
	t := &sessions{name: name, log: cfg.Logger, peers: map[string]*peer{}, changed: make(chan struct{})}
	t.life, t.end = context.WithCancel(context.Background())
	t.apply(cfg)
	return t
}

// apply changes what may change while sessions run.
func (t *sessions) apply(cfg *Config) {
	policy := cfg.Policy
	t.policy.Store(&policy)
	t.streams.Store(int64(cfg.MaxStreams))
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

// add takes a session over, and calls over when it has ended; on an error it is the
// caller's to close.
func (t *sessions) add(name string, s *mux.Session, over func()) error {
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
	p.sessions = append(p.sessions, s)
	delete(t.left, name)
	t.made++
	t.notify()
	t.work.Go(func() {
		defer over()
		t.acceptStreams(p, s)
	})
	t.work.Go(func() { refuseChannels(s) })
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
func (p *peer) called(s *mux.Session) string { return cmp.Or(p.name, s.Peer().Name) }

// acceptStreams serves what the other side opens until the session is over.
func (t *sessions) acceptStreams(p *peer, s *mux.Session) {
	t.log.Info("tunnel: session begun", "tunnel", t.name, "peer", p.called(s), "address", s.Peer().Addr.String(), "session", s.ID().String())
	for {
		st, err := s.AcceptStream(context.Background())
		if err != nil {
			break
		}
		if p.streams.Add(1) > t.streams.Load() {
			p.streams.Add(-1)
			t.refuse(p, st, refuse(ErrBusy, "the peer has as many streams open as the far side allows"))
			continue
		}
		t.counts.accepted.Add(1)
		t.work.Go(func() {
			defer p.streams.Add(-1)
			t.serve(p, st)
		})
	}
	<-s.Done()
	_ = s.Close() // its goroutines
	t.remove(p, s)
}

func (t *sessions) remove(p *peer, s *mux.Session) {
	err, lost := s.Err(), false
	if errors.Is(err, mux.ErrSessionLost) {
		bye, told := errors.AsType[*mux.GoAwayError](err)
		lost = !told || bye.Code != frame.CodeOver && bye.Code != frame.CodeNone
	}
	t.mu.Lock()
	p.sessions = slices.DeleteFunc(p.sessions, func(o *mux.Session) bool { return o == s })
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
	best      *mux.Session
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
func (t *sessions) retire(s *mux.Session) {
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
func (t *sessions) leave() []*mux.Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leaving = true
	t.notify()
	var all []*mux.Session
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
	return p != nil && slices.ContainsFunc(p.sessions, func(s *mux.Session) bool { return s.Draining() && s.Stats().Channels > 0 })
}
