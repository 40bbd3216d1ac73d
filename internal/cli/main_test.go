package cli

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/headpond/headpond/gateway/demo"
	"github.com/headpond/headpond/internal/freeport"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// execute runs a command line and returns its exit code and output.
func execute(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(env{&out, &err}, args)
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	for line, want := range map[string]struct {
		code   int
		output string
	}{
		"":                        {2, "Usage: headpond COMMAND"},
		"help":                    {0, "serve FILE"},
		"--help":                  {0, "serve FILE"},
		"version":                 {0, "headpond " + version},
		"chekc x":                 {2, `unknown command "chekc"; did you mean "check"?`},
		"frobnicate":              {2, `unknown command "frobnicate"`},
		"serve":                   {2, "want one configuration file"},
		"serve a b":               {2, "want one configuration file"},
		"serve -h":                {0, "SIGHUP reads FILE again"},
		"check -x":                {2, "flag provided but not defined"},
		"demo x":                  {2, "takes no arguments"},
		"demo -peers":             {2, "has no peers; the released one has"},
		"ctl stauts":              {2, `unknown action "stauts"; did you mean "status"?`},
		"ctl stats -user x":       {2, `did you mean "status"?`},
		"ctl frobnicate":          {2, "want status|health|clients|kill"},
		"help ctl":                {0, "\n  pause UPSTREAM  "},
		"demo -port-offset 99999": {1, "port out of range"},
		"serve nowhere.yaml":      {1, "nowhere.yaml: cannot read"},
	} {
		code, stdout, stderr := execute(strings.Fields(line)...)
		if code != want.code || !strings.Contains(stdout+stderr, want.output) {
			t.Errorf("%q: exit %d, output:\n%s%s\nwant exit %d and %q", line, code, stdout, stderr, want.code, want.output)
		}
	}
}

func TestCheckPrintsEveryProblem(t *testing.T) {
	dir := t.TempDir()
	users := filepath.Join(dir, "users.txt")
	if err := os.WriteFile(users, []byte("alice secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "c.yaml")
	text := `listeners:
  - {name: db, protocol: postgres, listen: "127.0.0.1:6432", upstream: pg, postgres: {users_file: users.txt}}
upstreams:
  pg: {endpoints: ["127.0.0.1:5432"], postgres: {user: app}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute("check", file)
	if code != 1 || !strings.Contains(stderr, file+":2:") || !strings.Contains(stderr, "user list line 1") || strings.Contains(stderr, "secret\n") {
		t.Errorf("bad user list: exit %d\n%s", code, stderr)
	}
	text = strings.Replace(strings.Replace(text, "upstream: pg", "upstream: gp", 1), "user: app", "usr: app", 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(users, []byte("alice secret\n\"bob\" \"b\"\n\"carol\" secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = execute("check", file)
	for _, want := range []string{`did you mean "pg"?`, `did you mean "user"?`, "user list line 1", "user list line 3"} {
		if code != 1 || strings.Count(stderr, want) != 1 {
			t.Errorf("four problems: exit %d, no %q in\n%s", code, want, stderr)
		}
	}
}

// TestCheckCountsInWords: one listener is not "1 listeners".
func TestCheckCountsInWords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := `listeners: [{name: raw, protocol: tcp, listen: "127.0.0.1:1", upstream: a}]
upstreams: {a: {endpoints: ["127.0.0.1:2"]}}
tunnels: {far: {connect: "127.0.0.1:3"}, near: {connect: "127.0.0.1:4"}}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := execute("check", file); code != 0 || !strings.HasSuffix(stdout, ": ok, 1 listener, 1 upstream, 2 tunnels\n") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

// TestFatalErrorsAreInTheFormatOfTheLog: readers of JSON lines get JSON whenever the start fails, if the file selects
// JSON and can be read that far.
func TestFatalErrorsAreInTheFormatOfTheLog(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	good := "listeners: [{name: raw, protocol: tcp, listen: \"" + l.Addr().String() + "\", upstream: u}]\nupstreams: {u: {endpoints: [\"127.0.0.1:1\"]}}\n"
	for name, c := range map[string]struct {
		text, want string
		json       bool
	}{
		"port in use":         {good + "log: {format: json}\n", `listener \"raw\"`, true},
		"port in use, text":   {good, `listener "raw"`, false},
		"problems":            {strings.Replace(good, "upstream: u", "upstream: w", 1) + "more: 1\nlog: {format: json}\n", "unknown upstream", true},
		"problems, text":      {strings.Replace(good, "upstream: u", "upstream: w", 1), "unknown upstream", false},
		"bad level":           {good + "log: {format: json, level: loud}\n", "loud", true},
		"bad format":          {good + "log: {format: jsn}\n", "jsn", false},
		"no YAML":             {good + "log: {format: json\n", "not valid YAML", false},
		"the wrong structure": {"log: {format: json}\nlisteners: 7\n", "listeners", true},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "c.yaml")
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := execute("serve", file)
			if code != 1 || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
			}
			var line struct{ Level, Msg, Time string }
			isJSON := json.Unmarshal([]byte(stderr), &line) == nil && line.Level == "ERROR" && line.Msg != "" && line.Time != ""
			if isJSON != c.json || c.json && strings.Count(stderr, "\n") != 1 {
				t.Errorf("one JSON line: want %v, got\n%s", c.json, stderr)
			}
		})
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "listeners: [{name: raw, protocol: tcp, listen: \"" + l.Addr().String() + "\", upstream: u}]\nupstreams: {u: {endpoints: [\"127.0.0.1:1\"]}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := execute("serve", file)
	if code != 1 || !strings.Contains(stderr, `listener "raw"`) || !strings.Contains(stderr, l.Addr().String()) {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}

// demoOffset returns a port offset at which all of the demo's ports are free.
func demoOffset(t *testing.T) int {
	t.Helper()
	port, err := freeport.Get(demo.TCPPort-demo.PostgresPort, demo.HTTPPort-demo.PostgresPort, demo.AdminPort-demo.PostgresPort)
	if err != nil {
		t.Fatal(err)
	}
	return port - demo.PostgresPort
}

func TestDemoPortInUse(t *testing.T) {
	offset := demoOffset(t)
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(demo.PostgresPort+offset)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	code, _, stderr := execute("demo", "-port-offset", strconv.Itoa(offset))
	if code != 1 || !strings.Contains(stderr, `listener "db"`) || !strings.Contains(stderr, "-port-offset") {
		t.Errorf("exit %d\n%s", code, stderr)
	}
}

func TestDemoPrintsItsConfiguration(t *testing.T) {
	code, stdout, stderr := execute("demo", "-print-config")
	if code != 0 || !strings.Contains(stdout, "listen: 127.0.0.1:6432") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestCtlWithoutGateway(t *testing.T) {
	port, err := freeport.Get()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	for _, action := range []string{"status", "reload"} {
		code, _, stderr := execute("ctl", "-admin", address, action)
		if code != 1 || !strings.Contains(stderr, "no gateway answers at "+address) {
			t.Errorf("%s: exit %d\n%s", action, code, stderr)
		}
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutputIsWrittenOrTheCommandFails: a script that redirects the output to a full disk is told.
func TestOutputIsWrittenOrTheCommandFails(t *testing.T) {
	for _, line := range []string{"help", "version", "demo -print-config", "check -effective ../../examples/minimal.yaml", "ctl -h"} {
		var stderr bytes.Buffer
		if code := run(env{full{}, &stderr}, strings.Fields(line)); code != exitProblem || !strings.Contains(stderr.String(), "cannot be written: no space left") {
			t.Errorf("%s: exit %d\n%s", line, code, &stderr)
		}
	}
}
