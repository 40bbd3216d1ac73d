package integration

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/pgtest"
)

var (
	huntAll     = flag.Bool("leakhunt", false, "try all ways of the leak hunt, and PgBouncer if there is one")
	huntRewrite = flag.Bool("leakhunt-rewrite", false, "write what the leak hunt sees to testdata/leakhunt.txt and docs/session-state.md; with -leakhunt")
	huntOnly    = flag.String("leakhunt-kind", "", "try these kinds of state only, and tell all that is seen: names, with commas between")
)

// huntWorkers is the number of concurrent cases. Most of them wait.
const huntWorkers = 16

// caseID names a case of the hunt.
type caseID struct{ target, kind, way string }

// hunt is a run of the leak hunt.
type hunt struct {
	t        *testing.T
	server   *pgtest.Cluster
	kinds    []kind
	staying  []way
	leaving  []way
	direct   *huntTarget
	single   *huntTarget   // direct, without another client meanwhile
	targets  []*huntTarget // Headpond's two modes, and PgBouncer's
	subs     map[string]*strings.Replacer
	unread   atomic.Bool // the catalogs were not read for one kind: the others need not wait for that, too
	mu       sync.Mutex  // guards verdicts
	verdicts map[caseID]verdict
}

// shortWays are the ways that `make test` tries: the common ones, and those that resets are most likely to miss. Every kind is tried with
// the first staying and the first leaving one, and with one of the others in turn; `make leakhunt` tries all ways with every kind.
var shortWays = []string{"other-client", "other-makes-the-same", "own-discard-all", "terminate", "reset-in-transaction"}

// TestLeakHunt makes each kind of session state, disturbs the client, and asks two questions: does another client on
// the same server connection see the state (a leak), and does the client itself lose it (a loss)? The right result is
// that of a direct connection. Cases that go wrong must be in testdata/leakhunt.txt with a reason, and listed cases
// must go wrong.
func TestLeakHunt(t *testing.T) {
	h := newHunt(t)
	h.startTargets()
	h.run()
	if *huntAll {
		h.restarts()
	}
	h.compare()
}

func newHunt(t *testing.T) *hunt {
	h := &hunt{t: t, kinds: slices.DeleteFunc(huntKinds(), func(k kind) bool { return *huntOnly != "" && !slices.Contains(strings.Split(*huntOnly, ","), k.name) }), staying: stayingWays(), leaving: leavingWays(), verdicts: map[caseID]verdict{}, subs: map[string]*strings.Replacer{}}
	if !*huntAll {
		short := func(w way) bool { return !slices.Contains(shortWays, w.name) }
		h.staying, h.leaving = slices.DeleteFunc(h.staying, short), slices.DeleteFunc(h.leaving, short)
	}
	h.server = pgtest.Start(t, pgtest.WithSetting("max_connections", "500"))
	h.server.Exec(t, "create database "+huntDatabase)
	h.fixtures()
	return h
}

// connect connects directly to the server.
func (h *hunt) connect() *pgx.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, h.server.DSN(h.server.Superuser(), h.server.Password(), huntDatabase))
	if err != nil {
		h.t.Fatal(err)
	}
	return conn
}

func (h *hunt) fixtures() {
	one := &hunter{server: h.connect(), oids: map[string]uint32{}}
	defer one.server.Close(context.Background())
	if err := one.exec(huntFixture); err != nil {
		h.t.Fatal(err)
	}
	for i := range h.kinds {
		k := &h.kinds[i]
		pairs := []string{"{k}", fmt.Sprintf("k%d", i), "{n}", fmt.Sprint(7000 + i), "{loopback}", fmt.Sprintf("host=127.0.0.1 port=%d dbname=%s", h.server.Port(), huntDatabase)}
		if k.known != "" {
			r, err := one.queryValue(k.known)
			if err != nil {
				h.t.Fatal(err)
			}
			pairs = append(pairs, "{r}", r)
		}
		for _, value := range k.values {
			h.subs[k.name+"/"+value] = strings.NewReplacer(append([]string{"{v}", value}, pairs...)...)
		}
		if err := one.exec("create role " + k.role() + " superuser login;" + h.subs[k.name+"/"+k.values[0]].Replace(k.fixture)); err != nil {
			h.t.Fatalf("%s: %v", k.name, err)
		}
	}
}

// strictly is the name of transaction mode with all that is there for clients that must not notice it.
const strictly = "strict"

// startTargets starts the gateway, with an upstream of one connection for each kind and mode, and PgBouncer.
func (h *hunt) startTargets() {
	h.direct = &huntTarget{name: "direct", addr: h.server.Addr(), kind: "direct", shares: true}
	h.single = &huntTarget{name: "single", addr: h.server.Addr(), kind: "direct"}
	var listeners, upstreams strings.Builder
	for _, mode := range []string{"transaction", strictly, "session"} {
		target := &huntTarget{name: mode, addr: address(h.t), kind: "headpond", shares: mode != "session"}
		listener, upstream := "mode: "+mode, ""
		if mode == strictly {
			listener, upstream = "pin_also: [sequence_values, setting_names, temp_buffers]", ", read_catalogs: hidden"
		}
		h.targets = append(h.targets, target)
		var databases []string
		for _, k := range h.kinds {
			name := mode + "_" + k.role()
			databases = append(databases, k.role()+": "+name)
			fmt.Fprintf(&upstreams, "  %s: {endpoints: [%s], pool: {max_size: 1, acquire_timeout: 4s}, postgres: {user: %s, dbname: %s%s}}\n",
				name, h.server.Addr(), k.role(), huntDatabase, upstream)
		}
		fmt.Fprintf(&listeners, "  - {name: %s, protocol: postgres, listen: %s, postgres: {%s, auth: trust, databases: {%s}}}\n",
			mode, target.addr, listener, strings.Join(databases, ", "))
	}
	g := startGateway(h.t, "listeners:\n"+listeners.String()+"upstreams:\n"+upstreams.String(), plain)
	for _, target := range h.targets {
		target.kill = killSession(g.admin)
	}
	if !*huntAll {
		return
	}
	for _, mode := range []string{"transaction", "session"} {
		h.targets = append(h.targets, h.startPgBouncer(mode))
	}
}

// each calls do with the number of each kind, huntWorkers at a time.
func (h *hunt) each(do func(one *hunter, i int)) {
	work := make(chan int)
	var wg sync.WaitGroup
	for range huntWorkers {
		conn := h.connect()
		wg.Go(func() {
			defer conn.Close(context.Background())
			for i := range work {
				do(&hunter{server: conn, sub: h.subs, oids: map[string]uint32{}}, i)
			}
		})
	}
	for i := range h.kinds {
		work <- i
	}
	close(work)
	wg.Wait()
}

// run tries all cases.
func (h *hunt) run() {
	start := time.Now()
	h.each(h.runKind)
	h.t.Logf("%d cases in %v", len(h.verdicts), time.Since(start).Round(time.Millisecond))
}

// try tries a case. An error in the hunt itself fails the test.
func (h *hunt) try(one *hunter, target *huntTarget, k *kind, w *way, want *seen) seen {
	one.target = target
	s, err := one.try(k, w, want)
	if err != nil {
		h.t.Error(err)
	}
	if *huntOnly != "" {
		h.t.Logf("%s, %s: %+v", target.name, w.name, s)
	}
	return s
}

// ways are those in which a kind is tried, the number of which is i. The first of each list is always among them.
func (h *hunt) ways(i int) (staying, leaving []way) {
	if *huntAll {
		return h.staying, h.leaving
	}
	first := len(h.staying) - 1 // staying ways that take turns; the leaving ones follow
	if i %= first + len(h.leaving) - 1; i < first {
		return []way{h.staying[0], h.staying[1+i]}, h.leaving[:1]
	}
	return h.staying[:1], []way{h.leaving[0], h.leaving[1+i-first]}
}

// runKind tries a kind in its ways, first without a gateway to learn the right results.
func (h *hunt) runKind(one *hunter, i int) {
	if h.unread.Load() {
		return
	}
	k := &h.kinds[i]
	staying, leaving := h.ways(i)
	right := map[string]seen{}
	for i := range staying {
		w := &staying[i]
		right[w.name] = h.try(one, h.direct, k, w, nil)
	}
	left := h.try(one, h.direct, k, &leaving[0], nil)
	plain := right[staying[0].name]
	if plain.self == plain.other || plain.self == left.next {
		h.t.Errorf("%s cannot show anything: straight on the server the client sees %q, another one %q, one that comes later %q", k.name, plain.self, plain.other, left.next)
	}
	for _, target := range h.targets {
		if target.name == strictly || target.name == "transaction" { // session mode and PgBouncer do not read them
			if err := one.awaitCatalogs(target, k); err != nil {
				h.unread.Store(true)
				h.t.Error(err)
				return
			}
		}
		for i := range staying {
			w := &staying[i]
			want := right[w.name]
			h.judge(target, k, w, want, h.try(one, target, k, w, &want), []string{want.self, plain.self}, []string{want.next, left.next})
		}
		for i := range leaving {
			if w := &leaving[i]; w.only == "" || w.only == target.kind {
				h.judge(target, k, w, left, h.try(one, target, k, w, &left), nil, []string{left.next})
			}
		}
	}
}

// judge compares a case with the same case without a gateway. A client that lost its server connection may get an
// error, or continue with its state.
func (h *hunt) judge(target *huntTarget, k *kind, w *way, want, got seen, self, next []string) {
	var v verdict
	switch {
	case got.made != want.made:
		v.loss = fmt.Sprintf("made with %q, want %q", got.made, want.made)
	case !w.stays || got.self == want.self:
	case strings.HasPrefix(want.self, "gone") && (strings.HasPrefix(got.self, "gone") || slices.Contains(self, got.self)):
	default:
		v.loss = fmt.Sprintf("the client sees %q, want %q", got.self, want.self)
	}
	switch {
	case got.other != "" && !got.refused && got.other != want.other:
		v.leak = fmt.Sprintf("another client sees %q, want %q", got.other, want.other)
	case strings.HasPrefix(got.made, "refused"):
	case !slices.Contains(next, got.next):
		v.leak = fmt.Sprintf("a later client sees %q, want %q", got.next, want.next)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.verdicts[caseID{target.name, k.name, w.name}] = v
}

// restarting is the way that affects all clients at once.
var restarting = way{name: "server-restarted", stays: true}

// restarts restarts the server between making and looking at the state, for every kind.
func (h *hunt) restarts() {
	for _, target := range h.targets {
		kept := make([]seen, len(h.kinds)) // what the client sees while it has its connection
		straight := h.direct
		if !target.shares {
			straight = h.single
		}
		players, made := make([]*player, len(h.kinds)), make([]seen, len(h.kinds))
		h.each(func(one *hunter, i int) {
			k := &h.kinds[i]
			kept[i] = h.try(one, straight, k, &h.staying[0], nil)
			one.target = target
			p, begun, err := one.begin(k)
			if err != nil {
				made[i].made = "refused: " + err.Error()
				return
			}
			players[i], made[i].made = p, begun
		})
		h.server.Restart(h.t)
		h.each(func(one *hunter, i int) {
			k, p := &h.kinds[i], players[i]
			one.target = target
			want := kept[i]
			want.self = "gone"
			if p != nil {
				p.hunter = one
				one.stay(k, &restarting, p, &want, &made[i])
				made[i].next = one.next(k, want.nexts())
			}
			if made[i].other == want.next { // other clients see the end of the client, too
				want.other = want.next
			}
			h.judge(target, k, &restarting, want, made[i], []string{kept[i].self}, []string{want.next})
		})
	}
}
