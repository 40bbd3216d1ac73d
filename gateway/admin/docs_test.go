package admin_test

import (
	"bufio"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
)

// ofHistogram is the end of names of classic histograms' series.
var ofHistogram = regexp.MustCompile(`_(bucket|sum|count)$`)

// exported returns the metrics that a gateway with all protocols shows, without the prefix. Metrics that need another
// gateway or a reload come from snapshot.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(backend.Close)
	cfg, problems := config.Parse("headpond.yaml", []byte(`
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: raw}
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web, http: {access_log: {path: /dev/null}, routes: [{path: /, llm: true, bearer_auth: ../config/testdata/apikeys}]}}
  - {name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: db}
  - {name: peers, protocol: tunnel, listen: "127.0.0.1:0"}
  - {name: datagrams, protocol: udp, listen: "127.0.0.1:0", upstream: datagrams}
upstreams:
  raw: {endpoints: ["127.0.0.1:1"]}
  datagrams: {endpoints: ["127.0.0.1:1"]}
  web: {endpoints: ["`+backend.Listener.Addr().String()+`"]}
  db: {endpoints: ["127.0.0.1:1"], pool: {acquire_timeout: 100ms}, postgres: {user: app, password: x, target: primary}}
`))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	ready, ended := make(chan struct{}), make(chan error, 1)
	gw, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler), Started: func() { close(ready) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- gw.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-ready
	ask, err := http.NewRequest(http.MethodPost, "http://"+gw.Addr("web"), strings.NewReader(`{"model": "m"}`))
	if err != nil {
		t.Fatal(err)
	}
	ask.Header = http.Header{"Content-Type": {"application/json"}, "X-Api-Key": {"right"}}
	answer, err := http.DefaultClient.Do(ask)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	names := map[string]bool{"old_process_sessions": true} // exported only while the old process of an upgrade drains
	lines := bufio.NewScanner(get(newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		s, sample := gw.Snapshot(), snapshot()
		s.Retiring, s.Certificates["web"], s.RevocationLists["web"] = sample.Retiring, time.Unix(1e9, 0), time.Unix(1e9, 0)
		return s
	}}), "/metrics").Body)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "# TYPE headpond_"); ok {
			name, _, _ = strings.Cut(name, " ")
			names[name] = true
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

// TestMetricsAreDocumented compares what a scrape shows with the tables of metrics in docs, both ways.
func TestMetricsAreDocumented(t *testing.T) {
	documented := map[string]string{} // name, without headpond_, to file
	for _, file := range []string{"metrics.md", "tunnel.md"} {
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, table, found := strings.Cut(string(text), "\n| metric | |\n|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		if !found {
			t.Fatalf("%s has no table of metrics", file)
		}
		for line := range strings.Lines(table) {
			first := strings.Split(line, "|")[1]
			for _, name := range regexp.MustCompile("`([a-z_]+)").FindAllStringSubmatch(first, -1) {
				documented[strings.TrimPrefix(name[1], "headpond_")] = file
			}
		}
	}
	known := exported(t)
	for name := range known {
		if documented[name] == "" {
			t.Errorf("headpond_%s stands in no table of docs/metrics.md or docs/tunnel.md", name)
		}
		delete(documented, name)
	}
	for name, file := range documented {
		t.Errorf("docs/%s has %s, which is not exported", file, name)
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("documents: %v, %v", files, err)
	}
	for _, file := range files { // alerts and the like
		if name := filepath.Base(file); name == "peers.md" || name == "acme.md" || name == "tracing.md" {
			continue // their modules have their own tests
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`headpond_([a-z_]+[a-z])`).FindAllStringSubmatch(string(text), -1) {
			if !known[ofHistogram.ReplaceAllString(name[1], "")] {
				t.Errorf("%s names headpond_%s, which is not exported", file, name[1])
			}
		}
	}
}
