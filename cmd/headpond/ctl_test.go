package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
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
		if code, stdout, stderr := execute(command, "-h"); code != exitOK || !strings.HasPrefix(stdout, "Usage: headpond "+command) || stderr != "" {
			t.Errorf("%s: exit %d\n%s%s", command, code, stdout, stderr)
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
