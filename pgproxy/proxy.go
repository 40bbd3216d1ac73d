package pgproxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy/hba"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/traffic"
)

// Proxy is a running listener of protocol "postgres". Methods may be called from any goroutine.
type Proxy struct {
	srv        *listener.Server
	settings   atomic.Pointer[settings]
	mockSecret [32]byte   // the secret of unknown users: it never changes, so that they look like known ones
	asked      iterations // of the users that the AuthQuery has found
	failures   failures
	keySecret  [keySecretSize]byte // the keys for cancel requests are computed from it
	nextID     atomic.Uint32
	cutting    sync.Once // arranges once for cutOff to be called
	traffic    *traffic.Set
	ticks      ticks
	pins       pinRules
	history    history
	endAfter   atomic.Int64 // the constant of that name; tests make it shorter

	mu      sync.Mutex // not held across I/O
	clients map[uint32]*Client
	counts  clientCounts         // of clients
	aliases map[uint32][]*Client // by the process ID of the server, in session mode; several servers may have the same
	moved   map[*traffic.Cell]*moved
}

const keySecretSize = 32

// settings are a Config and values computed from it.
type settings struct {
	Config
	always      hba.Rule // the rule without Rules
	credentials map[string]*credential
	answers     *answers   // of AuthQuery; nil = there is none
	members     *answers   // who is a member of which roles; nil = no rule asks for that
	iterations  iterations // of credentials
	logins      logins
	upstreams   map[string]string // the names of Databases' upstreams, by the same keys, and the console's
}

var _ listener.Rejecter = (*Proxy)(nil)

// New returns a Proxy for cfg. Errors wrap ErrConfig or listener.ErrConfig. Nothing runs until Serve. The backends
// remain the caller's: drain them after the Proxy.
func New(cfg Config) (*Proxy, error) {
	p := &Proxy{
		clients: make(map[uint32]*Client), counts: newClientCounts(), aliases: make(map[uint32][]*Client), moved: make(map[*traffic.Cell]*moved),
		traffic: traffic.NewSet(clientTraffic), history: newHistory(time.Now()), failures: newFailures(),
	}
	p.endAfter.Store(int64(endAfter))
	p.ticks.move()
	_, _ = rand.Read(p.mockSecret[:])
	_, _ = rand.Read(p.keySecret[:])
	var seed [4]byte
	_, _ = rand.Read(seed[:])
	p.nextID.Store(binary.BigEndian.Uint32(seed[:]))
	set, err := prepare(cfg, &p.asked)
	if err != nil {
		return nil, err
	}
	if p.srv, err = listener.New(set.Listener, p); err != nil {
		return nil, err
	}
	p.srv.Measure(p.traffic)
	p.countUpstreams(set)
	p.pins.proxy, p.pins.vacate = proxies.Add(1), p.vacate
	p.pins.set(&set.Config)
	p.notePins(set)
	p.settings.Store(set)
	return p, nil
}

// prepare checks a Config and computes the values that sessions need. The users that AuthQuery finds are counted in asked.
func prepare(cfg Config, asked *iterations) (*settings, error) {
	if err := cfg.Verify(); err != nil {
		return nil, err
	}
	cfg.LoginTimeout = cmp.Or(cfg.LoginTimeout, DefaultLoginTimeout)
	cfg.Listener.Protocol = cmp.Or(cfg.Listener.Protocol, "postgres")
	cfg.Listener.ClientFirst = true
	if cfg.TLS != nil && len(cfg.TLS.NextProtos) == 0 {
		cfg.TLS = cfg.TLS.Clone()
		cfg.TLS.NextProtos = []string{alpnProtocol}
	}
	if cfg.TLS != nil && cfg.ChannelBinding != BindingDisable {
		cfg.TLS = bindTLS(cfg.TLS)
	}
	set := &settings{Config: cfg, credentials: make(map[string]*credential, len(cfg.Users))}
	set.always.Method = methodOf[cfg.Auth]
	set.logins.byPacket = make(map[string]*Login)
	if cfg.AuthQuery != (AuthQuery{}) {
		set.answers = newAnswers(cfg.AuthQuery, secrets{scram: len(cfg.Rules) == 0 && cfg.Auth == AuthSCRAM, found: asked}.read)
	}
	if cfg.Rules.AskMembers() {
		set.members = newAnswers(AuthQuery{SQL: memberSQL, From: cfg.Members}, rolesIn)
	}
	for user, secret := range cfg.Users {
		c, err := newCredential(user, secret)
		if err != nil {
			return nil, err
		}
		set.credentials[user] = c
		set.iterations.add(c)
	}
	return set, nil
}

// Serve accepts clients from l until Drain is called, and then returns nil. It closes l. Several listeners may be
// served at the same time.
func (p *Proxy) Serve(l net.Listener) error {
	ctx, stop := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() { p.watch(ctx) })
	defer watching.Wait()
	defer stop()
	return p.srv.Serve(l)
}

// Drain stops accepting, disconnects idle clients (57P01), lets the others finish their transaction (in session mode:
// until they are in no transaction), and waits. When ctx ends first, the remaining sessions are cut off, and the
// error says how many there were.
func (p *Proxy) Drain(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	go p.interruptOnDrain(done)
	return p.srv.Drain(ctx)
}

// interruptOnDrain interrupts idle clients once the drain has begun.
func (p *Proxy) interruptOnDrain(done <-chan struct{}) {
	select {
	case <-p.srv.Draining():
	case <-done:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.interrupt()
	}
}

// Update applies a new Config: new sessions see it, running ones are untouched.
func (p *Proxy) Update(cfg Config) error {
	set, err := prepare(cfg, &p.asked)
	if err != nil {
		return err
	}
	if err := p.srv.Update(set.Listener); err != nil {
		return err
	}
	p.countUpstreams(set)
	p.pins.set(&set.Config)
	p.notePins(set)
	p.settings.Store(set)
	return nil
}

// notePins tells the backends what their clients are pinned for on request, and that the number of places may have changed.
func (p *Proxy) notePins(set *settings) {
	for _, b := range set.Databases {
		if pg := postgresOf(b); pg != nil {
			pg.pinAlso(p.pins.also.Load())
			pg.servePins()
		}
	}
}

// Stats returns the listener's counters.
func (p *Proxy) Stats() listener.Stats {
	st := p.srv.Stats()
	st.Pinned, st.Listening = int(p.pins.pinned.Load()), int(p.pins.listening.Load())
	st.StateChecks = p.pins.checks.Load()
	return st
}

// Key returns the key to send as BackendKeyData; it is unique to this client. A session that keeps one server
// connection may send that server's process ID instead, see alias. The key cannot be derived from other clients'
// keys, and idle clients need not store it.
func (c *Client) Key() pgwire.BackendKeyData {
	var secretAndID [keySecretSize + 4]byte // of constant length, so that no sum can be extended to another one
	copy(secretAndID[:], c.proxy.keySecret[:])
	binary.BigEndian.PutUint32(secretAndID[keySecretSize:], c.id)
	sum := sha256.Sum256(secretAndID[:])
	return pgwire.BackendKeyData{ProcessID: c.id, Key: sum[:c.keySize]}
}

// cutOff ends every session, after the sessions' context has ended: a drain has run out of time.
func (p *Proxy) cutOff() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.clients {
		c.cutOffLocked()
	}
}

// alias makes cancel requests reach a client also by the process ID of its server, which the client was told instead
// of its own. The secret is that of Key, so that the server's previous clients cannot reach it.
func (p *Proxy) alias(pid uint32, c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.aliases[pid] = append(p.aliases[pid], c)
}

// unalias is the reverse of alias.
func (p *Proxy) unalias(pid uint32, c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := slices.DeleteFunc(p.aliases[pid], func(other *Client) bool { return other == c })
	if p.aliases[pid] = left; len(left) == 0 {
		delete(p.aliases, pid)
	}
}

// find returns the client of a cancel request, nil if the key is wrong.
func (p *Proxy) find(id uint32, key []byte) *Client {
	p.mu.Lock()
	candidates := slices.Clone(p.aliases[id])
	if c := p.clients[id]; c != nil {
		candidates = append(candidates, c)
	}
	p.mu.Unlock()
	for _, c := range candidates {
		if subtle.ConstantTimeCompare(c.Key().Key, key) == 1 {
			return c
		}
	}
	return nil
}
