package gateway_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
)

// TestErrorPagesAreReadAtReload: a changed file is shown after a reload, and a missing one refuses the reload.
func TestErrorPagesAreReadAtReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "down.html")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one {status}")
	const text = `
listeners:
  - name: web
    protocol: http
    listen: "127.0.0.1:0"
    upstream: web
    http: {error_pages: [{status: 5xx, file: "{file}"}]}
upstreams:
  web: {endpoints: ["127.0.0.1:1"]}
`
	gw := run(t, parse(t, text, "{file}", file))
	shows := func(want string) {
		t.Helper()
		if _, body, err := get(client(t), "http://"+gw.Addr("web")+"/"); body != want || err != nil {
			t.Errorf("%q %v, want %q", body, err, want)
		}
	}
	shows("one 502")
	write("two {status}")
	if err := gw.Reload(parse(t, text, "{file}", file)); err != nil {
		t.Fatal(err)
	}
	shows("two 502")
	cfg := parse(t, text, "{file}", file)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := gw.Reload(cfg); err == nil || !strings.Contains(err.Error(), "down.html") {
		t.Errorf("the file is missing: %v", err)
	}
	shows("two 502")
	if _, problems := config.Parse("x.yaml", []byte(strings.ReplaceAll(text, "{file}", file))); !strings.Contains(problems.String(), "down.html") {
		t.Errorf("check of a missing file: %s", problems)
	}
}
