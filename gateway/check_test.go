package gateway_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
)

// TestCheckRefusesWhatNewRefuses, and creates and connects to nothing.
func TestCheckRefusesWhatNewRefuses(t *testing.T) {
	for name, c := range map[string]struct{ listener, users, want string }{
		"good":             {`protocol: http, http: {routes: [{path: /a, upstream: web}, {path: /b, upstream: web}]}`, "", ""},
		"good database":    {`protocol: postgres, upstream: pg, postgres: {users_file: users.txt}`, "\"a\" \"secret\"\n", ""},
		"good file":        {`protocol: postgres, upstream: lite`, "", ""},
		"same host":        {`protocol: http, http: {routes: [{host: a.example, upstream: web}, {host: A.example., upstream: web}]}`, "", `repeats host "A.example."`},
		"no users":         {`protocol: postgres, upstream: pg, postgres: {users_file: users.txt}`, "", "needs users"},
		"unusable secrets": {`protocol: postgres, upstream: pg, postgres: {users_file: users.txt, auth: scram-sha-256}`, "\"a\" \"md5" + strings.Repeat("0", 32) + "\"\n\"b\" \"md5" + strings.Repeat("1", 32) + "\"\n", `user "a" has an md5 secret`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "headpond.yaml")
			text := strings.NewReplacer("{listener}", c.listener).Replace(`listeners:
  - {name: it, listen: "127.0.0.1:0", {listener}}
upstreams:
  web: {endpoints: ["127.0.0.1:1"], health: {tcp: true}, pool: {min_idle: 3}}
  pg: {endpoints: ["127.0.0.1:1"], postgres: {user: app}, health: {postgres: true}, pool: {min_idle: 3}}
  lite: {endpoints: ["sqlite:app.db"]}
`)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "users.txt"), []byte(c.users), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, problems := config.Load(file)
			if cfg != nil {
				problems = gateway.Check(cfg)
			}
			problems = slices.DeleteFunc(problems, func(p config.Problem) bool { return p.Warning })
			if got := problems.String(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Count(got, "\n") != strings.Count(got, file+":2:") {
				t.Errorf("Check:\n%swant %q", got, c.want)
			}
			if _, err := os.Stat(filepath.Join(dir, "app.db")); err == nil {
				t.Error("the database was created")
			}
			if cfg == nil {
				return
			}
			g, err := gateway.New(cfg, gateway.Options{})
			if (err == nil) != (c.want == "") {
				t.Errorf("New: %v", err)
			}
			if err == nil {
				g.Close()
			}
		})
	}
}

// TestCheckLooksAtFilesAndTunnels: errors that New would refuse, and errors that only clients would see.
func TestCheckLooksAtFilesAndTunnels(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("no database\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const redacted = `tunnels: {far: {connect: "127.0.0.1:1", as: me, psk: "[redacted]"}}` // as check -effective shows it
	for text, want := range map[string]string{
		`upstreams: {lite: {endpoints: ["sqlite:app.db"]}}`:                "",
		`upstreams: {lite: {endpoints: ["sqlite:."]}}`:                     `:2:32: upstream "lite": sqlitepool: not a database path`,
		`upstreams: {lite: {endpoints: ["sqlite:notes.txt/app.db"]}}`:      "is not a directory",
		`upstreams: {lite: {endpoints: ["sqlite:nowhere/app.db"]}}`:        `:2:32: warning: upstream "lite": `,
		`upstreams: {lite: {endpoints: ["sqlite:notes.txt"]}}`:             "warning: ",
		redacted + "\nupstreams: {lite: {endpoints: [\"sqlite:app.db\"]}}": `:2:11: tunnel "far": `,
	} {
		file := filepath.Join(dir, "c.yaml")
		cfg, problems := config.Parse(file, []byte("listeners: [{name: db, protocol: postgres, listen: \"127.0.0.1:0\", upstream: lite}]\n"+text+"\n"))
		if cfg == nil {
			t.Fatal(problems)
		}
		problems = gateway.Check(cfg)
		if got := problems.String(); !strings.Contains(got, want) || (got == "") != (want == "") || strings.Count(got, "\n") > 1 {
			t.Errorf("%s\n%swant %q", text, got, want)
		}
		g, err := gateway.New(cfg, gateway.Options{Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			g.Close()
		}
		if (err == nil) != (problems.Err() == nil) {
			t.Errorf("%s\nNew: %v, and Check:\n%s", text, err, problems)
		}
	}
}
