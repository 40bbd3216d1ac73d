package gateway_test

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/upstream"
)

// waiting returns the number of callers that wait for a connection, and whether none is open.
func waiting(s upstream.Status) (n int, quiet bool) {
	quiet = true
	for _, e := range s.Endpoints {
		n += e.Pool.Waiting
		quiet = quiet && e.Pool.InUse+e.Pool.Idle+e.Pool.Opening+e.Pool.Busy+e.Pool.Direct == 0
	}
	return n, quiet
}

func pause(t *testing.T, gw *gatewaytest.Gateway, name string) {
	t.Helper()
	if err := gw.PauseUpstream(name, time.Hour); err != nil {
		t.Fatal(err)
	}
}

func resume(t *testing.T, gw *gatewaytest.Gateway, name string) {
	t.Helper()
	if err := gw.ResumeUpstream(name); err != nil {
		t.Fatal(err)
	}
}

// TestRestartPaused restarts a database beneath clients that run transactions, of which none may fail, be lost or be
// done twice.
func TestRestartPaused(t *testing.T) {
	db := pgtest.Start(t)
	for _, engine := range engineKinds {
		t.Run(engine, func(t *testing.T) { restartPaused(t, db, engine) })
	}
}

func restartPaused(t *testing.T, db *pgtest.Cluster, engine string) {
	db.Exec(t, "drop table if exists counters", "create table counters (client int primary key, n int not null)")
	gw := run(t, parse(t, `
engine: {engine}
drain_timeout: 10s
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: pg, postgres: {databases: {"*": pg}}}
upstreams:
  pg:
    endpoints: ["{addr}"]
    postgres: {user: "{user}", dbname: postgres}
    pool: {max_size: 3, min_idle: 1}
`, "{engine}", engine, "{addr}", db.Addr(), "{user}", db.Superuser()))
	stop := make(chan struct{})
	var clients, begun sync.WaitGroup
	done := make([]int, 5) // more than the pool has connections
	for i := range done {
		begun.Add(1)
		clients.Go(func() { done[i] = transact(t, gw.Addr("db"), i, sync.OnceFunc(begun.Done), stop) })
	}
	begun.Wait()
	for range 3 {
		pause(t, gw, "pg")
		status(t, gw, "every client waits", func(s upstream.Status) bool {
			n, quiet := waiting(s)
			return n == len(done) && quiet && !s.PausedUntil.IsZero()
		})
		conntest.Eventually(t, "no connection at the server", func() bool { return db.Backends(t) == 0 })
		db.Restart(t)
		resume(t, gw, "pg")
		before := gw.Snapshot().Upstreams[0].Status.Endpoints[0].Pool.Acquired
		status(t, gw, "clients continue", func(s upstream.Status) bool { return s.Endpoints[0].Pool.Acquired > before+uint64(len(done)) })
	}
	close(stop)
	clients.Wait()
	conn := db.Connect(t)
	for i, want := range done {
		var n int
		if err := conn.QueryRow(t.Context(), "select n from counters where client = $1", i).Scan(&n); err != nil || n != want || n == 0 {
			t.Errorf("client %d committed %d transactions, the server has %d; %v", i, want, n, err)
		}
	}
}

// TestPauseProtocols pauses the upstreams of http, by HTTP/1.1 and HTTP/2, and tcp listeners: no connection is open at
// the server, and clients that come meanwhile are served afterwards.
func TestPauseProtocols(t *testing.T) {
	var open atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) }))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			open.Add(1)
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	for _, c := range []struct{ name, listener, more string }{
		{"http", "protocol: http", ""}, {"http2", "protocol: http", ", protocol: h2c"}, {"tcp", "protocol: tcp", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			gw := run(t, parse(t, `
drain_timeout: 10s
listeners:
  - {name: web, {listener}, listen: "127.0.0.1:0", upstream: web}
upstreams:
  web: {endpoints: ["{addr}"], pool: {min_idle: 1}{more}}
`, "{listener}", c.listener, "{addr}", server.Listener.Addr().String(), "{more}", c.more))
			ask := func() string {
				r, err := http.NewRequest(http.MethodGet, "http://"+gw.Addr("web")+"/", nil)
				if err != nil {
					return err.Error()
				}
				r.Close = true
				_, body, err := do(client(t), r)
				return errors.Join(errors.New(body), err).Error()
			}
			if got := ask(); got != "served" {
				t.Fatal(got)
			}
			pause(t, gw, "web")
			conntest.Eventually(t, "no connection at the server", func() bool { return open.Load() == 0 })
			got := make(chan string, 3)
			for range cap(got) {
				go func() { got <- ask() }()
			}
			status(t, gw, "they wait", func(s upstream.Status) bool { n, quiet := waiting(s); return n == cap(got) && quiet })
			if n := open.Load(); n != 0 {
				t.Errorf("%d connections at the server during the pause", n)
			}
			resume(t, gw, "web")
			for range cap(got) {
				if got := <-got; got != "served" {
					t.Error(got)
				}
			}
		})
	}
}

// TestPauseAcrossChanges: a pause holds for endpoints added later and an upstream that replaces the paused one, and
// ends by itself.
func TestPauseAcrossChanges(t *testing.T) {
	one, two := webServer(t, "one"), webServer(t, "two")
	at := conntest.FreeAddress(t)
	gw := run(t, parse(t, webText, "{listen}", at, "{web}", one, "{more}", ""))
	pause(t, gw, "web")
	if err := gw.ChangeEndpoint("web", upstream.Change{Action: upstream.AddEndpoint, Endpoint: upstream.Endpoint{Address: two}}); err != nil {
		t.Fatal(err)
	}
	if err := gw.ChangeEndpoint("web", upstream.Change{Action: upstream.DrainEndpoint, Endpoint: upstream.Endpoint{Address: one}}); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		_, body, err := get(client(t), "http://"+at+"/")
		got <- errors.Join(errors.New(body), err).Error()
	}()
	status(t, gw, "the request waits", func(s upstream.Status) bool { n, quiet := waiting(s); return n == 1 && quiet })
	resume(t, gw, "web")
	if body := <-got; body != "two" {
		t.Error(body)
	}
	pause(t, gw, "web")
	for _, more := range []string{", pool: {max_size: 7}", ", connect_timeout: 4s"} { // the second needs another upstream
		if err := gw.Reload(parse(t, webText, "{listen}", at, "{web}", one, "{more}", more)); err != nil {
			t.Fatal(err)
		}
		if s := gw.Snapshot().Upstreams[0].Status; time.Until(s.PausedUntil) < 50*time.Minute {
			t.Errorf("after a reload with%s: paused until %v", more, s.PausedUntil)
		}
	}
	if err := gw.PauseUpstream("web", time.Millisecond); err != nil {
		t.Fatal(err)
	}
	status(t, gw, "it has resumed", func(s upstream.Status) bool { return s.PausedUntil.IsZero() })
	if _, body, err := get(client(t), "http://"+at+"/"); body != "one" || err != nil {
		t.Errorf("%q %v", body, err)
	}
}

// TestPauseByAPI covers the answers of the API, and what shows a pause.
func TestPauseByAPI(t *testing.T) {
	gw := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echoServer(t)))
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"pause", `{"upstream": "ecko", "for": "1m"}`, 404, `did you mean \"echo\"?`},
		{"pause", `{"upstream": "echo"}`, 400, "invalid duration"},
		{"pause", `{"upstream": "echo", "for": "-1s"}`, 422, "is not from 1ns to 24h"},
		{"pause", `{"upstream": "echo", "fro": "1m"}`, 400, "unknown field"},
		{"resume", `{"upstream": "echo"}`, 422, gateway.ErrNotPaused.Error()},
		{"resume", `{"upstream": "echo", "for": "1m"}`, 400, "for a pause"},
		{"pause", `{"upstream": "echo", "for": "1h"}`, 200, `"applied": true`},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+gw.Addr("admin")+"/api/v1/"+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(admin.ReloadHeader, "1")
		code, body, err := do(client(t), r)
		if code != c.code || !strings.Contains(body, c.want) || err != nil {
			t.Errorf("%s %s: %d %s %v", c.path, c.body, code, body, err)
		}
	}
	for path, want := range map[string]string{
		"/metrics":       `headpond_upstream_paused{protocol="tcp",upstream="echo"} 1`,
		"/readyz":        `upstream "echo": paused by an operator`,
		"/api/v1/status": `upstream echo is paused by an operator until `,
	} {
		if _, body, err := get(client(t), "http://"+gw.Addr("admin")+path); !strings.Contains(body, want) || err != nil {
			t.Errorf("%s: no %q in %s; %v", path, want, body, err)
		}
	}
}

// TestPauseSQLite: a file has no pause.
func TestPauseSQLite(t *testing.T) {
	gw := run(t, parse(t, `
listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: file}
upstreams:
  file: {endpoints: ["sqlite:{path}"]}
`, "{path}", t.TempDir()+"/db.sqlite"))
	if err := gw.PauseUpstream("file", time.Hour); err == nil || !strings.Contains(err.Error(), "SQLite") {
		t.Error(err)
	}
	if err := gw.ResumeUpstream("file"); !errors.Is(err, gateway.ErrNotPaused) {
		t.Error(err)
	}
}
