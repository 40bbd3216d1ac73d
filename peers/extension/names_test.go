package extension_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/peers/extension"
)

// offers are the providers of a service that a gateway knows.
func (n *node) offers(service string) (ids []string) {
	for _, a := range n.Snapshot().Additions {
		rows, _ := a.Rows.([]extension.OfferStatus)
		for _, o := range rows {
			if o.Service == service {
				ids = append(ids, o.Peer)
			}
		}
	}
	return ids
}

// provider offers a service to near.
func provider(t *testing.T, hub *node, near, upstream string) *node {
	t.Helper()
	key, _ := keyOf(t)
	return run(t, key, hub.addrs(t), "services:\n  svc: {upstream: svc, allow: ["+near+"], groups: [\"model=a\"], capacity: 10}\nupstreams:\n  svc: "+upstream+"\n")
}

// TestServiceByName: requests go to whichever node offers the service, also while one of two is killed, and one becomes unhealthy.
func TestServiceByName(t *testing.T) {
	var sick atomic.Bool
	serve := func(name string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/health" && name == "two" && sick.Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			_, _ = io.WriteString(w, name)
		}))
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	hubKey, _ := keyOf(t)
	nearKey, nearID := keyOf(t)
	hub := run(t, hubKey, "", "")
	upstream := func(address string) string {
		return `{endpoints: ["` + address + `"], health: {http: /health, interval: 50ms, timeout: 1m, rise: 1, fall: 1}}`
	}
	one, two := provider(t, hub, nearID, upstream(serve("one"))), provider(t, hub, nearID, upstream(serve("two")))
	near := run(t, nearKey, hub.addrs(t), `admin: 127.0.0.1:0
listeners: [{name: web, protocol: http, listen: "127.0.0.1:0", upstream: svc}]
upstreams: {svc: {endpoints: ["p2p:svc"], health: {http: /, interval: 50ms, timeout: 1m}}}
`)
	conntest.Eventually(t, "both are found", func() bool { return len(near.offers("svc")) == 2 })
	ask := func() string {
		t.Helper()
		resp, err := http.Get("http://" + near.Addr("web") + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%d %s %v", resp.StatusCode, text, err)
		}
		return string(text)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	ask()
	var rows []extension.OfferStatus
	if err := json.Unmarshal([]byte(get(t, near.Addr("admin"), "/api/v1/peer_services")), &rows); err != nil || len(rows) != 2 || rows[0].Capacity != 10 || rows[0].Groups[0] != "model=a" {
		t.Errorf("%+v, %v", rows, err)
	}
	one.Close()
	conntest.Eventually(t, "one is forgotten", func() bool {
		if got := ask(); got != "one" && got != "two" {
			t.Fatal(got)
		}
		return fmt.Sprint(near.offers("svc")) == fmt.Sprint([]string{two.id})
	})
	if got := ask(); got != "two" {
		t.Error(got)
	}
	sick.Store(true)
	conntest.Eventually(t, "the other is sick, and not offered", func() bool { return len(near.offers("svc")) == 0 })
	sick.Store(false)
	conntest.Eventually(t, "it is well", func() bool { return len(near.offers("svc")) == 1 })
	ask()
}

// TestCommands: list, ping and connect.
func TestCommands(t *testing.T) {
	key, id := keyOf(t)
	hubKey, _ := keyOf(t)
	hub := run(t, hubKey, "", "admin: 127.0.0.1:0\n")
	provided := provider(t, hub, id, `{endpoints: ["`+conntest.Serve(t, conntest.Echo)+`"]}`)
	conntest.Eventually(t, "it is found", func() bool { return len(hub.offers("svc")) == 1 })
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer("{key}", key, "{bootstrap}", hub.addrs(t)).Replace(nodeText)), 0o600); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) (int, string, string) {
		var out, err bytes.Buffer
		code := cli.Run(&out, &err, append([]string{"peers"}, args...))
		return code, out.String(), err.String()
	}
	code, out, stderr := command("list", "-admin", hub.Addr("admin"))
	for _, want := range []string{"NODE " + hub.id, provided.id + "  direct", "svc      " + provided.id} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d %s\n%s lacks %q", code, stderr, out, want)
		}
	}
	address := hub.self(t).Addresses[0]
	if code, out, stderr := command("ping", file, address, "-count", "2"); code != 0 || !strings.Contains(out, "connected by /ip4/127.0.0.1/") || !strings.Contains(out, "\n2: ") {
		t.Errorf("%d %s %s", code, out, stderr)
	}
	for want, args := range map[string][]string{
		`did you mean "list"?`:     {"lsit"},
		"ping has 1 arguments":     {"ping", file},
		"the peer's ID is missing": {"ping", file, "/ip4/127.0.0.1/tcp/1"},
		"not connected":            {"ping", file, "/ip4/127.0.0.1/tcp/1/p2p/" + id, "-timeout", "5s"},
		"no node offers":           {"connect", file, "unknown", "-timeout", "1s"},
		"no gateway answers":       {"list", "-admin", conntest.FreeAddress(t)},
		"cannot be in the name":    {"connect", file, "a b"},
		"is no peer ID":            {"connect", file, "x/svc"},
		"has no section \"peers\"": {"list", "-admin", gatewayWithoutPeers(t)},
	} {
		if code, _, stderr := command(args...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s, want %q", args, code, stderr, want)
		}
	}
	for _, service := range []string{"svc", provided.id + "/svc"} {
		cmd := exec.Command(os.Args[0], "peers", "connect", file, service)
		cmd.Env = append(os.Environ(), runVariable+"=1")
		cmd.Stdin = strings.NewReader("there and back")
		text, err := cmd.Output()
		if err != nil || string(text) != "there and back" {
			t.Errorf("%s: %q, %v", service, text, err)
		}
	}
}

func gatewayWithoutPeers(t *testing.T) string {
	t.Helper()
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, "admin: 127.0.0.1:0\nlisteners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: a}]\nupstreams: {a: {endpoints: [\"127.0.0.1:1\"]}}"))
	return gw.Addr("admin")
}

// TestProviders: connections to a service by name go to the nodes that an upstream, or a listener with paths, trusts, and a reload changes which.
func TestProviders(t *testing.T) {
	hubKey, _ := keyOf(t)
	nearKey, nearID := keyOf(t)
	hub := run(t, hubKey, "", "")
	serve := func(name string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, name) }))
		t.Cleanup(server.Close)
		return `{endpoints: ["` + server.Listener.Addr().String() + `"]}`
	}
	one, two := provider(t, hub, nearID, serve("one")), provider(t, hub, nearID, serve("two"))
	near := run(t, nearKey, hub.addrs(t), `
listeners:
  - {name: web, protocol: http, listen: "127.0.0.1:0", upstream: svc}
  - {name: api, protocol: peers, listen: "127.0.0.1:0", peers: {providers: "{trusted}"}}
upstreams: {svc: {endpoints: ["p2p:svc"], providers: "{trusted}"}}
`, "{trusted}", one.id)
	conntest.Eventually(t, "both are found", func() bool { return len(near.offers("svc")) == 2 })
	all := func(want string) {
		t.Helper()
		for range 10 {
			if got := get(t, near.Addr("web"), "/"); got != want {
				t.Errorf("%s, want %s", got, want)
			}
			if got := get(t, near.Addr("api"), "/v1/service/svc/"); got != want {
				t.Errorf("by its path: %s, want %s", got, want)
			}
		}
	}
	all("one")
	if err := near.Reload(near.parse(t, one.id, two.id)); err != nil {
		t.Fatal(err)
	}
	all("two")
}
