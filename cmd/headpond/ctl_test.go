package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/admin"
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

// TestStatusSaysWhatIsWrong: whoever asks at night wants the errors, not only the counts.
func TestStatusSaysWhatIsWrong(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	later := since.AddDate(1, 0, 0)
	status := admin.Status{
		Version: "v1", Ready: true, Engine: "uring", Reloads: admin.ReloadStatus{LastError: "c.yaml:3:1: no"},
		Listeners: []admin.Listener{{Name: "db", Active: 100, MaxConns: 100, Queued: 6, Errors: map[string]uint64{"timeout": 2, "auth_failed": 1}}, {Name: "web", Active: 100, MaxConns: 100, CertificateExpires: &since}, {Name: "more", CertificateExpires: &later}},
		Upstreams: []admin.UpstreamStatus{{Name: "pg", FailOpen: true, Endpoints: []admin.Endpoint{
			{Address: "a:1", Healthy: true, Failures: 2, LastError: "refused\x1b[2J"},
			{Address: "b:1", Healthy: true, LastError: "long ago", Pool: admin.Pool{InUse: 20, MaxSize: 20}},
			{Address: "d:1", Healthy: true, Pool: admin.Pool{InUse: 20, MaxSize: 20, Waiting: 7}},
			{Address: "c:1", LastError: "dead"},
		}}},
		Tunnels: []admin.TunnelStatus{{Name: "main", Side: "listen", Connected: []string{"branch"}}, {Name: "far", Side: "connect", LastError: "refused\x1b[2J", FailingSince: &since},
			{Name: "half", Side: "connect", Sessions: 1, LastError: "too many sessions", FailingSince: &since}, {Name: "new", Side: "connect"}},
		Started: since.Add(-time.Minute), UptimeSeconds: 120.5, Log: admin.LogStatus{DiskFull: 3, WriteFailed: 1, Error: "no space left"},
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(status) }))
	defer s.Close()
	code, stdout, stderr := execute("ctl", "status", "-admin", s.URL+"/") // as copied from a browser
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d\n%s", code, stderr)
	}
	for _, want := range []string{
		"auth_failed=1,timeout=2\n", "reload was refused, the old configuration keeps running: c.yaml:3:1: no\n", "every endpoint is out",
		"endpoint a:1 is failing: refused [2J\n", "endpoint c:1 is unhealthy: dead\n", "main    listen",
		"tunnel far is not connected since 2026-01-02T03:04:05Z (1m0s): refused [2J\n", "tunnel new is not connected\n",
		"tunnel half is not connected as it should be since 2026-01-02T03:04:05Z (1m0s): too many sessions\n",
		"listener web: its certificate has expired on 2026-01-02T03:04:05Z\n",
		"listener db has no place left (max_conns 100), connections that wait: 6\n",
		"upstream pg, endpoint d:1: every connection is in use (max_size 20), sessions that wait: 7\n",
		"the log cannot be written, lines missing so far: 4: no space left\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "long ago") || strings.Contains(stdout, "endpoint b:1") || strings.Contains(stdout, "listener more") || strings.Contains(stdout, "listener web has") {
		t.Errorf("an endpoint that works is in trouble:\n%s", stdout)
	}
}

// TestAdminAddressInEveryForm that people write; the host that is asked for is one the page takes.
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

// TestReloadIsNotReportedFalsely: only a gateway that has reloaded says so.
func TestReloadIsNotReportedFalsely(t *testing.T) {
	for answer, want := range map[string]string{
		"404 page not found":                     "takes no reloads",
		"200 welcome":                            "is it a gateway's admin page?",
		`422 {"applied": false, "error": "no!"}`: "the old configuration keeps running: no!",
		`200 {"applied": true, "error": ""}`:     "",
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
