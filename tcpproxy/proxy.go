package tcpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/retrybudget"
	"github.com/headpond/headpond/listener"
)

// Proxy serves TCP listeners. All methods are safe for concurrent use.
type Proxy struct {
	cfg      atomic.Pointer[settings]
	srv      *listener.Server
	spliced  atomic.Uint64 // bytes moved within the kernel
	splicing func(n int)   // countSpliced, allocated once
	cutting  sync.Once     // registers cutOff with the sessions' context
	begun    atomic.Uint64 // number of sessions begun
	moves    *retrybudget.Budget
	moved    atomic.Uint64 // how often sessions have moved to another endpoint
	refused  atomic.Uint64 // how often they were not allowed to
}

func (p *Proxy) countSpliced(n int) { p.spliced.Add(uint64(n)) }

// New returns a Proxy for cfg; nothing runs until Serve. The error wraps
// ErrConfig or listener.ErrConfig.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	p := &Proxy{moves: retrybudget.New(movesWindow, time.Now())}
	p.splicing = p.countSpliced
	p.cfg.Store(cfg.withDefaults())
	srv, err := listener.New(cfg.listener(), listener.HandlerFunc(p.serveConn))
	if err != nil {
		return nil, err
	}
	p.srv = srv
	return p, nil
}

// Serve forwards connections from l until Drain or Close, then it returns nil;
// it closes l. Several listeners may be served at once.
func (p *Proxy) Serve(l net.Listener) error { return p.srv.Serve(l) }

// Drain stops accepting and waits for the running streams to end by themselves. When ctx ends first, it cuts off the
// remaining streams; the error says how many, including those that Config.DrainStagger has cut off before.
func (p *Proxy) Drain(ctx context.Context) error {
	stop := p.stagger(ctx)
	err := p.srv.Drain(ctx)
	if n := stop(); n > 0 {
		err = errors.Join(err, fmt.Errorf("listener %q: sessions cut off shortly before the end of the drain: %d", p.srv.Stats().Name, n))
	}
	return err
}

// Close stops accepting and cuts off every stream.
func (p *Proxy) Close() { p.srv.Close() }

// Update replaces the settings. New sessions use them, running sessions do not change. On an error nothing changes.
func (p *Proxy) Update(cfg Config) error {
	if err := cfg.Verify(); err != nil {
		return err
	}
	if err := p.srv.Update(cfg.listener()); err != nil {
		return err
	}
	p.cfg.Store(cfg.withDefaults())
	return nil
}

// Stats returns the listener's counters.
func (p *Proxy) Stats() listener.Stats {
	st := p.srv.Stats()
	st.Moved, st.MovesRefused = p.moved.Load(), p.refused.Load()
	return st
}
