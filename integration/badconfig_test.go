package integration

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// serveFails runs `headpond serve` with an unusable configuration and returns its output.
func serveFails(t *testing.T, config string) string {
	t.Helper()
	file := filepath.Join(sharedDir(t), "headpond.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := run(t, patience, built(t, plainBinary), "serve", file)
	if code <= 0 {
		t.Errorf("exit code %d, want an error\n%s", code, out)
	}
	if strings.Contains(out, "goroutine ") {
		t.Errorf("a stack trace is no message:\n%s", out)
	}
	return out
}

func TestPortInUse(t *testing.T) {
	l := conntest.Listen(t)
	defer l.Close()
	out := serveFails(t, "admin: "+address(t)+"\n"+tcpConfig(l.Addr().String(), "127.0.0.1:1", ""))
	if !containsAll(out, []string{"raw", l.Addr().String(), "in use"}) {
		t.Errorf("the message does not name the listener, the address and the reason:\n%s", out)
	}
}

func TestCheckPrintsEveryProblem(t *testing.T) {
	file := filepath.Join(sharedDir(t), "headpond.yaml")
	config := `listeners:
  - name: db
    protocol: postgres
    listen: 127.0.0.1:99999
    upstream: gp
upstreams:
  pg:
    endpoints: [127.0.0.1:5432]
    pool: {max_sise: 20}
    postgres: {user: app, password: "file:/nonexistent/secret"}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := run(t, patience, built(t, plainBinary), "check", file)
	if code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	for _, want := range [][]string{
		{file + ":4:", "99999"}, {file + ":5:", "gp", "did you mean"}, {file + ":9:", "max_sise", "max_size"},
		{file + ":10:", "/nonexistent/secret"},
	} {
		found := false
		for line := range strings.Lines(out) {
			found = found || containsAll(line, want)
		}
		if !found {
			t.Errorf("no line with %q in:\n%s", want, out)
		}
	}
	if out := serveFails(t, config); !strings.Contains(out, "/nonexistent/secret") {
		t.Errorf("serve says nothing of the unreadable secret:\n%s", out)
	}
}

func TestCheckAcceptsAGoodFile(t *testing.T) {
	file := filepath.Join(sharedDir(t), "headpond.yaml")
	if err := os.WriteFile(file, []byte(tcpConfig("127.0.0.1:7000", "127.0.0.1:7001", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, patience, built(t, plainBinary), "check", file); code != 0 {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

// TestSecretsStayOutOfTheLog looks for passwords in the log after failures of clients and servers.
func TestSecretsStayOutOfTheLog(t *testing.T) {
	server := pgtest.Start(t, pgtest.WithAuth(pgtest.SCRAM))
	db := newDatabase(t, server, "quiet")
	listen := address(t)
	config := strings.Replace(db.pgConfig(t, listen, "transaction", "max_size: 2"), "password: "+db.password, "password: hunter2-wrong", 1)
	g := startGateway(t, config, verbose)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := query(db.dsn(listen))(ctx); err == nil {
		t.Fatal("the server took a wrong password")
	}
	g.awaitLog("password authentication failed")
	for _, path := range []string{"/", "/metrics", "/api/v1/pools", "/api/v1/status"} {
		if _, body := g.get(path); strings.Contains(body, "hunter2") || strings.Contains(body, db.password) {
			t.Errorf("a password is on %s", path)
		}
	}
	if text := g.out.String(); strings.Contains(text, "hunter2") || strings.Contains(text, db.password) {
		t.Error("a password is in the log")
	}
}

func TestGarbageOnTheAdminPort(t *testing.T) {
	backend := startHTTP(t)
	g := startGateway(t, httpConfig(address(t), "max_size: 1", backend.addr()))
	before := g.footprint()
	for range repeat {
		c := dial(t, g.admin)
		_, _ = io.WriteString(c, "\x00\x01\xff not http\r\n\r\n")
		_ = c.CloseWrite()
		answer, _ := io.ReadAll(io.LimitReader(c, 4096))
		_ = c.Close()
		if len(answer) > 0 && !strings.Contains(string(answer), " 400 ") {
			t.Fatalf("answer %q", answer)
		}
	}
	g.awaitFootprint(before)
	if code, _ := g.get("/healthz"); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
}
