package cli

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/gatewaytest"
)

func TestFlagsFollowArguments(t *testing.T) {
	if code, stdout, stderr := execute("check", "../../examples/minimal.yaml", "-effective"); code != exitOK || !strings.Contains(stdout, "drain_timeout: ") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr := execute("ctl", "status", "-admim", "x"); code != exitUsage || stdout != "" || !strings.Contains(stderr, "-admim") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestHelpIsNoError(t *testing.T) {
	for _, command := range []string{"serve", "check", "demo", "ctl"} {
		for _, args := range [][]string{{command, "-h"}, {"help", command}} {
			if code, stdout, stderr := execute(args...); code != exitOK || !strings.HasPrefix(stdout, "Usage: headpond "+command) || stderr != "" {
				t.Errorf("%s: exit %d\n%s%s", args, code, stdout, stderr)
			}
		}
	}
	if code, _, stderr := execute("help", "sreve"); code != exitUsage || !strings.Contains(stderr, `did you mean "serve"?`) {
		t.Errorf("help sreve: exit %d\n%s", code, stderr)
	}
}

// TestStatusSaysWhatIsWrong: status shows the errors, not only their counts, and no control sequences reach the
// terminal.
func TestStatusSaysWhatIsWrong(t *testing.T) {
	status := admin.Status{
		Version: "v1", Ready: true, Engine: "uring", Trouble: []string{"endpoint a:1 is failing: refused\x1b[2J", "more"}, Sizing: []string{"small"},
		Listeners: []admin.Listener{
			{Name: "db", Errors: map[string]uint64{"timeout": 2, "auth_failed": 1}, LastMinute: &admin.LastMinute{
				Unit: "transactions", PerSecond: 1234.56, Done: 1000, Failed: 12.5, Seconds: admin.Quantiles{P50: 0.000345267, P90: 0.0131, P99: 1.18921},
			}},
			{Name: "idle", LastMinute: &admin.LastMinute{Unit: "requests"}}, {Name: "raw"},
			{Name: "bad", LastMinute: &admin.LastMinute{Unit: "transactions", Done: 2, Failed: 3}}, {Name: "down", LastMinute: &admin.LastMinute{Unit: "transactions", Failed: 3}},
			{Name: "kube", Gone: 7, Moved: 12, MovesRefused: 1, Errors: map[string]uint64{"rebalanced": 40}},
		},
		Upstreams: []admin.UpstreamStatus{{Name: "pg", Waiting: 12, Endpoints: []admin.Endpoint{{Address: "a:1", State: "failing"}}}},
		Tables: []admin.Table{{
			Columns: []admin.Heading{{Title: "tunnel", Format: "text"}, {Title: "streams", Format: "count"}, {Title: "error", Detail: true}, {Title: "peers", Format: "text"}},
			Rows:    [][]admin.Cell{{{Text: "main"}, {Number: 12000}, {Text: "hidden"}, {Text: "branch\x1b[2J"}}},
		}},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status) }))
	defer s.Close()
	code, stdout, stderr := execute("ctl", "status", "-admin", s.URL+"/") // as copied from a browser
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	for _, want := range []string{
		"auth_failed=1,timeout=2\n",
		"\nLAST MINUTE  PER SECOND           FAILED  P50      P90     P99\n" +
			"db           1234.6 transactions  1.2 %   ≤ 350µs  ≤ 13ms  ≤ 1.2s\nidle         0.0 requests         -       -        -       -\n" +
			"bad          0.0 transactions     100 %   -        -       -\ndown         0.0 transactions     100 %   -        -       -\n\n",
		"GONE  ERRORS\n", "7     rebalanced=40\n", "\nSESSIONS MOVED  AFTER A FAILURE  REFUSED  REBALANCED\nkube            12               1        40\n\n",
		"a:1       failing", "\npg        none yet                                    12       \n", "\nTUNNEL  STREAMS  PEERS\nmain    12000    branch [2J\n", "\nTROUBLE\nendpoint a:1 is failing: refused [2J\nmore\n", "\nSIZING\nsmall\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
}

// TestStatusPrintsPairs has those that wait and the busiest first, and not all of thousands.
func TestStatusPrintsPairs(t *testing.T) {
	status := admin.Status{Version: "v1", Upstreams: []admin.UpstreamStatus{{Name: "one"}, {Name: "pg", MorePairs: 100, Pairs: []admin.Pair{
		{Name: "idle@shop", Idle: 2, MaxSize: 20}, {Name: "busy@shop\x1b[2J", InUse: 3, MaxSize: 20}, {Name: "full@shop", InUse: 2, MaxSize: 2, Waiting: 4},
	}}}}
	for range 30 {
		status.Upstreams[1].Pairs = append(status.Upstreams[1].Pairs, admin.Pair{Name: "unused@shop"})
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status) }))
	defer s.Close()
	code, stdout, stderr := execute("ctl", "status", "-admin", s.URL)
	want := "\nUPSTREAM  PAIR           IN USE  MAX  IDLE  WAITING\n" +
		"pg        full@shop      2       2    0     4\n" +
		"pg        busy@shop [2J  3       20   0     0\n" +
		"pg        idle@shop      0       20   2     0\n" +
		"pg        unused@shop    0       0    0     0\n"
	if code != exitOK || stderr != "" || !strings.Contains(stdout, want) || strings.Count(stdout, "unused@shop") != 17 || !strings.Contains(stdout, "pg        and 113 more") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestStatusPrintsRoles has the roles of an upstream with a target beside their health.
func TestStatusPrintsRoles(t *testing.T) {
	status := admin.Status{Version: "v1", Upstreams: []admin.UpstreamStatus{
		{Name: "any", Endpoints: []admin.Endpoint{{Address: "a:1", State: "healthy"}}},
		{Name: "pg", Endpoints: []admin.Endpoint{{Address: "a:1", State: "healthy", Role: "primary"}, {Address: "b:1", State: "ejected", Role: "unknown"}}},
	}}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status) }))
	defer s.Close()
	_, stdout, _ := execute("ctl", "status", "-admin", s.URL)
	want := "\nUPSTREAM  ENDPOINT  HEALTH                 IN USE  MAX  IDLE  WARM  WAITING  REUSE\n" +
		"any       a:1       healthy                0       0    0     0     0        -\n" +
		"pg        a:1       healthy, primary       0       0    0     0     0        -\n" +
		"pg        b:1       ejected, role unknown  0       0    0     0     0        -\n"
	if !strings.Contains(stdout, want) {
		t.Errorf("got\n%swant\n%s", stdout, want)
	}
}

// TestAdminAddressInEveryForm: every usual form works, and the Host sent is one that the page
// accepts.
func TestAdminAddressInEveryForm(t *testing.T) {
	page, err := admin.New(admin.Config{Snapshot: func() admin.Snapshot { return admin.Snapshot{Version: "v1"} }, LocalOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(page)
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	for _, address := range []string{port, ":" + port, "127.0.0.1:" + port, "localhost:" + port, "http://127.0.0.1:" + port + "/metrics"} {
		if code, stdout, stderr := execute("ctl", "status", "-admin", address); code != exitOK || !strings.HasPrefix(stdout, "headpond v1") {
			t.Errorf("%s: exit %d\n%s%s", address, code, stdout, stderr)
		}
	}
	for _, address := range []string{"", "localhost", "https://localhost:1", "a:b:1", "127.0.0.1:", "["} {
		if code, _, stderr := execute("ctl", "status", "-admin", address); code != exitProblem || !strings.Contains(stderr, "want host:port or unix:/path") {
			t.Errorf("%q: exit %d\n%s", address, code, stderr)
		}
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who are you?\nme", http.StatusTeapot) }))
	defer other.Close()
	for _, action := range []string{"status", "reload"} {
		if code, _, stderr := execute("ctl", action, "-admin", other.URL); code != exitProblem || !strings.Contains(stderr, `418 I'm a teapot ("who are you?"); is it a gateway's admin page?`) {
			t.Errorf("%s: exit %d\n%s", action, code, stderr)
		}
	}
}

// TestReloadIsNotReportedFalsely: success is reported only if a gateway has reloaded.
func TestReloadIsNotReportedFalsely(t *testing.T) {
	for answer, want := range map[string]string{
		"404 page not found":                     "takes no reloads",
		"200 welcome":                            "is it a gateway's admin page?",
		`422 {"applied": false, "error": "no!"}`: "the old configuration keeps running: no!",
		`200 {"applied": true, "error": ""}`:     "", // an older gateway, which does not say what it has changed
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(map[string]int{"404": 404, "200": 200, "422": 422}[answer[:3]])
			_, _ = io.WriteString(w, answer[4:])
		}))
		code, stdout, stderr := execute("ctl", "reload", "-admin", s.Listener.Addr().String())
		s.Close()
		if (code == exitOK) != (want == "") || !strings.Contains(stderr, want) || (stdout == "reloaded\n") != (want == "") {
			t.Errorf("%s: exit %d\n%s%s", answer, code, stdout, stderr)
		}
	}
}

// TestReloadAndClientsSayWhatIsWrong at a gateway that has a file: what a reload has changed, and which names do not exist.
func TestReloadAndClientsSayWhatIsWrong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "headpond.yaml")
	write := func(limit, more string) {
		text := strings.ReplaceAll(`
admin: 127.0.0.1:0
listeners:
  - {name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: echo, max_conns: {limit}}
upstreams:
  echo: {endpoints: ["127.0.0.1:1"]}
`, "{limit}", limit) + more
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("5", "")
	cfg, problems := config.Load(file)
	if cfg == nil {
		t.Fatal(problems)
	}
	gw := gatewaytest.Run(t, cfg)
	ctl := func(line string, code int, out, problem string) {
		t.Helper()
		got, stdout, stderr := execute(append([]string{"ctl", "-admin", gw.Addr("admin")}, strings.Fields(line)...)...)
		if got != code || !strings.HasPrefix(stdout, out) || stderr != problem {
			t.Errorf("%s: exit %d\n%s%s", line, got, stdout, stderr)
		}
	}
	ctl("reload", exitOK, "reloaded, changes: nothing\n", "")
	write("6", "")
	ctl("reload", exitOK, "reloaded, changes: listener raw changed\n", "")
	write("7", "  unused: {endpoints: [\"127.0.0.1:1\"]}\n")
	ctl("reload", exitOK, "reloaded, changes: upstream unused added, listener raw changed\n", "headpond: "+file+":7:3: warning: upstream \"unused\": no listener uses it\n")
	ctl("clients -listener raw -upstream echo", exitOK, "ID  LISTENER", "")
	ctl("clients -listener rwa", exitProblem, "", "headpond: unknown listener \"rwa\"; there are raw\n")
	ctl("clients -upstream ecko", exitProblem, "", "headpond: unknown upstream \"ecko\"; there are echo, unused\n")
	ctl("clients -held x", exitProblem, "", "headpond: parameter held: \"x\": want a duration such as 10s or 5m\n")
	ctl("clients -limit x", exitProblem, "", "headpond: parameter limit: \"x\": want a whole number\n")
}
