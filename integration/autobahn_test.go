//go:build suites

package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

const (
	// autobahnSuite is the newest release that runs: it needs Python 2.7.
	autobahnSuite = "autobahntestsuite==0.8.2"
	// autobahnRun runs a mode of it.
	autobahnRun = "import sys\nfrom autobahntestsuite.wstest import run\nsys.argv[0] = 'wstest'\nrun()"
	// autobahnLimit is for the installation, which compiles, and for all cases.
	autobahnLimit = 2 * time.Hour
)

// autobahn runs programs of the test suite of Autobahn.
type autobahn struct{ python, packages string }

// installAutobahn installs the suite from PyPI. HEADPOND_PYTHON2 is a Python 2.7 with pip, if there is no python2.7.
func installAutobahn(t *testing.T) autobahn {
	t.Helper()
	python := os.Getenv("HEADPOND_PYTHON2")
	if python == "" {
		python = "python2.7"
	}
	packages := t.TempDir()
	out, code := run(t, autobahnLimit, python, "-m", "pip", "install", "--disable-pip-version-check", "--target", packages, autobahnSuite)
	if code != 0 {
		t.Fatalf("the suite needs Python 2.7 with pip (HEADPOND_PYTHON2): exit code %d\n%s", code, tail(out, 20))
	}
	if err := os.WriteFile(filepath.Join(packages, "zope", "__init__.py"), nil, 0o600); err != nil { // pip's directories know no namespaces
		t.Fatal(err)
	}
	return autobahn{python, packages}
}

func (a autobahn) start(t *testing.T, args ...string) *process {
	t.Helper()
	cmd := exec.Command(a.python, append([]string{"-c", autobahnRun}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+a.packages)
	return start(t, cmd)
}

// autobahnOutcome is what the suite says of a case: OK, NON-STRICT, INFORMATIONAL, FAILED and so on.
type autobahnOutcome struct {
	Behavior      string `json:"behavior"`
	BehaviorClose string `json:"behaviorClose"`
}

// strict is the outcome without what depends on how bytes arrive: whether a server answers a frame before it reads the wrong one behind it.
func (o autobahnOutcome) strict() autobahnOutcome {
	if o.Behavior == "NON-STRICT" {
		o.Behavior = "OK"
	}
	return o
}

// TestAutobahn: a server of WebSockets does in each case the same through the gateway as straight.
func TestAutobahn(t *testing.T) {
	a := installAutobahn(t)
	server, listen, dir := address(t), address(t), t.TempDir()
	a.start(t, "-m", "echoserver", "-w", "ws://"+server)
	startGateway(t, fmt.Sprintf(`listeners:
  - name: web
    protocol: http
    listen: "%s"
    http: {routes: [{path: /, upstream: echo, request_headers: {set: {Host: "%s"}}}]} # the server wants its own
upstreams:
  echo: {endpoints: ["%[2]s"]}
`, listen, server))
	eventually(t, "the server listens", func() error {
		c, err := net.Dial("tcp", server)
		if err != nil {
			return err
		}
		return c.Close()
	})
	spec, err := json.Marshal(map[string]any{
		"outdir": dir, "servers": []map[string]string{{"agent": "straight", "url": "ws://" + server}, {"agent": "gateway", "url": "ws://" + listen}},
		"cases": []string{"*"}, "exclude-cases": []string{"9.7.*", "9.8.*"}, "exclude-agent-cases": map[string]any{}, // these measure speed
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "spec.json")
	if err := os.WriteFile(file, spec, 0o600); err != nil {
		t.Fatal(err)
	}
	client := a.start(t, "-m", "fuzzingclient", "-s", file)
	if code := client.awaitEnd(t, autobahnLimit); code != 0 {
		t.Fatalf("exit code %d\n%s", code, tail(client.out.String(), 20))
	}
	var results map[string]map[string]autobahnOutcome
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(dir, "index.json"))), &results); err != nil {
		t.Fatal(err)
	}
	straight, through := results["straight"], results["gateway"]
	if len(straight) < 300 || len(through) != len(straight) {
		t.Errorf("%d cases straight, %d through the gateway", len(straight), len(through))
	}
	for name, want := range straight {
		if got := through[name]; got.strict() != want.strict() {
			t.Errorf("case %s: %+v, straight %+v", name, got, want)
		}
	}
}
