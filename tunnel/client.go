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
	// Fallbacks are further addresses, of other servers or of the same one. They are tried in order when the address in
	// use cannot be connected to, or when a session has had no socket for some seconds. Open connections wait for their
	// own server.
	Fallbacks []string
	// TLS is spoken to the server; nil = none. Without a ServerName the host of
	// Address is used.
	TLS *tls.Config
	// Sessions is the number of sessions to keep, each with its own socket; 0 = 1, at most 64. One
	// does not fill a fast link, and a lost packet delays all its streams.
	Sessions int
	// Dial connects to Address; nil uses package net.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// maxClientSessions is far more than is useful.
const maxClientSessions = 64

// Verify reports every problem of c, joined; each wraps ErrConfig.
func (c ClientConfig) Verify() error {
	errs := []error{c.verify()}
	for _, address := range c.addresses() {
		if c.Dial != nil {
			break // it checks addresses
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

// Client is the end of a tunnel that connects. It keeps its sessions open all the time, connects
// again when one is lost, and serves streams that the server opens in them under its own policy.
// All methods are safe for concurrent use.
type Client struct {
	cfg      ClientConfig
	sessions *sessions
	stop     context.CancelFunc
	keepers  sync.WaitGroup
	check    chan struct{} // has the keepers check their sessions; one element for each

	mu     sync.Mutex
	failed failure // of connecting
	lost   failure // of connecting again for a session that has lost its socket
	logged string  // the last error that was logged
}

// NewClient returns a Client that begins to connect at once, and keeps trying until Drain or Close.
// The error wraps ErrConfig.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg.Config = cfg.withDefaults()
	cfg.Tunnel = cmp.Or(cfg.Tunnel, cfg.Address)
	c := &Client{cfg: cfg, sessions: newSessions(cfg.Tunnel, &cfg.Config)}
	ctx, stop := context.WithCancel(context.Background())
	c.stop, c.check = stop, make(chan struct{}, max(cfg.Sessions, 1))
	for range cap(c.check) {
		c.keepers.Go(func() { c.keep(ctx) })
	}
	return c, nil
}

// SetPolicy replaces Config.Policy for new streams; open ones continue. On an error, which wraps ErrConfig, nothing has
// changed.
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

// Draining reports whether a session is drained, by either side, while streams in it
// are open. Connections that are idle in pools should be closed then.
func (c *Client) Draining() bool { return c.sessions.anyDraining("") }

// Drain stops connecting and accepts no more streams from the server, informs it, and waits until
// the open streams have ended. When ctx ends first they are cut off and the error says how many.
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

// The pauses between two attempts to connect grow from minPause to maxPause. A
// session shorter than maxPause counts as a failure, so that a server that closes every session is not asked for another at once.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// checkInterval is how often a keeper checks whether the server drains its session. If so, it makes another one while
// the streams in the first continue.
const checkInterval = 2 * time.Second

// dialTimeout bounds connecting to a server that does not answer, and the handshake.
const dialTimeout = 10 * time.Second

// minHandshake is the least time-out of a handshake, however short KeepAlive is: a few round trips
// to the other side of the world, or a busy machine.
const minHandshake = 3 * time.Second

// keep maintains one session until ctx ends.
func (c *Client) keep(ctx context.Context) {
	for pause, at := minPause, 0; ; {
		began := time.Now()
		s, used, err := c.connect(ctx, at)
		c.note(err)
		if err == nil {
			if at = used; c.watch(ctx, s) {
				at++ // another server may be reachable
				c.sessions.retire(s)
				c.cfg.Logger.Warn("tunnel: no way to the server of a session, trying another", "tunnel", c.cfg.Tunnel, "session", s.ID().String())
				continue
			}
		}
		if time.Since(began) > maxPause {
			pause = minPause
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
		pause = min(2*pause, maxPause)
	}
}

// watch returns when s takes no more streams; true: because it has no socket, and there are other servers to try.
func (c *Client) watch(ctx context.Context, s *member) (elsewhere bool) {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for missed := 0; !s.Draining(); {
		select {
		case <-ctx.Done():
			return false
		case <-s.Done():
		case <-c.check:
		case <-ticker.C:
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

// checkNow has the keepers check their sessions now, because a caller has found one draining.
func (c *Client) checkNow() {
	for range cap(c.check) {
		select {
		case c.check <- struct{}{}:
		default:
			return
		}
	}
}

// connect makes a session with the first server that answers, beginning with the
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
		patience /= 2 // another server may answer
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

// note records the result of an attempt for Stats and Open, and logs an error that differs from the one before.
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
	c.sessions.notify()
	if fresh && err != nil {
		c.cfg.Logger.Warn("tunnel: cannot connect, trying again", "tunnel", c.cfg.Tunnel, "address", strings.Join(c.cfg.addresses(), ", "), "error", err)
	}
}
