package udpproxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
)

// Proxy serves UDP listeners. All methods are safe for concurrent use.
type Proxy struct {
	cfg      atomic.Pointer[Config] // with defaults
	srv      *listener.Server
	counters counters
	cutting  sync.Once // registers cutAll with the sessions' context
}

// New returns a Proxy for cfg; nothing runs until Serve. The error wraps ErrConfig or listener.ErrConfig.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	p := &Proxy{}
	p.cfg.Store(cfg.withDefaults())
	srv, err := listener.New(cfg.Listener, listener.HandlerFunc(p.serveConn))
	if err != nil {
		return nil, err
	}
	p.srv = srv
	p.counters.report = p.reportFailure
	return p, nil
}

// Serve forwards the datagrams of l until Drain or Close, and then returns nil; it closes l. l must be a *Listener, or
// have a method NetListener that returns one. Serve may be called for several listeners.
func (p *Proxy) Serve(l net.Listener) error {
	of := listenerOf(l)
	if of == nil {
		_ = l.Close()
		return fmt.Errorf("%w: listener %q: Serve wants a Listener of this package, not a %T", ErrConfig, p.srv.Stats().Name, l)
	}
	of.port.counters.Store(&p.counters)
	return p.srv.Serve(l)
}

// listenerOf returns the Listener that l is or wraps; nil if there is none.
func listenerOf(l net.Listener) *Listener {
	for {
		switch of := l.(type) {
		case *Listener:
			return of
		case interface{ NetListener() net.Listener }:
			l = of.NetListener()
		default:
			return nil
		}
	}
}

// Drain accepts no more clients and waits for the sessions to end by themselves, with Config.DrainIdle as the idle
// time-out. When ctx ends first, the remaining sessions are cut off, and the error says how many.
func (p *Proxy) Drain(ctx context.Context) error {
	var looking sync.WaitGroup
	looking.Go(func() {
		<-p.srv.Draining()                                            // the drain begins at once
		p.srv.Each(func(s listener.Session) { s.(*session).check() }) //nolint:forcetypeassert // all are
	})
	defer looking.Wait()
	return p.srv.Drain(ctx)
}

// Close ends accepting and every session.
func (p *Proxy) Close() { p.srv.Close() }

// Update replaces the settings. New sessions use them, running sessions do not change. On an error nothing changes.
func (p *Proxy) Update(cfg Config) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	if err := p.srv.Update(cfg.Listener); err != nil {
		return err
	}
	p.cfg.Store(cfg.withDefaults())
	return nil
}

// Stats returns the counters of sessions; bytes are those of the datagrams' contents.
func (p *Proxy) Stats() listener.Stats { return p.srv.Stats() }

// Sessions describes the sessions, in no particular order.
func (p *Proxy) Sessions() []listener.Info { return p.srv.Sessions() }

// Kill ends the session with an ID from Sessions; false = there is none. Datagrams that its client sends afterwards
// begin another.
func (p *Proxy) Kill(id listener.ID, stream uint64) bool { return p.srv.Kill(id, stream) }

// counters count datagrams since the start.
type counters struct {
	received, forwarded, sent, unserved, unsent, failed atomic.Uint64
	// report logs an error of a reader.
	report func(err error, pause time.Duration)
}

// reportFailure logs an error of the reader of a socket.
func (p *Proxy) reportFailure(err error, pause time.Duration) {
	p.srv.LogLimited("receive", slog.LevelWarn, "cannot receive datagrams, trying again", "delay", pause, "error", err)
}

// Datagrams are counters of datagrams since the start.
type Datagrams struct {
	Received  uint64 // from clients
	Forwarded uint64 // to endpoints
	Sent      uint64 // to clients
	Unserved  uint64 // from clients, dropped: too many clients came at once, or the listener is closed
	Unsent    uint64 // dropped: too many to be held for one session, too long, or a socket's buffer was full
	Failed    uint64 // attempts to receive from clients, not datagrams: the socket failed
}

// Datagrams returns the counters of datagrams.
func (p *Proxy) Datagrams() Datagrams {
	c := &p.counters
	return Datagrams{
		Received: c.received.Load(), Forwarded: c.forwarded.Load(), Sent: c.sent.Load(), Unserved: c.unserved.Load(), Unsent: c.unsent.Load(),
		Failed: c.failed.Load(),
	}
}
