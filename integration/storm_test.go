package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/pgtest"
)

// storm is a gateway whose configuration changes continuously, and the parts of that configuration.
type storm struct {
	rnd   *rand.Rand
	g     *gateway
	db    database
	users string // file
	dir   string
	web   []string // backends
	echo  []string
	far   string // a gateway's tunnel listener

	listen map[string]string // the steady listeners' addresses
	extra  []string          // addresses for listeners that are added, removed, moved and change their protocol
	admin  [2]string         // addresses between which the admin page moves
}

// TestReloadStorm changes everything that a reload can change, in one reload after the other, while every page of the
// admin address is read and clients use every protocol. The gateway's log must show no data race, and clients of
// unchanged listeners must notice nothing.
func TestReloadStorm(t *testing.T) {
	const reloads = 30
	s := newStorm(t)
	s.g = startGateway(t, s.config())
	stopScraping := s.scrape(t)
	loads := s.traffic(t)
	for i := range reloads {
		s.reload(t, i)
	}
	for name, l := range loads {
		if name != "extra" {
			l.awaitMore(t, 1)
		}
		if n := l.failed.Load(); n > 0 && name != "extra" {
			t.Errorf("%s: %d of %d clients failed: %v", name, n, n+l.ok.Load(), l.lastError())
		}
	}
	s.g.signal(syscall.SIGTERM) // while scrapers and clients run
	if code := s.g.awaitEnd(t, drainTimeout+patience); code != 0 {
		t.Errorf("exit code %d", code)
	}
	stopScraping()
	for _, l := range loads {
		l.end()
	}
}

func newStorm(t *testing.T) *storm {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	s := &storm{
		rnd: rand.New(rand.NewPCG(seed, 0)), db: newDatabase(t, pgtest.Start(t), "storm"), dir: sharedDir(t), far: address(t),
		listen: map[string]string{}, admin: [2]string{address(t), address(t)},
	}
	s.users = s.db.usersFile(t)
	for range 2 {
		echo, _ := startEcho(t)
		s.echo, s.web = append(s.echo, echo), append(s.web, startHTTP(t).addr())
	}
	for _, name := range []string{"web", "secure", "raw", "db", "lite", "peers", "through"} {
		s.listen[name] = address(t)
	}
	for range 4 {
		s.extra = append(s.extra, address(t))
	}
	issue(t, s.dir, "ca", "web")
	startGateway(t, farConfig(s.far, `"127.0.0.1:*"`, map[string]string{"echo": s.echo[0]}))
	return s
}

// one returns a random choice.
func (s *storm) one(choices ...string) string { return choices[s.rnd.IntN(len(choices))] }

// config returns a different configuration at each call.
func (s *storm) config() string {
	pool := fmt.Sprintf("max_size: %d, acquire_timeout: 30s, min_idle: %d", 2+s.rnd.IntN(5), s.rnd.IntN(3))
	pg := s.db.pgConfigWith(s.users, s.listen["db"], s.one("transaction", "session"), pool)
	steady := fmt.Sprintf(`listeners:
  - {name: web, protocol: http, listen: "%s", upstream: api, access_log: %s}
  - {name: secure, protocol: http, listen: "%s", upstream: api, tls: {cert: %s/ca-web.crt, key: %[4]s/ca-web.key}}
  - {name: raw, protocol: tcp, listen: "%s", upstream: echo, max_conns: %d}
  - {name: lite, protocol: postgres, listen: "%s", upstream: file}
  - {name: peers, protocol: tunnel, listen: "%s", tunnel: {psk: %s, upstreams: [offered], max_streams: %d}}
  - {name: through, protocol: tcp, listen: "%s", upstream: through}
upstreams:
  api: {endpoints: [%s], balance: %s, pool: {%s}, %s}
  echo: {endpoints: [%s], balance: %s}
  file: {endpoints: ["sqlite:%s/storm.db"], pool: {acquire_timeout: 30s}}
  offered: {endpoints: [%s]}
  through: {endpoints: ["%s"], tunnel: far}
`, s.listen["web"], s.one("true", "false"), s.listen["secure"], s.dir, s.listen["raw"], 100+s.rnd.IntN(100), s.listen["lite"],
		s.listen["peers"], tunnelPSK, 100+s.rnd.IntN(100), s.listen["through"],
		s.one(s.web[0], s.web[1], strings.Join(s.web, ", ")), s.one("p2c", "round_robin", "ring_hash", "first"), pool,
		s.one("connect_timeout: 20s", "health: {http: /, interval: 10ms}", "health: {tcp: true}"),
		s.one(s.echo[0], strings.Join(s.echo, ", ")), s.one("p2c", "first"), s.dir, s.one(s.echo...), s.one("upstream:echo", s.echo[1]))
	tunnels := fmt.Sprintf("tunnels:\n  far: {connect: \"%s\", as: near, psk: %s, sessions: %d}\n", s.far, tunnelPSK, 1+s.rnd.IntN(2))
	if s.rnd.IntN(2) == 0 {
		tunnels += fmt.Sprintf("  spare: {connect: \"%s\", as: %s, psk: %s}\n", s.far, s.one("spare", "other"), tunnelPSK)
	}
	s.setLog()
	return join(steady, pg, s.extras()) + tunnels
}

func (s *storm) setLog() {
	if s.g != nil {
		s.g.log = fmt.Sprintf("log: {level: %s, format: %s}\n", s.one("debug", "info"), s.one("text", "json"))
	}
}

// extras returns some of three listeners, which also exchange their addresses.
func (s *storm) extras() string {
	text := "listeners:\n"
	for i, place := range s.rnd.Perm(len(s.extra))[:3] {
		at := s.extra[place]
		switch name := fmt.Sprintf("extra%d", i); s.rnd.IntN(6) {
		case 0:
			text += fmt.Sprintf("  - {name: %s, protocol: tcp, listen: \"%s\", upstream: echo}\n", name, at)
		case 1:
			text += fmt.Sprintf("  - {name: %s, protocol: http, listen: \"%s\", upstream: api}\n", name, at)
		case 2:
			text += fmt.Sprintf("  - {name: %s, protocol: http, listen: \"%s\", upstream: api, tls: {cert: %s/ca-web.crt, key: %[3]s/ca-web.key}}\n", name, at, s.dir)
		case 3:
			text += fmt.Sprintf("  - {name: %s, protocol: postgres, listen: \"%s\", upstream: file}\n", name, at)
		case 4:
			text += fmt.Sprintf("  - {name: %s, protocol: tunnel, listen: \"%s\", tunnel: {psk: %s}}\n", name, at, tunnelPSK)
		}
	}
	return text + "upstreams:\n"
}

// reload applies a new configuration. Sometimes the admin page moves, or the certificate changes.
func (s *storm) reload(t *testing.T, i int) {
	t.Helper()
	if i%7 == 3 {
		issue(t, s.dir, "ca", "web")
	}
	old := s.g.admin
	if i%10 == 9 {
		s.g.admin = s.admin[i/10%2]
	}
	s.g.write(s.config())
	req, err := http.NewRequest(http.MethodPost, "http://"+old+"/api/v1/reload", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Headpond-Reload", "1")
	resp, err := adminClient.Do(req)
	if err != nil {
		t.Fatalf("reload %d: %v", i, err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("reload %d: %d %s %v\n%s", i, resp.StatusCode, body, err, readFile(t, s.g.config))
	}
}

// scrape reads every page of the admin addresses until stop is called.
func (s *storm) scrape(t *testing.T) (stop func()) {
	t.Helper()
	var over atomic.Bool
	var scrapers sync.WaitGroup
	client := httpClient(t)
	for _, addr := range []string{s.g.admin, s.g.admin, s.admin[0], s.admin[1]} {
		scrapers.Go(func() {
			for i := 0; !over.Load(); i++ {
				path := []string{"/metrics", "/", "/api/v1/status", "/api/v1/pools", "/readyz", "/healthz"}[i%6]
				code, body, err := get(client, "http://"+addr+path)
				if err == nil && code != http.StatusOK && code != http.StatusServiceUnavailable {
					t.Errorf("%s: %d %s", path, code, body)
				}
				pause(t.Context(), loadPause)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		over.Store(true)
		scrapers.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// handshakeLimit is how long the gateway lets a client take for its handshake, or for the head of its request.
const handshakeLimit = 10 * time.Second

// traffic starts a client of each unchanged listener, and one of the changing ones.
func (s *storm) traffic(t *testing.T) map[string]*load {
	t.Helper()
	client := httpClient(t)
	secure := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	web := func(client *http.Client, url string) func(context.Context) error {
		return func(context.Context) error {
			for {
				began := time.Now()
				code, body, err := get(client, url)
				if err == nil && code != http.StatusOK {
					err = fmt.Errorf("%d %s", code, body)
				}
				if err == nil || time.Since(began) < handshakeLimit {
					return err
				} // on a machine that is so busy the gateway rightly ends a handshake
			}
		}
	}
	tcp := func(addr string) func(context.Context) error {
		return func(context.Context) error { return exchange(addr, "storm") }
	}
	next := 0
	return map[string]*load{
		"web":     startLoad(t, 1, web(client, "http://"+s.listen["web"]+"/bytes/10000")),
		"secure":  startLoad(t, 1, web(&http.Client{Transport: secure, Timeout: patience}, "https://"+s.listen["secure"]+"/")),
		"raw":     startLoad(t, 1, tcp(s.listen["raw"])),
		"through": startLoad(t, 1, tcp(s.listen["through"])),
		"db":      startLoad(t, 1, query(s.db.dsn(s.listen["db"]))),
		"lite":    startLoad(t, 1, query(sqliteDSN(s.listen["lite"]))),
		"extra": startLoad(t, 1, func(context.Context) error {
			next++
			return exchange(s.extra[next%len(s.extra)], "GET / HTTP/1.0\r\n\r\n")
		}),
	}
}
