package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
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
	// Address is the server's, "host:port" or "unix:/path", or whatever Dial takes.
	Address string
	// Fallbacks are addresses of other servers, or of the same, which are tried in turn
	// when the one in use cannot be connected to, or a session has been without a socket
	// for some seconds. Connections that are open wait for their own server.
	Fallbacks []string
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
	for _, address := range c.addresses() {
		if c.Dial != nil {
			break // it knows what an address is
		}
		if _, _, err := netaddr.Split(address); err != nil {
			errs = append(errs, fmt.Errorf("%w: Address: %w", ErrConfig, err))
		}
	}
	if c.Sessions < 0 || c.Sessions > maxClientSessions {
		errs = append(errs, fmt.Errorf("%w: Sessions is %d, want 0 (default) to %d", ErrConfig, c.Sessions, maxClientSessions))
	}
	return errors.Join(errs...)
}

func (c *ClientConfig) addresses() []string { return append([]string{c.Address}, c.Fallbacks...) }

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
	c.sessions.apply(&cfg, nil)
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

// dialTimeout bounds connecting to a server that does not answer, and the handshake.
const dialTimeout = 10 * time.Second

// minHandshake is what a handshake may take however short KeepAlive is: a few round
// trips to the other side of the world, or a busy machine.
const minHandshake = 3 * time.Second

// keep keeps one session until ctx ends.
func (c *Client) keep(ctx context.Context) {
	for pause, at := firstPause, 0; ; {
		began := time.Now()
		s, used, err := c.connect(ctx, at)
		c.note(err)
		if err == nil {
			if at = used; c.watch(ctx, s) {
				at++ // there may be a way to another
				c.sessions.retire(s)
				c.cfg.Logger.Warn("tunnel: no way to the server of a session, trying another", "tunnel", c.cfg.Tunnel, "session", s.ID().String())
				continue
			}
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

// watch returns when s takes no more streams; true: because it has no socket, and another
// server may be reached.
func (c *Client) watch(ctx context.Context, s *member) (elsewhere bool) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for missed := 0; !s.Draining(); {
		select {
		case <-ctx.Done():
			return false
		case <-s.Done():
		case <-c.look:
		case <-look.C:
			if missed++; !s.Stats().Suspended {
				missed = 0
			}
			if missed > 1 && len(c.cfg.Fallbacks) > 0 {
				return true
			}
		}
	}
	return false
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

// connect makes a session with the first server that can be had, beginning with the
// one at index from; used is its index.
func (c *Client) connect(ctx context.Context, from int) (s *member, used int, err error) {
	all := c.cfg.addresses()
	var failed error
	for i := range all {
		used = (from + i) % len(all)
		if s, err = c.connectTo(ctx, all[used]); err == nil {
			return s, used, nil
		}
		switch {
		case len(all) == 1:
			return nil, used, err
		case failed == nil:
			failed = fmt.Errorf("%s: %w", all[used], err)
		default:
			failed = fmt.Errorf("%w; %s: %w", failed, all[used], err)
		}
	}
	return nil, from, failed
}

func (c *Client) connectTo(ctx context.Context, address string) (*member, error) {
	patience := min(dialTimeout, c.cfg.KeepAlive)
	if len(c.cfg.Fallbacks) > 0 {
		patience /= 2 // another may answer
	}
	mc := c.cfg.mux(c.cfg.Tunnel, &mux.Resume{Window: c.cfg.ResumeWindow, Dial: func(ctx context.Context) (net.Conn, error) {
		return c.redial(ctx, address)
	}})
	mc.HandshakeTimeout = max(patience, minHandshake)
	dialling, cancel := context.WithTimeout(ctx, max(patience, minHandshake))
	defer cancel()
	conn, err := c.dial(dialling, address)
	if err != nil {
		return nil, err
	}
	session, err := mux.Client(ctx, conn, mc)
	if err != nil {
		return nil, err
	}
	s := newMember("", proof{}, session, func() {})
	if err := c.sessions.add(s); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// redial is dial for a session that has lost its socket.
func (c *Client) redial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := c.dial(ctx, address)
	if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		c.mu.Lock()
		c.lost.note(err)
		c.mu.Unlock()
	}
	return conn, err
}

// dial makes a socket.
func (c *Client) dial(ctx context.Context, address string) (net.Conn, error) {
	dial := c.cfg.Dial
	if dial == nil {
		dial = netaddr.Dial
	}
	conn, err := dial(ctx, address)
	if err != nil || c.cfg.TLS == nil {
		return conn, err
	}
	config := c.cfg.TLS
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName, _, _ = net.SplitHostPort(address)
	}
	return tls.Client(conn, config), nil
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
		c.cfg.Logger.Warn("tunnel: cannot connect, trying again", "tunnel", c.cfg.Tunnel, "address", strings.Join(c.cfg.addresses(), ", "), "error", err)
	}
}
