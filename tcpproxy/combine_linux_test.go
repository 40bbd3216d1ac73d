package tcpproxy_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/splice"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// Features of TCP listeners and their upstreams are tested one by one elsewhere. Here they meet: random clients talk to random
// servers through listeners with several features at once, while operators change things. The model (combine_model_linux_test.go)
// says what docs/tcp.md and docs/configuration.md promise for a session.

var (
	combineRounds = flag.Int("combinations", 2, "rounds of TestCombinations: each has other listeners")
	combineSeed   = flag.Uint64("combinations-seed", 1, "of the first round of TestCombinations")
)

// Sizes of a round.
const (
	combineUpstreams = 4
	combineListeners = 5
	combineClients   = 10
	combineTurns     = 8 // of each client; one session each
	combineDrain     = 150 * time.Millisecond
)

// combineRound has what the sessions of a round share.
type combineRound struct {
	t         *testing.T
	seed      uint64
	certs     *combineCerts
	nobody    []string // addresses where nobody listens
	upstreams []*combineUpstream
	listeners []*combineListener
	log       conntest.Log
	sessions  sync.Map // *combined by tag
	sources   sync.Map // *combined by the address that the proxy knows

	mu       sync.Mutex
	failures int
}

// maxCombineFailures bounds what is reported of a round: the first ones tell most.
const maxCombineFailures = 8

func (r *combineRound) failed(c *combined, format string, args ...any) {
	r.mu.Lock()
	r.failures++
	many := r.failures > maxCombineFailures
	r.mu.Unlock()
	if !many {
		r.t.Errorf("%s: %s\n\t%s", c.tag, fmt.Sprintf(format, args...), c)
	}
}

// TestCombinations: whatever features are on at the same time, bytes arrive in order at the right side or the session visibly breaks,
// each session is counted and logged once, for a reason that it has, and nothing is left of it. Run it for longer by
// -combinations N; a failure names the round's seed, for -combinations-seed N -combinations 1.
func TestCombinations(t *testing.T) {
	certs, nobody := newCombineCerts(), [...]string{conntest.FreeAddress(t), conntest.FreeAddress(t), conntest.FreeAddress(t)}
	for i := range uint64(*combineRounds) {
		seed := *combineSeed + i
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			r := &combineRound{t: t, seed: seed, certs: certs, nobody: nobody[:]}
			r.run()
		})
	}
}

func (r *combineRound) random(stream uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.seed, stream)) //nolint:gosec // for tests
}

func (r *combineRound) run() {
	files := combineFiles(r.t)
	rnd := r.random(1)
	for i := range combineUpstreams {
		r.upstreams = append(r.upstreams, newCombineUpstream(r, rnd, i))
	}
	for i := range combineListeners {
		r.listeners = append(r.listeners, newCombineListener(r, rnd, i))
	}
	var clients, lasting sync.WaitGroup
	stop := make(chan struct{})
	var operators sync.WaitGroup
	operators.Go(func() { r.operate(r.random(2), stop) })
	for i := range combineClients {
		clients.Go(func() { r.client(i, &lasting) })
	}
	clients.Wait()
	close(stop)
	operators.Wait()
	for _, l := range r.listeners {
		l.awaitEnds()
	}
	r.drain()
	lasting.Wait()
	for _, l := range r.listeners {
		<-l.served
	}
	for _, u := range r.upstreams {
		u.end()
	}
	r.check()
	conntest.Eventually(r.t, "no pipe is in use", func() bool {
		open, idle := splice.Open()
		return open == idle
	})
	conntest.Eventually(r.t, fmt.Sprintf("no more than %d files are open", files), func() bool { return combineFiles(r.t) <= files+combineIdlePipes() })
}

// combineFiles is the number of open descriptors.
func combineFiles(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// combineIdlePipes is the number of descriptors of pipes that are kept for other sessions.
func combineIdlePipes() int {
	_, idle := splice.Open()
	return 2 * idle
}

// client runs the sessions of one client, one after the other but for those that last until the drain.
func (r *combineRound) client(i int, lasting *sync.WaitGroup) {
	rnd := r.random(uint64(100 + i))
	for turn := range combineTurns {
		c := newCombined(r, rnd, i, turn)
		r.sessions.Store(c.tag, c)
		if c.lasts() {
			lasting.Go(c.run)
			continue
		}
		c.run()
	}
}

// awaitEnds waits until all sessions have ended but those that last.
func (l *combineListener) awaitEnds() {
	conntest.Eventually(l.r.t, fmt.Sprintf("only sessions that last are left at listener %d", l.i), func() bool {
		for _, s := range l.proxy.Sessions() {
			if c, ok := l.r.sources.Load(s.Client); ok && !c.(*combined).lasts() {
				return false
			}
		}
		return true
	})
}

// drain ends all listeners. Sessions that last are cut off.
func (r *combineRound) drain() {
	var all sync.WaitGroup
	for _, l := range r.listeners {
		all.Go(func() {
			l.draining.Store(true)
			ctx, cancel := context.WithTimeout(context.Background(), combineDrain)
			defer cancel()
			_ = l.proxy.Drain(ctx) // the error says how many were cut off
		})
	}
	all.Wait()
}

// operate changes things while sessions run.
func (r *combineRound) operate(rnd *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond):
		}
		u, l := r.upstreams[rnd.IntN(len(r.upstreams))], r.listeners[rnd.IntN(len(r.listeners))]
		switch rnd.IntN(6) {
		case 0:
			r.kill(l, rnd)
		case 1, 2:
			u.change(rnd)
		case 3:
			u.sicken(rnd)
		case 4:
			l.reload(rnd)
		case 5:
			_ = u.up.Status()
		}
	}
}

// kill ends a session, as an operator does.
func (r *combineRound) kill(l *combineListener, rnd *rand.Rand) {
	all := l.proxy.Sessions()
	if len(all) == 0 {
		return
	}
	s := all[rnd.IntN(len(all))]
	id, stream, ok := listener.ParseID(s.ID)
	if !ok {
		r.t.Errorf("the session's ID is %q", s.ID)
		return
	}
	l.mayKill.Add(1)
	if c, ok := r.sources.Load(s.Client); ok {
		c.(*combined).killed.Store(true)
	}
	l.proxy.Kill(id, stream)
}

// combineUpstream is an upstream with its servers.
type combineUpstream struct {
	r       *combineRound
	i       int
	up      *upstream.Upstream[net.Conn]
	set     upstream.Settings
	servers []*combineServer
	tls     bool // the proxy speaks TLS to them
	banner  bool // they send something before the client does
	changes bool // operators change it
	small   bool // its pools are
}

// change changes an endpoint, as an operator does.
func (u *combineUpstream) change(rnd *rand.Rand) {
	if !u.changes {
		return
	}
	s := u.servers[rnd.IntN(len(u.servers))]
	actions := upstream.Actions()
	_ = u.up.ChangeEndpoint(upstream.Change{Action: actions[rnd.IntN(len(actions))], Endpoint: upstream.Endpoint{Address: s.address, Weight: 1 + rnd.IntN(5)}}) // some are impossible
}

// sicken changes what a server answers to health checks.
func (u *combineUpstream) sicken(rnd *rand.Rand) {
	if u.changes {
		u.servers[rnd.IntN(len(u.servers))].health.Store(int32(rnd.IntN(4)))
	}
}

func (u *combineUpstream) end() {
	for _, e := range u.up.Status().Endpoints {
		if e.Leases != 0 || e.Pool.InUse != 0 || e.Pool.Waiting != 0 {
			u.r.t.Errorf("of upstream %d, endpoint %s: %d leases, %+v after the last session", u.i, e.Address, e.Leases, e.Pool)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), conntest.Patience)
	defer cancel()
	if err := u.up.Drain(ctx); err != nil {
		u.r.t.Error(err)
	}
	for _, s := range u.servers {
		s.kill()
	}
}

// logger writes to the round's log.
func (r *combineRound) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// String describes the session for a failure.
func (c *combined) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listener %d %s client=%s tls=%t sni=%q alpn=%q header=%d vanishes=%q killed=%t\n", c.l.i, c.l, c.source(), c.tls, c.sni, c.alpn, c.header, c.vanishes, c.killed.Load())
	fmt.Fprintf(&b, "\tclient's script %+v, view %s\n\tserver's script %+v, view %s\n", c.up, &c.client, c.down, &c.server)
	for _, line := range c.lines {
		fmt.Fprintf(&b, "\t%s\n", line)
	}
	if c.upstream != nil {
		fmt.Fprintf(&b, "\tupstream %d: tls=%t banner=%t changes=%t", c.upstream.i, c.upstream.tls, c.upstream.banner, c.upstream.changes)
		for _, s := range c.upstream.servers {
			fmt.Fprintf(&b, " %s=%s", s.address, s.kind)
		}
	}
	return b.String()
}

// combineNumber is the number of the last client's address. Other processes may use the same ones, and the system keeps those of
// connections that have just ended.
var combineNumber atomic.Uint32

func init() { combineNumber.Store(rand.Uint32()) } //nolint:gosec // for tests
