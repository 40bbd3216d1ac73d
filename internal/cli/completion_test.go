package cli

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestCompletionCandidates(t *testing.T) {
	for line, want := range map[string]string{
		"ser":                   "serve",
		"ctl he":                "health",
		"ctl -admin x:1 st":     "status",
		"ctl -admin=x:1 st":     "status",
		"ctl -json st":          "status",
		"ctl endpoint dr":       "drain",
		"ctl -ad":               "-admin",
		"check ":                filesWanted,
		"check -effective ":     filesWanted,
		"kube -ca ":             filesWanted,
		"kube -servers ":        "",
		"ctl status ":           "",
		"check a.yaml ":         "",
		"frobnicate ":           "",
		"completion z":          "zsh",
		"help che":              "check",
		"bench ":                "",
		"ctl -admin ":           "",
		"completion candidates": "",
	} {
		_, stdout, _ := execute(append([]string{"completion", "candidates"}, strings.Split(line, " ")...)...)
		word, _, _ := strings.Cut(strings.TrimSuffix(stdout, "\n"), "\t")
		if word != want || strings.Count(stdout, "\n") > 1 {
			t.Errorf("%q: got %q, want %q", line, stdout, want)
		}
	}
	if code, _, stderr := execute("completion", "csh"); code != exitUsage || !strings.Contains(stderr, "bash, zsh, fish") {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

// TestManualHasEveryCommandAndFlag compares the manual page with help.
func TestManualHasEveryCommandAndFlag(t *testing.T) {
	code, manual, _ := execute("manpage")
	if code != exitOK {
		t.Fatalf("exit %d", code)
	}
	for _, c := range commands {
		if !strings.Contains(manual, "\n.SS "+c.name+"\n") {
			t.Errorf("no section %s", c.name)
		}
		for _, line := range flagLines(flagsOf(c)) {
			name, _, _ := strings.Cut(line, "\t")
			if !strings.Contains(manual, "\n.B "+roff(name)+" ") && !strings.Contains(manual, "\n.B "+roff(name)+"\n") {
				t.Errorf("%s: no flag %s", c.name, name)
			}
		}
	}
	if code, help, _ := execute("help", "ctl"); code != exitOK || !strings.Contains(help, "health  ") {
		t.Errorf("exit %d\n%s", code, help)
	}
	for line := range strings.Lines(manual) {
		if macro, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); strings.HasPrefix(macro, ".") &&
			!slices.Contains([]string{".TH", ".SH", ".SS", ".B", ".I", ".RI", ".BR", ".IR", ".PP", ".TP", ".nf", ".fi"}, macro) {
			t.Errorf("text has become a macro: %q", line)
		}
	}
}

func TestHealth(t *testing.T) {
	answer, status := "ready\n", http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(answer))
	}))
	if code, stdout, stderr := execute("ctl", "health", "-admin", s.URL); code != exitOK || stdout != answer || stderr != "" {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
	answer, status = "draining\nlistener \"db\": no socket\n", http.StatusServiceUnavailable
	if code, _, stderr := execute("ctl", "health", "-admin", s.URL); code != exitProblem || stderr != "headpond: not ready: draining; listener \"db\": no socket\n" {
		t.Errorf("exit %d, %q", code, stderr)
	}
	status = http.StatusTeapot
	if code, _, stderr := execute("ctl", "health", "-admin", s.URL); code != exitProblem || !strings.Contains(stderr, "is it a gateway's admin page?") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	s.Close()
	if code, _, stderr := execute("ctl", "health", "-admin", s.URL); code != exitProblem || !strings.Contains(stderr, "no gateway answers") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}
