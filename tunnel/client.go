package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/headpond/headpond/internal/netaddr"
	"github.com/headpond/headpond/mux"
)

// ClientConfig describes a Client. Address is required.
type ClientConfig struct {
	Config
	// Tunnel names the tunnel in errors, logs and metrics; empty = Address.
	Tunnel string
	// Address is the server's, "host:port" or "unix:/path".
	Address string
	// TLS is spoken to the server; nil = none. Without a ServerName the host of
	// Address is used.
	TLS *tls.Config
	// Sessions is how many sessions, each with a socket of its own, are kept; 0 = 1,
	// at most 64. One does not fill a fat link, and a lost packet delays all that is
	// in it.
	Sessions int
	// Dial connects to Address; nil uses package net.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// maxClientSessions is far beyond what helps.
const maxClientSessions = 64

// Verify reports every problem of c, joined; each wraps ErrConfig.
func (c ClientConfig) Verify() error {
	errs := []error{c.verify()}
	if _, _, err := netaddr.Split(c.Address); err != nil {
		errs = append(errs, fmt.Errorf("%w: Address: %w", ErrConfig, err))
	}
	if c.Sessions < 0 || c.Sessions > maxClientSessions {
		errs = append(errs, fmt.Errorf("%w: Sessions is %d, want 0 (default) to %d", ErrConfig, c.Sessions, maxClientSessions))
	}
	return errors.Join(errs...)
}

// Client is the end of a tunnel that connects. It keeps its sessions open, all the
// time, connects again when one is lost, and serves what the server opens in them
// under its own policy. All methods are safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	sessions *sessions
	stop     context.CancelFunc
	keepers  sync.WaitGroup
	look     chan struct{} // a place for each keeper

	mu     sync.Mutex
	failed trouble // to connect
	lost   trouble // to connect again for a session that has lost its socket
	logged string  // the last failure that was logged
}

// NewClient returns a Client that begins to connect at once, and goes on trying
// until Drain or Close. The error wraps ErrConfig.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg.Config = cfg.withDefaults()
	cfg.Tunnel = cmp.Or(cfg.Tunnel, cfg.Address)
	if cfg.TLS != nil && cfg.TLS.ServerName == "" {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.ServerName, _, _ = net.SplitHostPort(cfg.Address)
	}
	c := &Client{cfg: cfg, sessions: newSessions(cfg.Tunnel, &cfg.Config)}
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.look = stop, make(chan struct{}, max(cfg.Sessions, 1))
	for range cap(c.look) {
		c.keepers.Go(func() { c.keep(ctx) })
	}
	return c, nil
}

// SetPolicy replaces Config.Policy, for streams to come; those that are open go on. On an error, which wraps ErrConfig,
// nothing has changed.
func (c *Client) SetPolicy(p Policy) error {
	cfg := c.cfg.Config
	cfg.Policy = p
	if err := cfg.verify(); err != nil {
		return err
	}
	c.sessions.apply(&cfg)
	return nil
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	s := c.sessions.stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.failed
	if t.err == nil && s.Suspended > 0 {
		t = c.lost
	}
	s.LastError, s.FailingSince = t.err, t.since
	return s
}

// Leaving reports whether a session is drained, by either side, while streams in it
// are open: those that are kept idle should be closed.
func (c *Client) Leaving() bool { return c.sessions.draining("") }

// Drain connects no more and takes no more streams from the server, tells it so,
// and waits until the open streams have ended. When ctx ends first they are cut off
// and the error says how many.
func (c *Client) Drain(ctx context.Context) error {
	c.stop()
	c.keepers.Wait()
	return c.sessions.drain(ctx)
}

// Close ends all sessions, and the streams in them, now.
func (c *Client) Close() {
	c.stop()
	c.keepers.Wait()
	c.sessions.close()
}

// The pauses between two attempts to connect grow from firstPause to mostPause; a
// session shorter than that counts as a failure, else a server that closes every
// one would be asked for another at once.
const (
	firstPause = 100 * time.Millisecond
	mostPause  = 5 * time.Second
)

// lookInterval is how soon a keeper notices by itself that the server drains a
// session: another one is made while the streams in it go on.
const lookInterval = 2 * time.Second

// dialTimeout bounds connecting to a server that does not answer; mux bounds the rest.
const dialTimeout = 10 * time.Second

// keep keeps one session until ctx ends.
func (c *Client) keep(ctx context.Context) {
	for pause := firstPause; ; {
		began := time.Now()
		s, err := c.connect(ctx)
		c.note(err)
		if err == nil {
			c.watch(ctx, s)
		}
		if time.Since(began) > mostPause {
			pause = firstPause
			if err == nil {
				continue
			}
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, mostPause)
	}
}

// watch returns when s takes no more streams.
func (c *Client) watch(ctx context.Context, s *mux.Session) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for !s.Draining() {
		select {
		case <-ctx.Done():
			return
		case <-s.Done():
		case <-c.look:
		case <-look.C:
		}
	}
}

// lookNow has the keepers look at their sessions: somebody has seen one drain.
func (c *Client) lookNow() {
	for range cap(c.look) {
		select {
		case c.look <- struct{}{}:
		default:
			return
		}
	}
}

// connect makes a session.
func (c *Client) connect(ctx context.Context) (*mux.Session, error) {
	dialling, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := c.dial(dialling)
	if err != nil {
		return nil, err
	}
	s, err := mux.Client(ctx, conn, c.cfg.mux(c.cfg.Tunnel, &mux.Resume{Dial: c.redial, Window: c.cfg.ResumeWindow}))
	if err != nil {
		return nil, err
	}
	if err := c.sessions.add(newMember("", s, func() {})); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// redial is dial for a session that has lost its socket.
func (c *Client) redial(ctx context.Context) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.mu.Lock()
		c.lost.note(err)
		c.mu.Unlock()
	}
	return conn, err
}

// dial makes a socket.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	dial := c.cfg.Dial
	if dial == nil {
		dial = netaddr.Dial
	}
	conn, err := dial(ctx, c.cfg.Address)
	if err != nil || c.cfg.TLS == nil {
		return conn, err
	}
	return tls.Client(conn, c.cfg.TLS), nil
}

// note keeps the result of an attempt, for those who ask, and logs what is new.
func (c *Client) note(err error) {
	if err != nil && (errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed)) {
		return
	}
	c.mu.Lock()
	c.failed.note(err)
	text := ""
	if err != nil {
		text = err.Error()
	}
	fresh := text != c.logged
	c.logged = text
	c.mu.Unlock()
	c.sessions.tell()
	if fresh && err != nil {
		c.cfg.Logger.Warn("tunnel: cannot connect, trying again", "tunnel", c.cfg.Tunnel, "address", c.cfg.Address, "error", err)
	}
}
