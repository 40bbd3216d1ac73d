package cli

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
)

// TestTopPrintsText: without a terminal top prints a frame, of what the gateway answers to its queries.
func TestTopPrintsText(t *testing.T) {
	asked := map[string]bool{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked[r.URL.RequestURI()] = true
		answer := any(admin.Status{Version: "v1", Ready: true, Started: time.Now()})
		if r.URL.Path == "/api/v1/sessions" {
			answer = admin.Sessions{Total: 1, Matched: 1, Sessions: []admin.Session{{ID: "a1", User: "app\x1b[2J", State: "waiting"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer s.Close()
	code, stdout, stderr := execute("top", "-once", "-i", "200ms", "-view", "sessions", "-sort", "-wait", "-filter", "app", "-admin", s.URL)
	if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, "headpond v1") || !strings.Contains(stdout, "\na1 ") || !strings.Contains(stdout, `app\x1b[2J`) {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	for _, want := range []string{"/api/v1/status?histograms=true", "/api/v1/sessions?limit=100&sort=-wait&text=app"} {
		if !asked[want] {
			t.Errorf("%s was not asked: %v", want, asked)
		}
	}
	for line, want := range map[string]string{
		"-n 0": "want a number from 1", "-n 2x": "want a number from 1", "-i 1ms": "want a duration from 200ms", "-view x": "unknown view", "-sort size": "unknown order", "x": "takes no arguments",
	} {
		if code, _, stderr := execute(append([]string{"top", "-admin", s.URL}, strings.Fields(line)...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d\n%s", line, code, stderr)
		}
	}
	s.Close()
	if code, stdout, stderr := execute("top", "-once", "-admin", s.URL); code != exitProblem || stdout != "" || !strings.Contains(stderr, "no gateway answers at") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}
