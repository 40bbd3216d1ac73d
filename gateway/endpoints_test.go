package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/upstream"
)

// post sends a change to the admin page and returns the answer.
func post(t *testing.T, gw *gatewaytest.Gateway, body string) (code int, answer string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://"+gw.Addr("admin")+"/api/v1/endpoints", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(admin.ReloadHeader, "1")
	resp, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// overridden are the operators' changes of endpoints, by host.
func overridden(s upstream.Status) string {
	var list []string
	for _, e := range s.Endpoints {
		host, _, _ := net.SplitHostPort(e.Address)
		if e.Override != "" {
			host += "=" + e.Override
		}
		list = append(list, host)
	}
	return strings.Join(list, " ")
}

// TestChangeEndpointsUnderLoad drains, adds, weighs and removes endpoints while a file lists them and requests are
// served, none of which may fail.
func TestChangeEndpointsUnderLoad(t *testing.T) {
	all := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	port, path := hosts(t, all...), filepath.Join(t.TempDir(), "set.yaml")
	write := func(addrs ...string) {
		t.Helper()
		text := "endpoints:\n"
		for _, addr := range addrs {
			text += fmt.Sprintf("- \"%s:%s\"\n", addr, port)
		}
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(all[0], all[1])
	text := "admin: 127.0.0.1:0\n" + discoverText
	source := fmt.Sprintf("{discover: {file: {path: %q, interval: 10ms}}}", path)
	cfg := parse(t, text, "{{source}}", source)
	gw := run(t, cfg)
	is := func(want string) {
		t.Helper()
		status(t, gw, want, func(s upstream.Status) bool { return overridden(s) == want })
	}
	is("127.0.0.1 127.0.0.2")
	stop := make(chan struct{})
	wait := load(t, gw.Gateway, stop)
	change := func(code int, action, host, more, want string) {
		t.Helper()
		got, answer := post(t, gw, fmt.Sprintf(`{"upstream": "web", "action": %q, "address": "%s:%s"%s}`, action, host, port, more))
		if got != code || !strings.Contains(answer, want) {
			t.Errorf("%s %s: %d %s, want %d %s", action, host, got, answer, code, want)
		}
	}
	change(200, "drain", all[0], `, "keep": true`, `"applied": true`)
	is("127.0.0.2 127.0.0.1=drained")
	write(all[1], all[0], all[2])
	is("127.0.0.2 127.0.0.3 127.0.0.1=drained") // the source continues, and does not undo it
	change(200, "remove", all[2], "", `"applied": true`)
	is("127.0.0.2 127.0.0.1=drained 127.0.0.3=removed")
	change(422, "remove", all[1], "", "last endpoint")
	change(200, "weight", all[1], `, "weight": 4`, `"applied": true`)
	is("127.0.0.2=weight 127.0.0.1=drained 127.0.0.3=removed")
	for range 10 {
		if _, body, err := get(client(t), "http://"+gw.Addr("web")+"/"); body != all[1] || err != nil {
			t.Errorf("%q %v, want %s", body, err, all[1])
		}
	}
	if err := gw.Reload(cfg); err != nil { // the same configuration
		t.Fatal(err)
	}
	is("127.0.0.2 127.0.0.3 127.0.0.1=drained")
	source = strings.Replace(source, "{disc", "{connect_timeout: 4s, disc", 1) // needs another upstream
	if err := gw.Reload(parse(t, text, "{{source}}", source)); err != nil {
		t.Fatal(err)
	}
	is("127.0.0.2 127.0.0.3 127.0.0.1=drained")
	change(200, "add", all[0], "", `"applied": true`)
	is("127.0.0.2 127.0.0.1 127.0.0.3")
	close(stop)
	if wait() == 0 {
		t.Error("nothing was served")
	}
}

// TestEndpointChangesThatAreRefused: the errors list the existing names.
func TestEndpointChangesThatAreRefused(t *testing.T) {
	echo := echoServer(t)
	gw := run(t, parse(t, tcpText, "{listen}", "127.0.0.1:0", "{echo}", echo))
	host, port, _ := net.SplitHostPort(echo)
	near := net.JoinHostPort(host, port[:len(port)-1])
	for _, c := range []struct {
		body, want string
		code       int
	}{
		{`{"upstream": "ecko", "action": "drain", "address": "` + echo + `"}`, `unknown upstream \"ecko\"; did you mean \"echo\"?`, 404},
		{`{"upstream": "echo", "action": "drain", "address": "` + near + `"}`, `unknown endpoint \"` + near + `\"; did you mean \"` + echo + `\"?`, 404},
		{`{"upstream": "echo", "action": "drain", "address": "` + echo + `"}`, "last endpoint", 422},
		{`{"upstream": "echo", "action": "add", "address": "` + echo + `"}`, "in use already", 422},
		{`{"upstream": "echo", "action": "add", "address": ":99"}`, "the host is missing", 422},
		{`{"upstream": "echo", "action": "add", "address": "sqlite:/x"}`, "want host:port", 422},
		{`{"upstream": "echo", "action": "add", "address": "` + gw.Addr("raw") + `"}`, `it is listener \"raw\" itself`, 422},
		{`{"upstream": "echo", "action": "fry", "address": "` + echo + `"}`, `action \"fry\" is unknown`, 422},
		{`{"upstream": "echo", "colour": "red"}`, "unknown field", 400},
		{`{} {}`, "more than one", 400},
		{`drain`, "no change", 400},
	} {
		if code, answer := post(t, gw, c.body); code != c.code || !strings.Contains(answer, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.body, code, answer, c.code, c.want)
		}
	}
	second := conntest.Serve(t, conntest.Echo)
	if err := gw.ChangeEndpoint("echo", upstream.Change{Action: upstream.AddEndpoint, Endpoint: upstream.Endpoint{Address: second}}); err != nil {
		t.Fatal(err)
	}
	if err := gw.ChangeEndpoint("echo", upstream.Change{Action: upstream.RemoveEndpoint, Endpoint: upstream.Endpoint{Address: echo}}); err != nil {
		t.Fatal(err)
	}
	if err := exchange(gw.Addr("raw"), "there and back"); err != nil {
		t.Error(err)
	}
	gw.Close()
	if err := gw.ChangeEndpoint("echo", upstream.Change{Action: upstream.AddEndpoint, Endpoint: upstream.Endpoint{Address: echo}}); err == nil {
		t.Error("a gateway that is closed takes changes")
	}
}
