//go:build unix && storm

package gateway_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
)

// The tests of package pgproxy look at faults and at what operators do one by one. Here they meet: clients with all kinds of work
// before a gateway with random settings, while servers crash, hang and end connections, and operators reload, pause and kill.

var (
	stormRounds = flag.Int("storms", 60, "rounds of TestPostgresStorm: each has another gateway")
	stormSeed   = flag.Uint64("storms-seed", 1, "of the first round of TestPostgresStorm")
	stormTurns  = flag.Int("storms-turns", 3, "sessions of each client in a round")
)

const (
	stormClients = 8
	stormUsers   = 3 // storm0 and so on
)

// storm is a round.
type storm struct {
	t        *testing.T
	r        *rand.Rand // of the operator, and of the first settings
	db       *pgtest.Cluster
	gw       *gatewaytest.Gateway
	fixed    stormFixed
	calm     chan struct{} // closed when the clients have ended
	accepted atomic.Int64  // connections that clients have made

	mu       sync.Mutex
	settings stormSettings   // in force, or about to be
	reloads  int             // begun and ended
	unpinned int             // reloads when state that pins was last undone; -1: it never was
	faults   map[string]bool // SQLSTATEs that the operator has made possible
	history  []string        // what the operator did
	outcomes map[string]int  // how requests ended
	failures int
}

// stormFixed are the settings that stay for a round.
type stormFixed struct {
	engine                string
	listen                string
	auth                  string // one, own or query
	rules                 bool
	clientTLS, serverTLS  bool
	users, cert, key, dir string
}

// stormSettings are those that reloads change.
type stormSettings struct {
	mode, state, catalogs, endpoints, params, clientIdle, lifetime, acquire string
	size, minIdle, pinned, perUser, perDatabase, most                       int
	alsoPins, health                                                        bool
}

// TestPostgresStorm: whatever happens to servers and settings, no client gets the answer or the state of another one, each gets an
// answer or an error that is documented, commits are durable, and nothing is left when all is over. A failure names the round's
// seed, for -storms-seed N -storms 1.
func TestPostgresStorm(t *testing.T) {
	db := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM), pgtest.WithTLS(), pgtest.WithSetting("synchronous_commit", "on"))
	for i := range stormUsers {
		db.CreateUser(t, fmt.Sprint("storm", i), "pw")
	}
	db.CreateUser(t, "storm_app", "pw")
	db.Exec(t, "create role storm_auth login superuser password 'pw'", "create table storm_rows (round bigint, client int, n int)", "grant all on storm_rows to public")
	authority := certs.New()
	for i := range uint64(*stormRounds) {
		seed := *stormSeed + i
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			s := &storm{t: t, r: rand.New(rand.NewPCG(seed, 1)), db: db, calm: make(chan struct{}), faults: map[string]bool{}, outcomes: map[string]int{}} //nolint:gosec // for tests
			s.begin(seed, authority)
			s.run(seed)
			s.check(seed)
		})
	}
}

// begin starts a gateway.
func (s *storm) begin(seed uint64, authority *certs.Authority) {
	dir := s.t.TempDir()
	cert, key := certs.PEM(authority.Certificate)
	users := "\"admin\" \"pw\"\n"
	for i := range stormUsers {
		users += fmt.Sprintf("\"storm%d\" \"pw\"\n", i)
	}
	f := &s.fixed
	*f = stormFixed{
		engine: engineKinds[seed%uint64(len(engineKinds))], listen: conntest.FreeAddress(s.t), auth: oneOf(s.r, "one", "own", "query"), rules: s.chance(3), clientTLS: s.chance(3), serverTLS: s.chance(3),
		users: filepath.Join(dir, "users"), cert: filepath.Join(dir, "cert"), key: filepath.Join(dir, "key"), dir: dir,
	}
	for name, content := range map[string]string{f.users: users, f.cert: string(cert), f.key: string(key)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.settings = s.newSettings()
	s.allowFor(s.settings)
	s.unpinned = -1
	if s.settings.state != "pin" {
		s.unpinned = 0
	}
	s.note("%+v", s.fixed)
	s.gw = run(s.t, parse(s.t, s.text(s.settings)))
}

// newSettings returns random settings.
func (s *storm) newSettings() stormSettings {
	tcp, socket := s.db.Addr(), s.db.SocketAddr()
	endpoints := []string{tcp, tcp, "localhost:" + fmt.Sprint(s.db.Port())}
	if !s.fixed.serverTLS {
		endpoints = append(endpoints, socket, tcp+`", "`+socket)
	}
	n := stormSettings{
		mode: oneOf(s.r, "transaction", "transaction", "transaction", "session"), state: oneOf(s.r, "pin", "pin", "refuse", "reset"), catalogs: oneOf(s.r, "false", "evident", "hidden"),
		endpoints: oneOf(s.r, endpoints...), clientIdle: oneOf(s.r, "never", "never", "1s"), lifetime: oneOf(s.r, "never", "never", "500ms"), acquire: oneOf(s.r, "200ms", "2s", "20s"),
		params: oneOf(s.r, "", "", "", "statement_timeout: 500ms", "idle_in_transaction_session_timeout: 150ms"),
		size:   1 + s.r.IntN(4), pinned: s.r.IntN(3), most: s.r.IntN(2) * (2 + s.r.IntN(4)), health: s.chance(2),
	}
	n.minIdle = s.r.IntN(n.size + 1)
	if s.chance(4) {
		n.perUser, n.perDatabase = 1+s.r.IntN(4), 3+s.r.IntN(4)
	}
	n.alsoPins = n.state == "pin" && s.chance(3)
	return n
}

// text is the configuration.
func (s *storm) text(n stormSettings) string {
	f := &s.fixed
	var b strings.Builder
	fmt.Fprintf(&b, "engine: %s\ndrain_timeout: 20s\nlisteners:\n  - name: db\n    protocol: postgres\n    listen: %q\n", f.engine, f.listen)
	if f.clientTLS {
		fmt.Fprintf(&b, "    tls: {cert: %q, key: %q}\n", f.cert, f.key)
	}
	fmt.Fprintf(&b, "    postgres:\n      mode: %s\n      on_session_state: %s\n      client_idle_timeout: %s\n      databases: {postgres: pg, other: pg}\n      console: {admins: [admin]}\n", n.mode, n.state, n.clientIdle)
	if n.pinned > 0 {
		fmt.Fprintf(&b, "      max_pinned: %d\n", n.pinned)
	}
	if n.alsoPins {
		b.WriteString("      pin_also: [sequence_values, setting_names, temp_buffers]\n")
	}
	if n.perUser > 0 {
		fmt.Fprintf(&b, "      max_clients: {per_user: %d, per_database: %d}\n", n.perUser, n.perDatabase)
	}
	fmt.Fprintf(&b, "      users_file: %q\n", f.users)
	if f.auth == "query" {
		b.WriteString("      auth_query: \"SELECT rolname::text, rolpassword FROM pg_catalog.pg_authid WHERE rolname = $1\"\n      auth_upstream: users\n")
	}
	if f.rules {
		b.WriteString("      auth_rules: [{type: host, database: all, user: [admin, /^storm], address: 127.0.0.0/8, method: scram-sha-256}]\n")
	}
	fmt.Fprintf(&b, "upstreams:\n  pg:\n    endpoints: [\"%s\"]\n    health: {%s, interval: 200ms}\n", n.endpoints, map[bool]string{true: "postgres: true", false: "tcp: true"}[n.health])
	fmt.Fprintf(&b, "    pool: {max_size: %d, min_idle: %d, max_lifetime: %s, acquire_timeout: %s}\n", n.size, n.minIdle, n.lifetime, n.acquire)
	if f.serverTLS {
		fmt.Fprintf(&b, "    tls: {ca: %q}\n", s.db.CAFile())
	}
	login := "user: storm_app, dbname: postgres"
	if f.auth != "one" {
		login = fmt.Sprintf("login_as: client, user: storm_auth, dbname: postgres, max_connections: %d", n.most)
	}
	fmt.Fprintf(&b, "    postgres: {%s, password: pw, read_catalogs: %s, params: {%s}}\n", login, n.catalogs, n.params)
	if f.auth == "query" {
		fmt.Fprintf(&b, "  users:\n    endpoints: [%q]\n    postgres: {user: storm_auth, password: pw, dbname: postgres}\n", s.db.Addr())
	}
	return b.String()
}

// run has clients and the operator do their work.
func (s *storm) run(seed uint64) {
	var operator, clients sync.WaitGroup
	all := make([]*stormClient, stormClients)
	for i := range all {
		all[i] = &stormClient{storm: s, id: i, round: seed, r: rand.New(rand.NewPCG(seed, uint64(100+i))), rows: map[int]rowState{}} //nolint:gosec // for tests
		clients.Go(func() {
			for range *stormTurns {
				all[i].session()
			}
		})
	}
	operator.Go(s.operate)
	clients.Wait()
	close(s.calm)
	operator.Wait()
	s.restore()
	for _, c := range all {
		c.checkRows()
	}
}

// check waits until nothing is left.
func (s *storm) check(seed uint64) {
	conntest.Eventually(s.t, "all sessions end", func() bool { return len(s.gw.Sessions()) == 0 })
	conntest.Eventually(s.t, "all parts that reloads have replaced end", func() bool { return len(s.gw.Snapshot().Retiring) == 0 })
	look := s.db.Connect(s.t)
	s.renew()
	var state string
	deadline := time.Now().Add(conntest.Patience)
	for {
		var open int
		if err := look.QueryRow(context.Background(), "select count(*) from pg_stat_activity where usename like 'storm%' and backend_type = 'client backend' and application_name <> 'direct'").Scan(&open); err != nil {
			s.t.Fatal(err)
		}
		var ok bool
		if state, ok = s.consistent(open); ok {
			break
		}
		if time.Now().After(deadline) {
			s.failed("the pools are not consistent: %s", state)
			break
		}
		wait(10 * time.Millisecond)
	}
	snapshot := s.gw.Snapshot()
	if l := snapshot.Listeners[0]; int64(l.Accepted) != s.accepted.Load() || l.Active != 0 || l.Pinned != 0 || l.Listening != 0 {
		s.failed("the listener has accepted %d connections, clients made %d; active %d, pinned %d, listening %d", l.Accepted, s.accepted.Load(), l.Active, l.Pinned, l.Listening)
	}
	var locks int
	if err := look.QueryRow(context.Background(), "select count(*) from pg_locks where locktype = 'advisory'").Scan(&locks); err != nil || locks != 0 {
		s.failed("%d advisory locks are left: %v", locks, err)
	}
	s.gw.Stop()
	if err := <-s.gw.Result; err != nil {
		s.failed("the gateway has ended with %v", err)
	}
	conntest.Eventually(s.t, "the server has no connection of the gateway", func() bool {
		var n int
		return look.QueryRow(context.Background(), "select count(*) from pg_stat_activity where usename like 'storm%'").Scan(&n) == nil && n == 0
	})
	_ = look.Close(context.Background())
	s.t.Logf("%v", s.outcomes)
	if s.t.Failed() {
		s.t.Logf("settings: %s\nwhat the operator did:\n%s", s.text(s.settings), strings.Join(s.history, "\n"))
	}
}

// renew closes the idle connections, of which the server may have closed some, and opens others.
func (s *storm) renew() {
	if err := s.gw.PauseUpstream("pg", time.Minute); err != nil {
		s.failed("pause: %v", err)
	}
	conntest.Eventually(s.t, "a pause closes all connections", func() bool {
		for _, u := range s.gw.Snapshot().Upstreams {
			for _, e := range u.Endpoints {
				if u.Name == "pg" && e.Pool.Idle+e.Pool.InUse+e.Pool.Busy+e.Pool.Opening > 0 {
					return false
				}
			}
		}
		return true
	})
	if err := s.gw.ResumeUpstream("pg"); err != nil {
		s.failed("resume: %v", err)
	}
	c := &stormClient{storm: s, r: s.r, rows: map[int]rowState{}}
	session := c.login()
	if session == nil {
		return
	}
	session.work = "renew"
	if _, err := session.query("select 1"); err == nil {
		session.leave()
	}
	_ = session.conn.Close()
	conntest.Eventually(s.t, "the last session ends", func() bool { return len(s.gw.Sessions()) == 0 })
}

// consistent reports whether the pools have idle connections only, and the server no others.
func (s *storm) consistent(open int) (state string, ok bool) {
	idle, ok := 0, true
	for _, u := range s.gw.Snapshot().Upstreams {
		for _, e := range u.Endpoints {
			p := e.Pool
			opened, closed := p.Opened+p.Overflowed, p.Discarded+p.ClosedIdle+p.ClosedLifetime+p.ClosedCheck+p.ClosedReset+p.ClosedSurplus
			state += fmt.Sprintf("%s %s: opened %d, closed %d, idle %d, in use %d, opening %d, busy %d, waiting %d, direct %d, leases %d, acquired %d, released %d, discarded %d\n",
				u.Name, e.Address, opened, closed, p.Idle, p.InUse, p.Opening, p.Busy, p.Waiting, p.Direct, e.Leases, p.Acquired, p.Released, p.Discarded)
			idle += p.Idle
			if p.InUse+p.Opening+p.Busy+p.Waiting+p.Direct != 0 || e.Leases != 0 || opened != closed+uint64(p.Idle) || p.Acquired != p.Released+p.Discarded {
				ok = false
			}
		}
	}
	state += fmt.Sprintf("the server has %d connections", open)
	return state, ok && open >= idle && open <= idle+4*stormUsers // the connections for LISTEN and auth_query close later
}

// wait waits for a time.
func wait(d time.Duration) { <-time.After(d) }

// chance is true once in n times.
func (s *storm) chance(n int) bool { return s.r.IntN(n) == 0 }

func oneOf[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// note adds to the history.
func (s *storm) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// allow makes SQLSTATEs possible from now on.
func (s *storm) allow(codes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, code := range codes {
		s.faults[code] = true
	}
}

func (s *storm) allowed(code string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults[code]
}

// count counts how a request ended.
func (s *storm) count(outcome string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes[outcome]++
}

// failed reports a failure.
func (s *storm) failed(format string, args ...any) {
	s.mu.Lock()
	s.failures++
	many := s.failures > 10
	s.mu.Unlock()
	if !many {
		s.t.Errorf(time.Now().Format("05.000 ")+format, args...)
	}
}

// current returns the settings in force, and how many reloads have begun and ended.
func (s *storm) current() (stormSettings, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.settings, s.reloads
}

// direct runs statements on a connection of its own to the server, which may have just crashed.
func (s *storm) direct(fn func(conn *pgx.Conn) error) {
	var last error
	for deadline := time.Now().Add(conntest.Patience); time.Now().Before(deadline); wait(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		conn, err := pgx.Connect(ctx, "host="+s.db.SocketDir()+fmt.Sprintf(" port=%d user=storm_auth dbname=postgres application_name=direct", s.db.Port()))
		if err == nil {
			err = errors.Join(fn(conn), conn.Close(ctx))
		}
		cancel()
		if last = err; err == nil {
			return
		}
	}
	s.failed("on the server: %v", last)
}
