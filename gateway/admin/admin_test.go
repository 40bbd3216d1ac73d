package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const hostile = `</script><img src=x onerror=alert(1)>"'` + "\xff"

// snapshot has one of everything, hostile text wherever a configuration or a backend could put it, and a repeated endpoint.
func snapshot() admin.Snapshot {
	stats := pool.Stats{Name: "pg", MaxSize: 20, Idle: 3, InUse: 4, Opening: 1, Waiting: 2, Opened: 9, Acquired: 100, Reused: 90, LastOpenError: errors.New(hostile)}
	stats.AcquireSeconds.Counts[0] = 99
	stats.AcquireSeconds.Counts[pool.HistogramBuckets-1] = 1
	endpoint := upstream.EndpointStatus{Address: "127.0.0.1:5432", Healthy: true, Pool: stats}
	bad := upstream.EndpointStatus{Address: hostile, Ejected: true, EjectedUntil: time.Unix(1e9, 0), LastError: hostile, Pool: stats}
	bad.Pool.MaxSize = 4
	return admin.Snapshot{
		Version: "1.2.3", Engine: "goroutine", EngineReason: "io_uring is forbidden", ConfigFile: hostile, Started: time.Now().Add(-time.Minute),
		Listeners: []listener.Stats{
			{Name: "db", Protocol: "postgres", Address: "127.0.0.1:6432", Active: 5, MaxConns: 5, Queued: 1, Accepted: 7, Errors: map[string]uint64{"auth_failed": 2}},
			{Name: hostile, Protocol: "tcp"},
		},
		Upstreams: []admin.Upstream{
			{Protocol: "postgres", Reuses: true, Status: upstream.Status{Name: "pg", Balance: "p2c", Target: upstream.TargetStandby, Endpoints: []upstream.EndpointStatus{endpoint, endpoint, bad}}},
			{Protocol: "tcp", Status: upstream.Status{Name: hostile, FailOpen: true}},
		},
		Additions:    []admin.Addition{ponds.Of([]pond{{Name: hostile, Frogs: 2, Water: 3 << 20}, {Name: "dry"}})},
		Certificates: map[string]time.Time{"db": time.Unix(1e9, 0)},
		Log:          admin.LogState{TooSlow: 1, DiskFull: 2, Failed: 3, Error: "no space left on device"},
		Retiring: []admin.Retiring{
			{Kind: admin.RetiringListener, Name: "db", Protocol: "postgres", Active: 2, Since: time.Unix(1e9, 0)},
			{Kind: admin.RetiringListener, Name: "db", Protocol: "postgres", Active: 3, Since: time.Unix(2e9, 0)},
			{Kind: admin.RetiringUpstream, Name: hostile, Protocol: "tcp"},
		},
	}
}

func newHandler(t *testing.T, cfg admin.Config) http.Handler {
	t.Helper()
	if cfg.Snapshot == nil {
		cfg.Snapshot = snapshot
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	h, err := admin.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Host = "127.0.0.1:9090"
	h.ServeHTTP(w, r)
	return w
}

func TestPoolsShowsWhatDesignPromises(t *testing.T) {
	w := get(newHandler(t, admin.Config{}), "/api/v1/pools")
	var body struct{ Pools []map[string]any }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || len(body.Pools) != 3 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	p := body.Pools[0]
	for key, want := range map[string]any{
		"name": "pg", "endpoint": "127.0.0.1:5432", "idle": 3.0, "in_use": 4.0, "waiting": 2.0, "max_size": 20.0, "opened": 9.0, "reused": 90.0, "reuse_ratio": 0.9, "reuses": true,
	} {
		if p[key] != want {
			t.Errorf("%s = %v, want %v", key, p[key], want)
		}
	}
	if q, ok := p["acquire_seconds"].(map[string]any); !ok || q["p50"] != 953e-9 {
		t.Errorf("acquire_seconds = %v", p["acquire_seconds"])
	}
	if body.Pools[1]["endpoint"] != "127.0.0.1:5432#2" {
		t.Errorf("the repeated endpoint is called %v", body.Pools[1]["endpoint"])
	}
}

func TestStatusHasNoNullLists(t *testing.T) {
	h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{} }})
	var s admin.Status
	w := get(h, "/api/v1/status")
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Listeners == nil || s.Upstreams == nil || s.NotReady == nil || s.Tables == nil || s.Retiring == nil || !s.Ready {
		t.Errorf("status = %s", w.Body)
	}
}

func TestStatusTellsWhyThatEngine(t *testing.T) {
	var s admin.Status
	if err := json.Unmarshal(get(newHandler(t, admin.Config{}), "/api/v1/status").Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Engine != "goroutine" || s.EngineReason != "io_uring is forbidden" {
		t.Errorf("engine %q, because %q", s.Engine, s.EngineReason)
	}
	if page := get(newHandler(t, admin.Config{}), "/").Body.String(); !strings.Contains(page, "engine_reason") {
		t.Error("the page does not show the reason")
	}
}

func TestReadyz(t *testing.T) {
	for name, c := range map[string]struct {
		s    admin.Snapshot
		code int
		body string
	}{
		"ready":     {admin.Snapshot{}, 200, "ready\n"},
		"draining":  {admin.Snapshot{Draining: true}, 503, "draining\n"},
		"not ready": {admin.Snapshot{NotReady: []string{"listener x failed"}}, 503, "listener x failed\n"},
		"fail open": {admin.Snapshot{Upstreams: []admin.Upstream{{Status: upstream.Status{Name: "pg", FailOpen: true}}}}, 200,
			"ready\nupstream \"pg\": every endpoint is out, all of them are tried\n"},
	} {
		h := newHandler(t, admin.Config{Snapshot: func() admin.Snapshot { return c.s }})
		if w := get(h, "/readyz"); w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%s: %d %q", name, w.Code, w.Body)
		}
		if w := get(h, "/healthz"); w.Code != 200 {
			t.Errorf("%s: healthz = %d", name, w.Code)
		}
	}
}

// TestLivez: /livez gives the gateway's threads some seconds to answer, and otherwise answers with the reason.
func TestLivez(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := false
		h := newHandler(t, admin.Config{Alive: func(ctx context.Context) error {
			if !stuck {
				return nil
			}
			<-ctx.Done()
			return fmt.Errorf("a loop does not answer: %w", ctx.Err())
		}})
		for _, path := range []string{"/livez", "/healthz"} {
			stuck = false
			if w := get(h, path); w.Code != 200 || w.Body.String() != "ok\n" {
				t.Errorf("%s: %d %q", path, w.Code, w.Body)
			}
			stuck = true
			if w := get(h, path); w.Code != 503 || !strings.Contains(w.Body.String(), "a loop does not answer") {
				t.Errorf("%s: %d %q", path, w.Code, w.Body)
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	w := get(newHandler(t, admin.Config{}), "/metrics")
	if w.Code != 200 {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	for _, line := range []string{
		`headpond_pool_idle{endpoint="127.0.0.1:5432",protocol="postgres",upstream="pg"} 3`,
		`headpond_pool_in_use{endpoint="127.0.0.1:5432#2",protocol="postgres",upstream="pg"} 4`,
		`headpond_pool_acquire_seconds_bucket{endpoint="127.0.0.1:5432",protocol="postgres",upstream="pg",le="9.5367431640625e-07"} 99`,
		`headpond_pool_acquire_seconds_count{endpoint="127.0.0.1:5432",protocol="postgres",upstream="pg"} 100`,
		`headpond_listener_errors_total{listener="db",protocol="postgres",reason="auth_failed"} 2`,
		`headpond_listener_errors_total{listener="db",protocol="postgres",reason="internal"} 0`,
		`headpond_upstream_fail_open{protocol="postgres",upstream="pg"} 0`,
		`headpond_pool_closed_total{endpoint="127.0.0.1:5432",protocol="postgres",reason="idle",upstream="pg"} 0`,
		`headpond_retiring_active{kind="listener",name="db"} 5`,
		"go_goroutines ",
	} {
		if !strings.Contains(w.Body.String(), line) {
			t.Errorf("no line %s", line)
		}
	}
	problems, err := promlint.New(strings.NewReader(w.Body.String())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "headpond_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// TestScraperLeaves: one that reads only a part of the metrics, such as `curl | head`, is not worth a line in the log for each other one.
func TestScraperLeaves(t *testing.T) {
	var log bytes.Buffer
	h := newHandler(t, admin.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	h.ServeHTTP(left{httptest.NewRecorder()}, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if log.Len() > 0 {
		t.Errorf("the log has\n%s", &log)
	}
}

// left is the response to a client that has left.
type left struct{ http.ResponseWriter }

func (left) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestHostOfAnotherNameIsRefused(t *testing.T) {
	local, open := newHandler(t, admin.Config{LocalOnly: true}), newHandler(t, admin.Config{})
	for host, ok := range map[string]bool{
		"127.0.0.1:9090": true, "127.0.0.1": true, "localhost:9090": true, "LOCALHOST": true, "[::1]:9090": true, "127.8.8.8:1": true,
		"evil.example:9090": false, "evil.example": false, "127.0.0.1.evil.example": false, "10.0.0.1:9090": false, "": false, "localhost.evil.example:9090": false,
	} {
		for path, h := range map[string]http.Handler{"/": local, "/api/v1/status": local, "/metrics": local} {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = host
			h.ServeHTTP(w, r)
			if want := map[bool]int{true: 200, false: http.StatusMisdirectedRequest}[ok]; w.Code != want {
				t.Errorf("host %q, %s: %d, want %d", host, path, w.Code, want)
			}
		}
	}
	w := httptest.NewRecorder()
	open.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	if w.Code != 200 {
		t.Errorf("an address open to others refuses host example.com: %d", w.Code)
	}
}

func TestReload(t *testing.T) {
	var calls int
	result := errors.New("c.yaml:1:1: unknown key")
	h := newHandler(t, admin.Config{Reload: func(context.Context) error { calls++; return result }})
	post := func(remote, header string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/api/v1/reload", nil)
		r.RemoteAddr = remote
		if header != "" {
			r.Header.Set(admin.ReloadHeader, header)
		}
		h.ServeHTTP(w, r)
		return w
	}
	if w := post("10.0.0.1:1234", "1"); w.Code != 403 {
		t.Errorf("from another machine: %d", w.Code)
	}
	if w := post("127.0.0.1:1234", ""); w.Code != 403 {
		t.Errorf("without the header: %d", w.Code)
	}
	if calls != 0 {
		t.Fatal("reloaded all the same")
	}
	if w := post("127.0.0.1:1234", "1"); w.Code != 422 || !strings.Contains(w.Body.String(), "unknown key") {
		t.Errorf("refused file: %d %s", w.Code, w.Body)
	}
	result = nil
	if w := post("@", "1"); w.Code != 200 || !strings.Contains(w.Body.String(), `"applied": true`) {
		t.Errorf("over a unix socket: %d %s", w.Code, w.Body)
	}
	if w := get(h, "/api/v1/reload"); w.Code != 405 {
		t.Errorf("GET: %d", w.Code)
	}
}

func TestNothingElseIsServed(t *testing.T) {
	h := newHandler(t, admin.Config{})
	for _, path := range []string{"/debug/pprof/", "/index.html", "/api/v1/reload", "/api"} {
		if w := get(h, path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/api/v1/pools", nil))
	if w.Code != 405 {
		t.Errorf("DELETE: %d", w.Code)
	}
	if _, err := admin.New(admin.Config{}); !errors.Is(err, admin.ErrConfig) {
		t.Errorf("New without Snapshot: %v", err)
	}
}
