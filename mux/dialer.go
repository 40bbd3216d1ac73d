package mux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Dialer connects this process to others, over one or more connections to each. It opens channels
// by address, over sessions that it makes, shares and closes when idle. Each session has its own
// connection, and with Config.Resume outlives it. The zero Dialer works. Its methods may be called
// from any goroutine; do not copy or change it once used.
type Dialer struct {
	// Dial connects. Default: TCP to "host:port", a Unix socket for "unix:/path". ctx has
	// the values of the Open that needs the connection first, and must be heeded: Close
	// waits for Dial.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Config is every session's. Of its Resume, Dial is not used: sessions are
	// resumed where they were made.
	Config Config
	// Sessions is the number of sessions, each with its own connection, that one address may have:
	// one connection does not fill a fast link, nor several processors. A channel goes to the
	// session with less queued, or else fewer channels, of two picked at random, and stays there:
	// its messages keep their order. Suspended sessions, without a connection, are used only if
	// there is no other. Default 1.
	Sessions int
	// IdleTimeout is how long a session without channels is kept. Default 1 min.
	IdleTimeout time.Duration
	// OnSession, if set, is called with each new session, on its own goroutine: to accept the
	// channels that the other side opens. It should return when Accept fails, which it does when
	// the session is over. Close waits for it.
	OnSession func(address string, s *Session)

	mu     sync.Mutex // never held while dialling or closing
	hosts  map[string]*host
	closed bool
	work   sync.WaitGroup  // dials under way, sessions being closed
	life   context.Context // of them; ends with Close
	end    context.CancelFunc
	served sync.WaitGroup // calls of OnSession
}

// growAgain is the pause after a failed dial before another session is dialled
// beside one that works.
const growAgain = time.Second

// host is a Dialer's state for one address. Dialer.mu guards it.
type host struct {
	address  string
	sessions []*shared
	retired  []*shared // that take no more channels, until the idle timer finds them
	failed   time.Time // when the last dial failed
	call     *call     // dial under way
}

// shared is a session of a Dialer.
type shared struct {
	*Session
	used  bool // since the idle timer last looked
	timer *time.Timer
}

// call is one dial, shared by all Opens that wait for it.
type call struct {
	done chan struct{}
	err  error
}

// ErrDialerClosed is returned by a Dialer that was closed.
var ErrDialerClosed = fmt.Errorf("mux: dialer closed: %w", net.ErrClosed)

// Open opens a channel for messages to the address, as [Session.Open] does.
func (d *Dialer) Open(ctx context.Context, address, name string, opts ...Option) (ch *Channel, err error) {
	err = d.with(ctx, address, func(s *Session) (err error) {
		ch, err = s.Open(ctx, name, opts...)
		return err
	})
	return ch, err
}

// OpenStream opens a stream to the address, as [Session.OpenStream] does.
func (d *Dialer) OpenStream(ctx context.Context, address, name string, opts ...Option) (st *Stream, err error) {
	err = d.with(ctx, address, func(s *Session) (err error) {
		st, err = s.OpenStream(ctx, name, opts...)
		return err
	})
	return st, err
}

// with calls fn with a session, and once more with another one if the first is over or draining.
func (d *Dialer) with(ctx context.Context, address string, fn func(*Session) error) error {
	for again := true; ; again = false {
		s, err := d.session(ctx, address)
		if err != nil {
			return &Error{Op: "get a session with " + address, Err: err, retry: true}
		}
		err = fn(s)
		over := errors.Is(err, ErrDraining) || errors.Is(err, ErrSessionLost) || errors.Is(err, ErrSessionClosed)
		if err == nil || !again || !over {
			return err
		}
	}
}

// session returns one that takes channels, dialling if there is none.
func (d *Dialer) session(ctx context.Context, address string) (*Session, error) {
	for {
		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return nil, ErrDialerClosed
		}
		h := d.host(address)
		s := h.pick()
		if h.call == nil && (s == nil || d.grows(h, s)) {
			d.dial(ctx, h)
		}
		c := h.call
		d.mu.Unlock()
		if s != nil {
			return s.Session, nil
		}
		select {
		case <-c.done:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if c.err != nil {
			return nil, c.err
		}
	}
}

// grows reports whether h should get another session, although s works. mu is held.
func (d *Dialer) grows(h *host, s *shared) bool {
	return len(h.sessions) < d.Sessions && s.Stats().Channels > 0 && time.Since(h.failed) > growAgain
}

// host returns the state of the address. mu is held.
func (d *Dialer) host(address string) *host {
	h := d.hosts[address]
	if h == nil {
		if d.hosts == nil {
			d.hosts = map[string]*host{}
			d.life, d.end = context.WithCancel(context.Background())
		}
		h = &host{address: address}
		d.hosts[address] = h
	}
	return h
}

// load is how busy a session is.
type load struct {
	suspended bool // without a connection, to be resumed
	queued    int  // bytes to be written, in steps of a batch: less is gone before it is read
	channels  int
}

func (s *Session) load() load {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.core
	n := len(c.pend.out)
	if r := c.replay; r != nil {
		n += int(r.end - min(r.write, r.end))
	}
	if c.active != nil || s.handed {
		n += batchSize // senders wait, or the socket is full
	}
	return load{suspended: s.mute(), queued: n / batchSize, channels: len(c.channels)}
}

func (l load) less(m load) bool {
	if l.queued != m.queued {
		return l.queued < m.queued
	}
	return l.channels < m.channels
}

// pick sets sessions aside that take no more channels, and returns the less
// loaded of two others, or nil.
func (h *host) pick() *shared {
	kept := h.sessions[:0]
	for _, s := range h.sessions {
		if s.Draining() {
			h.retired = append(h.retired, s)
			if s.Err() != nil {
				s.timer.Reset(0) // it is over: release it at once
			}
		} else {
			kept = append(kept, s)
		}
	}
	clear(h.sessions[len(kept):])
	if h.sessions = kept; len(kept) == 0 {
		return nil
	}
	var a, b *shared
	var first load
	for n, i := len(kept), rand.IntN(len(kept)); n > 0 && b == nil; n, i = n-1, i+1 {
		s := kept[i%len(kept)]
		switch l := s.load(); {
		case a == nil || first.suspended:
			a, first = s, l
		case !l.suspended:
			if b = s; l.less(first) {
				a = s
			}
		}
	}
	a.used = true
	return a
}

// dial begins to make a session, with ctx's values. It continues when ctx ends:
// the session is kept for later Opens. mu is held.
func (d *Dialer) dial(ctx context.Context, h *host) {
	cfg := d.Config.withDefaults()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*cfg.HandshakeTimeout)
	stop := context.AfterFunc(d.life, cancel)
	c := &call{done: make(chan struct{})}
	h.call = c
	d.work.Go(func() {
		defer cancel()
		defer stop()
		s, err := d.connect(ctx, h.address)
		d.mu.Lock()
		h.call, c.err = nil, err
		late := d.closed
		if err != nil {
			h.failed = time.Now()
			d.forget(h)
		}
		if err == nil && !late {
			d.keep(h, s)
		}
		d.mu.Unlock()
		if err == nil && late {
			s.Close()
		}
		close(c.done)
	})
}

func (d *Dialer) connect(ctx context.Context, address string) (*Session, error) {
	dial := d.Dial
	if dial == nil {
		dial = dialAddress
	}
	conn, err := dial(ctx, address)
	if err != nil {
		return nil, err
	}
	cfg := d.Config
	if cfg.Resume != nil {
		cfg.Resume = cfg.Resume.with(func(ctx context.Context) (net.Conn, error) { return dial(ctx, address) })
	}
	return Client(ctx, conn, cfg)
}

func dialAddress(ctx context.Context, address string) (net.Conn, error) {
	var nd net.Dialer
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return nd.DialContext(ctx, "unix", path)
	}
	return nd.DialContext(ctx, "tcp", address)
}

// keep adds a session and watches for it to be idle. mu is held.
func (d *Dialer) keep(h *host, session *Session) {
	s := &shared{Session: session, used: true}
	idle := d.IdleTimeout
	idle = cmp.Or(idle, time.Minute)
	h.sessions = append(h.sessions, s)
	s.timer = time.AfterFunc(idle, func() { d.idle(h, s, idle) })
	if d.OnSession != nil {
		d.served.Go(func() { d.OnSession(h.address, session) })
	}
}

// idle runs each IdleTimeout: it closes the session if it was not used in between.
func (d *Dialer) idle(h *host, s *shared, again time.Duration) {
	d.mu.Lock()
	keep := s.Err() == nil && (s.used || s.Stats().Channels > 0)
	s.used = false
	if d.closed {
		d.mu.Unlock()
		return
	}
	if keep {
		s.timer.Reset(again)
		d.mu.Unlock()
		return
	}
	gone := func(o *shared) bool { return o == s }
	h.sessions, h.retired = slices.DeleteFunc(h.sessions, gone), slices.DeleteFunc(h.retired, gone)
	d.forget(h)
	d.work.Add(1) // Close waits for it
	d.mu.Unlock()
	s.Close()
	d.work.Done()
}

// forget drops an address without sessions. mu is held.
func (d *Dialer) forget(h *host) {
	if len(h.sessions)+len(h.retired) == 0 && h.call == nil && d.hosts[h.address] == h {
		delete(d.hosts, h.address)
	}
}

// Close closes all sessions, and with them their channels, and makes Open fail.
func (d *Dialer) Close() error {
	d.mu.Lock()
	d.closed = true
	var all []*shared
	for _, h := range d.hosts {
		all = append(append(all, h.sessions...), h.retired...)
		h.sessions, h.retired = nil, nil
	}
	if d.end != nil {
		d.end()
	}
	d.mu.Unlock()
	d.work.Wait()
	for _, s := range all {
		s.timer.Stop()
		s.Close()
	}
	d.served.Wait()
	return nil
}

// Status is a snapshot of a Dialer's sessions to one address.
type Status struct {
	Sessions  int // that accept channels, each with its own connection unless suspended
	Suspended int // of these, those without a connection, to be resumed
	// Stats is the sum of the sessions' that take channels; RTT is the shortest
	// known, Gap the longest, Suspended means all of them.
	Stats
}

// Status returns the state of the sessions to the address. It is the zero Status if
// there are none.
func (d *Dialer) Status(address string) Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	var st Status
	h := d.hosts[address]
	if h == nil {
		return st
	}
	for _, s := range h.sessions {
		if s.Draining() {
			continue
		}
		one := s.Session.Stats()
		st.Sessions++
		if one.Suspended {
			st.Suspended++
		}
		st.Stats.add(&one)
	}
	st.Stats.Suspended = st.Sessions > 0 && st.Suspended == st.Sessions
	return st
}
