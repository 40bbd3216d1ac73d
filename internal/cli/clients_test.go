package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/headpond/headpond/gateway/admin"
)

// TestClientsFitATerminal: rows fit, whatever names clients have, and IDs are complete for kill.
func TestClientsFitATerminal(t *testing.T) {
	minutesAgo := time.Now().Add(-3 * time.Minute)
	all := []admin.Session{
		{ID: "a1", Listener: "db", Protocol: "postgres", Client: "10.0.0.1:5", State: admin.StateInTransaction, StateSeconds: 180, User: "app",
			Database: "shop", Application: strings.Repeat("x", 60) + "\x1b[2J", Endpoint: strings.Repeat("server.", 9) + "example:5432", ServerPID: 77,
			HeldSince: &minutesAgo, HeldSeconds: 180, Statement: "select\n 1"},
		{ID: "b2.5", Listener: strings.Repeat("web", 20), Protocol: "http", Client: "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535", State: "waiting",
			Method: "GET", Host: "a", Path: "/p", Draining: true},
	}
	killed := []string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := any(admin.Sessions{Total: 2, Matched: 2, Sessions: all})
		switch id, isKill := strings.CutPrefix(r.URL.Path, "/api/v1/sessions/"); {
		case isKill && (r.Method != http.MethodDelete || r.Header.Get(admin.ReloadHeader) == ""):
			w.WriteHeader(http.StatusForbidden)
		case isKill && id == "gone":
			w.WriteHeader(http.StatusNotFound)
			answer = map[string]any{"error": "there is none"}
		case isKill:
			killed = append(killed, id)
			answer = map[string]any{"applied": true}
		case r.URL.Query().Get("state") == "waiting":
			answer = admin.Sessions{Total: 2, Matched: 1, Sessions: all[1:]}
		case r.URL.RawQuery != "":
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]any{"error": "no such thing"}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer s.Close()
	code, stdout, stderr := execute("ctl", "clients", "-admin", s.URL)
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != exitOK || stderr != "" || len(lines) != 4 || !strings.HasPrefix(lines[1], "a1 ") || lines[2] != "  select 1" || !strings.HasPrefix(lines[3], "b2.5") {
		t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > maxColumns || strings.Contains(line, "\x1b") {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	if code, stdout, _ := execute("ctl", "clients", "-waiting", "-admin", s.URL); code != exitOK || strings.Contains(stdout, "\na1") || !strings.Contains(stdout, "\nb2.5") ||
		!strings.HasSuffix(stdout, "1 shown of 1 that match, 2 in all\n") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	if code, stdout, _ := execute("ctl", "clients", "-waiting=false", "-admin", s.URL); code != exitOK || !strings.Contains(stdout, "\na1") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	if code, _, stderr := execute("ctl", "clients", "-state", "asleep", "-admin", s.URL); code != exitProblem || !strings.Contains(stderr, "no such thing") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	code, stdout, stderr = execute("ctl", "kill", "a1", "gone", "b2.5", "-admin", s.URL)
	if code != exitProblem || stdout != "killed a1\nkilled b2.5\n" || !strings.Contains(stderr, "no such session: gone") || len(killed) != 2 {
		t.Errorf("exit %d, killed %q\n%s%s", code, killed, stdout, stderr)
	}
	for _, args := range [][]string{{"kill"}, {"status", "x"}, {"status", "-user", "a"}, {"sessions"}, {}} {
		if code, stdout, stderr := execute(append([]string{"ctl"}, args...)...); code != exitUsage || stdout != "" || stderr == "" {
			t.Errorf("%q: exit %d\n%s%s", args, code, stdout, stderr)
		}
	}
}
