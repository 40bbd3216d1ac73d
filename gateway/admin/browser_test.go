//go:build browser

package admin_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/upstream"
)

// TestDashboardInChromium renders the dashboard of a gateway in trouble: the page shows the trouble, foreign names
// appear as text, and the console stays empty. `make test-report` runs it, and `make test` where there is a Chromium.
func TestDashboardInChromium(t *testing.T) {
	dom := render(t, newHandler(t, admin.Config{Sessions: manySessions}), "203.0.113.9:5")
	for _, want := range []string{
		">ready</p>", "goroutine (io_uring is forbidden)", "every endpoint is out, all of them are tried", "every connection is in use (max_size 4), sessions that wait: 2", "listener db has no place left (max_conns 5), connections that wait: 1", "pond dry is dry since ", ">no rain</p>", `<section id="pools-section" aria-labelledby="pools-title">`, `<table id="sessions-table" class="card sessions">`, ">Ponds</h2>", ">3.00 MiB</dd>", "the log cannot be written, lines missing so far: 6: no space left on device", "listener db: its certificate has expired on ", ">every endpoint is out</span>",
		">127.0.0.1:5432</h4>", ">healthy</span>", ">unhealthy</span>", "auth_failed 2", `class="quiet">the last connection to be opened failed: `, `class="tag good">full</span>`, `class="tag bad">without water</span>`,
		"&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;",
		`>app@shop &lt;img src=x onerror=alert(1)&gt;</div>`, `class="tag warn">idle in transaction</span>`, ">127.0.0.1:5432 pid 4711</div>", ">pg, for 1 min ",
		">none of pg</div>", ">GET a.example/&lt;img src=x&gt;</div>", ">select &lt;b&gt;</div>", ">drains, for ", "20 of 25: the longest holders",
	} {
		if !strings.Contains(dom, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(dom, "<img") || t.Failed() {
		t.Errorf("the page is\n%s", dom)
	}
}

// TestDashboardShowsRatesInChromium: rates, settings of endpoints that are not the default, and the source of the
// endpoints.
func TestDashboardShowsRatesInChromium(t *testing.T) {
	var asked atomic.Uint64
	moving := func() admin.Snapshot {
		s, n := snapshot(), asked.Add(1)
		s.Listeners[0].Accepted, s.Listeners[0].BytesIn, s.Listeners[0].BytesOut = 5*n, 300*n, (8<<20)*n
		pg := &s.Upstreams[0].Status
		pg.Source = upstream.SourceStatus{Name: "dns pg.internal:5432 " + hostile, Updated: time.Now(), FailingSince: time.Now().Add(-90 * time.Second), LastError: "no answer " + hostile}
		pg.Endpoints[0].Weight, pg.Endpoints[0].Priority, pg.Endpoints[0].Zone, pg.Endpoints[0].Role = 3, 1, "eu-1", upstream.Primary
		pg.Endpoints[0].Pool.Acquired = 70 * n
		s.Upstreams[1].Source = upstream.SourceStatus{Name: "file endpoints.yaml", Updated: time.Now()}
		return s
	}
	dom := render(t, newHandler(t, admin.Config{Snapshot: moving}), "MiB/s")
	for _, want := range []string{
		`>in now</dt><dd>[1-9][0-9.]* B/s</dd>`, `>out now</dt><dd>[1-9][0-9.]* MiB/s</dd>`, `>new sessions</dt><dd>[1-9][0-9.]*/s</dd>`, `>errors now</dt><dd>0/s</dd>`,
		`>acquired</dt><dd>[1-9][0-9.]*/s</dd>`, `>primary, weight 3, priority 1, zone eu-1</p>`, `>found by dns pg.internal:5432 &lt;/script.* fails since 1 min .* no answer &lt;/script`,
		`>found by file endpoints.yaml</p>`,
	} {
		if !regexp.MustCompile(want).MatchString(dom) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(dom, "<img") || t.Failed() {
		t.Errorf("the page is\n%s", dom)
	}
}

// TestDashboardBoundsTablesInChromium: of a table with many rows the page has the first ones.
func TestDashboardBoundsTablesInChromium(t *testing.T) {
	dom := render(t, newHandler(t, admin.Config{Snapshot: func() admin.Snapshot {
		s := snapshot()
		many := make([]pond, 1000)
		for i := range many {
			many[i] = pond{Name: fmt.Sprintf("pond %d.", i), Water: 1, Frogs: 1}
		}
		s.Additions = []admin.Addition{ponds.Of(many)}
		return s
	}}), "pond 59.")
	if !strings.Contains(dom, "the first 60 of 1000; headpond ctl status lists all") || strings.Contains(dom, "pond 60.") {
		t.Errorf("the page is\n%.20000s", dom)
	}
}

// manySessions are sessions with texts chosen by clients.
func manySessions() []listener.Info {
	const image, long = "<img src=x onerror=alert(1)>", "/a-path-without-an-end"
	now := time.Now()
	all := []listener.Info{
		{ID: "1a", Listener: "db", Client: "203.0.113.9:5", State: listener.StateInTransaction, Since: now, User: "app", Database: "shop", Application: image,
			Statement: "select <b>", Upstream: "pg", Endpoint: "127.0.0.1:5432", ServerPID: 4711, Held: now.Add(-90 * time.Second)},
		{ID: "1b.3", Listener: "web", State: listener.StateActive, Since: now, Method: "GET", Host: "a.example", Path: "/<img src=x>", Upstream: "api",
			Endpoint: "[2001:db8::1234:5678:9abc:def0]:8080", Held: now},
		{ID: "1c", Listener: "db", State: listener.StateWaiting, Since: now.Add(-time.Hour), User: "job", Database: strings.Repeat(long, 100), Upstream: "pg"},
	}
	for i := range 22 {
		all = append(all, listener.Info{ID: fmt.Sprint(i), Listener: "web", Client: "[2001:db8::1234:5678:9abc:def0]:65535", State: listener.StateIdle, Since: now, Draining: true})
	}
	return all
}

// render returns the dashboard as Chromium renders it, once it contains text.
func render(t *testing.T, h http.Handler, text string, args ...string) (dom string) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	for tries := 0; !strings.Contains(dom, text); tries++ { // on a busy machine Chromium may write the page before it has the answers
		if tries == 10 {
			t.Fatalf("not rendered:\n%.2000s", dom)
		}
		dom = browse(t, append(args, "--virtual-time-budget=3000", "--dump-dom", s.URL+"/")...)
	}
	return dom
}

// measure lists the texts of a page that lie outside of it or over another.
const measure = `<script>setInterval(() => {
  if (!document.querySelector("#sessions tr")) return;
  const wrong = [], texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const range = document.createRange();
    range.selectNodeContents(walk.currentNode);
    for (const box of range.getClientRects()) {
      if (box.width > 0) texts.push([walk.currentNode, box]);
    }
  }
  for (const [node, a] of texts) {
    if (a.left < 0 || a.right > innerWidth) wrong.push("outside: " + node.data);
    for (const [other, b] of texts) {
      if (node !== other && a.left + 1 < b.right && b.left + 1 < a.right && a.top + 4 < b.bottom && b.top + 4 < a.bottom) wrong.push(node.data + " over " + other.data);
    }
  }
  document.body.dataset.measured = texts.length + " texts, wrong: " + wrong.length + " " + wrong.slice(0, 5).join("; ");
}, 100)</script>`

// routes are rows whose texts, and numbers, are as wide as those of peers.
var routes = admin.Report[string]{
	Key: "routes", Title: "Routes",
	Columns: []admin.Column[string]{
		admin.Text("to", func(s string) string { return s }), admin.Text("by", func(s string) string { return s }), admin.State("state", func(string) (admin.Level, string) { return admin.Warn, "not connected" }),
		admin.Count("exhausted", func(string) float64 { return 0 }), admin.Bytes("in", func(string) float64 { return 999 << 20 }), admin.Bytes("out", func(string) float64 { return 999 << 20 }),
		admin.Count("nodes", func(string) float64 { return 99_999 }), admin.Count("refused", func(string) float64 { return 99_999 }),
	},
}

// TestDashboardWithoutPoolsInChromium: a gateway without upstreams and sessions has no headings for them.
func TestDashboardWithoutPoolsInChromium(t *testing.T) {
	dom := render(t, newHandler(t, admin.Config{Sessions: func() []listener.Info { return nil }, Snapshot: func() admin.Snapshot {
		s := snapshot()
		s.Upstreams = nil
		return s
	}}), ">none</p>")
	for _, want := range []string{`<section id="pools-section"[^>]* hidden=""`, `<section id="sessions-section" aria-labelledby="sessions-title">`, `<table id="sessions-table"[^>]* hidden=""`} {
		if !regexp.MustCompile(want).MatchString(dom) {
			t.Errorf("the page lacks %q:\n%s", want, dom)
		}
	}
}

// TestDashboardFitsInChromium: no text lies outside of a small or a large window, or over another.
func TestDashboardFitsInChromium(t *testing.T) {
	h := newHandler(t, admin.Config{Sessions: manySessions, Snapshot: func() admin.Snapshot {
		s := snapshot()
		s.Additions = append(s.Additions, routes.Of([]string{strings.Repeat("/ip4/127.0.0.1/udp/38547/quic-v1/p2p/12D3KooWPg2YLAjzHbAsKGGn41q7N6RDTQBeW8cqSLdexsUZxX3B", 3)}))
		return s
	}})
	measured := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			h.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, strings.Replace(get(h, "/").Body.String(), "</body>", measure+"</body>", 1)) // without the page's policy
	})
	for _, size := range []string{"500,900", "700,900", "1400,900"} {
		dom := render(t, measured, "data-measured=", "--window-size="+size)
		result := regexp.MustCompile(`data-measured="([^"]*)"`).FindStringSubmatch(dom)[1]
		if !strings.HasSuffix(result, " wrong: 0 ") {
			t.Errorf("%s: %s", size, result)
		}
	}
}

// browse runs Chromium, whose console must stay empty, and returns its output.
func browse(t *testing.T, args ...string) string {
	t.Helper()
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil && browser == "" {
			browser = path
		}
	}
	if browser == "" {
		t.Fatal("no Chromium: apt-get install chromium")
	}
	common := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr", "--user-data-dir=" + t.TempDir(), "--window-size=1400,900"}
	cmd := exec.Command(browser, append(common, args...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, log.String())
	}
	if strings.Contains(log.String(), "CONSOLE") {
		t.Errorf("%q: the console says\n%s", args, log.String())
	}
	return out.String()
}
