package gateway_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/internal/conntest"
)

const logText = `
admin: "127.0.0.1:0"
drain_timeout: 10s
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: web, http: {access_log: {path: "{log}"}}}
  - {name: two, protocol: http, listen: "127.0.0.1:0", upstream: web, http: {access_log: {path: "{log}", format: "{listener} {path}"}, routes: [{path: /quiet, access_log: false}]}}
upstreams:
  web: {endpoints: ["{web}"]}
`

// linesOf reads the lines of a file, none if there is no file.
func linesOf(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Split(string(b), "\n")[:strings.Count(string(b), "\n")]
}

// waitLines waits until a file has so many lines.
func waitLines(t *testing.T, path string, n int) []string {
	t.Helper()
	conntest.Eventually(t, "the lines of "+path, func() bool { return len(linesOf(t, path)) >= n })
	lines := linesOf(t, path)
	if len(lines) != n {
		t.Errorf("%d lines, want %d: %q", len(lines), n, lines)
	}
	return lines
}

// TestAccessLogFiles: two listeners share a file, which a reload opens again. A reload that cannot is refused, and the old file is
// written to. The end writes what is left.
func TestAccessLogFiles(t *testing.T) {
	dir := t.TempDir()
	path, old := filepath.Join(dir, "x.log"), filepath.Join(dir, "x.log.1")
	pairs := []string{"{log}", path, "{web}", webServer(t, "hi")}
	gw := run(t, parse(t, logText, pairs...))
	ask := func(listener, target string) {
		t.Helper()
		if status, _, err := get(client(t), "http://"+gw.Addr(listener)+target); status != 200 || err != nil {
			t.Fatal(status, err)
		}
	}
	ask("web", "/1")
	ask("two", "/2")
	ask("two", "/quiet")
	lines := waitLines(t, path, 2)
	var f map[string]any
	for _, line := range lines {
		if line != "two /2" && (json.Unmarshal([]byte(line), &f) != nil || f["path"] != "/1" || f["listener"] != "web") {
			t.Errorf("the line %q", line)
		}
	}
	if err := os.Rename(path, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := gw.Reload(parse(t, logText, pairs...)); err == nil || !strings.Contains(err.Error(), "x.log cannot be opened to write a log: is a directory") {
		t.Errorf("a reload with a file that cannot be opened: %v", err)
	}
	if problems := gateway.Check(parse(t, logText, pairs...)); len(problems) != 2 || !strings.Contains(problems[0].Message, "is a directory") {
		t.Errorf("%v", problems)
	}
	ask("two", "/3")
	waitLines(t, old, 3)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := gw.Reload(parse(t, logText, pairs...)); err != nil {
		t.Fatal(err)
	}
	ask("two", "/4")
	waitLines(t, path, 1)
	ask("two", "/5")
	gw.Stop()
	if err := <-gw.Result; err != nil {
		t.Error(err)
	}
	if lines := linesOf(t, path); len(lines) != 2 || lines[1] != "two /5" {
		t.Errorf("at the end: %q", lines)
	}
	waitLines(t, old, 3)
}

// TestAccessLogCounts: the counts of a path continue when a reload has removed it and another one adds it, and are
// among the metrics.
func TestAccessLogCounts(t *testing.T) {
	dir := t.TempDir()
	path, web := filepath.Join(dir, "x.log"), webServer(t, "hi")
	with := parse(t, logText, "{log}", path, "{web}", web)
	gw := run(t, with)
	for i := 1; i <= 3; i++ {
		if status, _, err := get(client(t), "http://"+gw.Addr("two")+"/"); status != 200 || err != nil {
			t.Fatal(status, err)
		}
		waitLines(t, path, i)
		if err := gw.Reload(parse(t, logText, `, http: {access_log: {path: "{log}"}}`, "", `access_log: {path: "{log}", format: "{listener} {path}"}, `, "", "{web}", web)); err != nil {
			t.Fatal(err)
		}
		if err := gw.Reload(with); err != nil {
			t.Fatal(err)
		}
	}
	conntest.Eventually(t, "the metric", func() bool {
		resp, err := http.Get("http://" + gw.Addr("admin") + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		return err == nil && strings.Contains(string(text), `headpond_access_log_lines_total{path="`+path+`"} 3`)
	})
}
