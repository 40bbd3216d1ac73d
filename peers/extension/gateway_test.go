package extension_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/internal/pgtest"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/peers/extension"
)

// node is a gateway that is a node.
type node struct {
	*gatewaytest.Gateway
	id   string
	text string
}

const nodeText = `
drain_timeout: 2m
peers: {keep_alive: 30s, key: "{key}", listen: [/ip4/127.0.0.1/udp/0/quic-v1, /ip4/127.0.0.1/tcp/0], bootstrap: [{bootstrap}]}
`

// run starts a gateway; of its text {key}, {bootstrap} and what pairs says are replaced. The key stays the same for each name.
func run(t *testing.T, key, bootstrap, text string, pairs ...string) *node {
	t.Helper()
	n := &node{text: strings.NewReplacer(append(pairs, "{key}", key, "{bootstrap}", bootstrap)...).Replace(nodeText + text)}
	n.Gateway = gatewaytest.Run(t, n.parse(t))
	made, err := peers.LoadKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if n.id, err = peers.IDOf(made); err != nil {
		t.Fatal(err)
	}
	return n
}

// parse reads the node's configuration with some text replaced.
func (n *node) parse(t *testing.T, pairs ...string) *config.Config {
	t.Helper()
	return gatewaytest.Parse(t, n.text, pairs...)
}

// keyOf makes an identity, and returns its file and ID.
func keyOf(t *testing.T) (file, id string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "node.key")
	key, _, err := peers.LoadOrCreateKey(file)
	if err != nil {
		t.Fatal(err)
	}
	if id, err = peers.IDOf(key); err != nil {
		t.Fatal(err)
	}
	return file, id
}

// TestListensNowhere: with an empty list the node listens nowhere, and is not where the default is.
func TestListensNowhere(t *testing.T) {
	key, _ := keyOf(t)
	cfg := gatewaytest.Parse(t, `peers: {key: "{key}", listen: []}`, "{key}", key)
	if text, err := cfg.YAML(); err != nil || !strings.Contains(string(text), "listen: []") {
		t.Errorf("%v\n%s", err, text)
	}
	n := &node{Gateway: gatewaytest.Run(t, cfg)}
	if all := n.self(t).Addresses; len(all) > 0 {
		t.Errorf("it listens at %q", all)
	}
}

// self is what the admin pages show of the gateway as a node.
func (n *node) self(t *testing.T) extension.NodeStatus {
	t.Helper()
	for _, a := range n.Snapshot().Additions {
		if rows, ok := a.Rows.([]extension.NodeStatus); ok && len(rows) == 1 {
			return rows[0]
		}
	}
	t.Fatal("the snapshot has no node")
	return extension.NodeStatus{}
}

// isNode reports whether the gateway has a node now.
func (n *node) isNode() bool {
	for _, a := range n.Snapshot().Additions {
		if rows, ok := a.Rows.([]extension.NodeStatus); ok && len(rows) == 1 {
			return true
		}
	}
	return false
}

// peer is what they show of another one.
func (n *node) peer(id string) extension.PeerStatus {
	for _, a := range n.Snapshot().Additions {
		rows, _ := a.Rows.([]extension.PeerStatus)
		for _, p := range rows {
			if p.ID == id {
				return p
			}
		}
	}
	return extension.PeerStatus{}
}

// addrs are the addresses of a node as a list of YAML.
func (n *node) addrs(t *testing.T) string {
	t.Helper()
	return `"` + strings.Join(n.self(t).Addresses, `", "`) + `"`
}

// pair starts two gateways: far offers one upstream, and near has it behind a listener. Connecting may take long on a machine with much to do.
func pair(t *testing.T, farUpstream, nearListener, nearUpstream string, pairs ...string) (far, near *node) {
	t.Helper()
	patient := strings.NewReplacer("{endpoints:", "{connect_timeout: 1m, endpoints:")
	farUpstream, nearUpstream = patient.Replace(farUpstream), patient.Replace(nearUpstream)
	nearKey, nearID := keyOf(t)
	farKey, farID := keyOf(t)
	far = run(t, farKey, "", "services:\n  svc: {upstream: svc, allow: ["+nearID+"]}\nupstreams:\n  svc: "+farUpstream+"\n", pairs...)
	near = run(t, nearKey, far.addrs(t), "admin: 127.0.0.1:0\nlisteners:\n  - "+nearListener+"\nupstreams:\n  svc: "+nearUpstream+"\n", "{far}", farID)
	return far, near
}

const rawListener = `{name: raw, protocol: tcp, listen: "127.0.0.1:0", upstream: svc}`

// TestTCP through two nodes: large and small, with half-close, and what the admin pages show of it.
func TestTCP(t *testing.T) {
	far, near := pair(t, `{endpoints: ["{echo}"], health: {tcp: true}}`, rawListener,
		`{endpoints: ["p2p:{far}/svc"], health: {tcp: true, interval: 50ms}}`, "{echo}", conntest.Serve(t, conntest.Echo))
	for range 5 {
		if err := conntest.RoundTrip(near.Addr("raw"), strings.Repeat("through two nodes ", 20_000)); err != nil {
			t.Fatal(err)
		}
	}
	c := conntest.Dial(t, near.Addr("raw"))
	conntest.Exchange(t, c, "open")
	if p := near.peer(far.id); !p.Connected || p.Relayed || !p.Bootstrap || p.Path == "" || p.Opened < 6 || p.Calls < 1 || p.LastError != "" {
		t.Errorf("%+v", p)
	}
	if p, s := far.peer(near.id), far.self(t); p.Callers < 1 || s.Accepted < 6 || s.Refused != 0 || len(s.Callers) != 1 {
		t.Errorf("%+v %+v", p, s)
	}
	id := ""
	conntest.Eventually(t, "the session has counted the bytes", func() bool { // which may be after the client has them
		for _, s := range far.Sessions() {
			if s.User == near.id && s.Upstream == "svc" && s.BytesIn == 4 && s.BytesOut == 4 {
				id = s.ID
			}
		}
		return id != ""
	})
	if !far.Kill(id) {
		t.Error("it is not killed")
	}
	conntest.WantGone(t, c)
	page := get(t, near.Addr("admin"), "/metrics")
	for _, want := range []string{`headpond_node_peers 1`, `headpond_node_connections [1-8]`} { // two are made if both QUIC and TCP answer late
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(page) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	var status struct {
		Peers []extension.PeerStatus `json:"peers"`
	}
	if err := json.Unmarshal([]byte(get(t, near.Addr("admin"), "/api/v1/status")), &status); err != nil || len(status.Peers) != 1 || status.Peers[0].ID != far.id {
		t.Errorf("%+v, %v", status, err)
	}
}

func get(t *testing.T, address, path string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + address + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestHTTP through two nodes: connections are reused, bodies go both ways, events arrive as they are sent, and a client that leaves ends the
// request there.
func TestHTTP(t *testing.T) {
	next, gone := make(chan struct{}), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /size", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			w.(http.Flusher).Flush()
			<-next
		}
		<-r.Context().Done()
		close(gone)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	_, near := pair(t, `{endpoints: ["{server}"]}`, `{name: web, protocol: http, listen: "127.0.0.1:0", upstream: svc}`, `{endpoints: ["p2p:{far}/svc"]}`,
		"{server}", server.Listener.Addr().String())
	const requests = 200
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	base := "http://" + near.Addr("web")
	for i := range requests {
		size := i * 1000
		resp, err := client.Post(base+"/size", "text/plain", strings.NewReader(strings.Repeat("x", size)))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := fmt.Sprint(size, nil); err != nil || string(text) != want {
			t.Fatalf("%s, %v, want %s", text, err, want)
		}
	}
	if p := near.Snapshot(); p.Additions == nil {
		t.Error("no snapshot")
	}
	if opened := near.peer(strings.TrimSpace(farOf(near))).Opened; opened > requests/20 {
		t.Errorf("%d connections for %d requests", opened, requests)
	}
	resp, err := client.Get(base + "/events")
	if err != nil {
		t.Fatal(err)
	}
	events := bufio.NewReader(resp.Body)
	for i := range 3 { // the next is not sent before this one has arrived
		if line, err := events.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		_, _ = events.ReadString('\n')
		next <- struct{}{}
	}
	_ = resp.Body.Close()
	client.CloseIdleConnections()
	select {
	case <-gone:
	case <-time.After(time.Minute):
		t.Fatal("the server does not learn that the client has left")
	}
}

// farOf is the one peer of a node.
func farOf(n *node) string {
	for _, a := range n.Snapshot().Additions {
		if rows, ok := a.Rows.([]extension.PeerStatus); ok && len(rows) == 1 {
			return rows[0].ID
		}
	}
	return ""
}

// TestPostgres: psql, through two nodes and a pool at the near one.
func TestPostgres(t *testing.T) {
	cluster := pgtest.Start(t)
	_, near := pair(t, `{endpoints: ["{server}"]}`,
		`{name: db, protocol: postgres, listen: "127.0.0.1:0", upstream: svc, postgres: {mode: transaction, auth: trust}}`,
		`{endpoints: ["p2p:{far}/svc"], postgres: {user: `+cluster.Superuser()+`, password: "`+cluster.Password()+`", dbname: postgres}}`, "{server}", cluster.Addr())
	psql(t, cluster, near.Addr("db"))
}

// TestReload: what is offered and who is kept changes while a connection goes on; who the node is does not.
func TestReload(t *testing.T) {
	far, near := pair(t, `{endpoints: ["{echo}"]}`, rawListener, `{endpoints: ["p2p:{far}/svc"]}`, "{echo}", conntest.Serve(t, conntest.Echo))
	c := conntest.Dial(t, near.Addr("raw"))
	conntest.Exchange(t, c, "before")
	more := strings.Replace(far.text, "upstreams:", "  more: {upstream: svc, allow: ["+near.id+"]}\nupstreams:", 1)
	if err := far.Reload(gatewaytest.Parse(t, more)); err != nil {
		t.Fatal(err)
	}
	if err := near.Reload(near.parse(t, far.id+"/svc", far.id+"/more")); err != nil {
		t.Fatal(err)
	}
	if err := conntest.RoundTrip(near.Addr("raw"), "by another name"); err != nil {
		t.Error(err)
	}
	for what, cfg := range map[string]*config.Config{
		"listen": far.parse(t, "127.0.0.1/tcp/0", "127.0.0.1/tcp/1"), "key": far.parse(t, "node.key", "other.key"), "keep_alive": far.parse(t, "keep_alive: 30s", "keep_alive: 4s"),
	} {
		if err := far.Reload(cfg); err == nil || !strings.Contains(err.Error(), "restart it") {
			t.Errorf("%s: %v", what, err)
		}
	}
	conntest.Exchange(t, c, "after")
	// A node that is removed lets connections finish.
	plain := "listeners: [{name: other, protocol: tcp, listen: \"127.0.0.1:0\", upstream: svc}]\nupstreams: {svc: {endpoints: [\"127.0.0.1:1\"]}}"
	if err := far.Reload(gatewaytest.Parse(t, plain)); err != nil {
		t.Fatal(err)
	}
	conntest.Exchange(t, c, "still")
	_ = c.Close()
	conntest.Eventually(t, "it is gone", func() bool { return len(far.Snapshot().Retiring) == 0 })
	conntest.Eventually(t, "nobody answers", func() bool { return conntest.RoundTrip(near.Addr("raw"), "x") != nil })
}

// TestTwoRemovedNodes: the sessions of each removed node are listed until they end.
func TestTwoRemovedNodes(t *testing.T) {
	far, near := pair(t, `{endpoints: ["{echo}"]}`, rawListener, `{endpoints: ["p2p:{far}/svc"]}`, "{echo}", conntest.Serve(t, conntest.Echo))
	callers := func() (all []string) {
		for _, s := range far.Sessions() {
			all = append(all, s.User)
		}
		slices.Sort(all)
		return all
	}
	removed := gatewaytest.Parse(t, "listeners: [{name: other, protocol: tcp, listen: \"127.0.0.1:0\", upstream: svc}]\nupstreams: {svc: {endpoints: [\"127.0.0.1:1\"]}}")
	first := conntest.Dial(t, near.Addr("raw"))
	conntest.Exchange(t, first, "first")
	if err := far.Reload(removed); err != nil {
		t.Fatal(err)
	}
	key, id := keyOf(t)
	if err := far.Reload(far.parse(t, near.id, id)); err != nil {
		t.Fatal(err)
	}
	other := run(t, key, far.addrs(t), "listeners:\n  - "+rawListener+"\nupstreams:\n  svc: {connect_timeout: 1m, endpoints: [\"p2p:{far}/svc\"]}\n", "{far}", far.id)
	second := conntest.Dial(t, other.Addr("raw"))
	conntest.Exchange(t, second, "second")
	if err := far.Reload(removed); err != nil {
		t.Fatal(err)
	}
	both := []string{near.id, id}
	slices.Sort(both)
	if got := callers(); !slices.Equal(got, both) {
		t.Errorf("sessions of %q, want %q", got, both)
	}
	_ = first.Close()
	conntest.Eventually(t, "the first node is gone", func() bool {
		nodes := 0
		for _, r := range far.Snapshot().Retiring {
			if r.Kind == "peers" {
				nodes++
			}
		}
		return nodes == 1
	})
	if got := callers(); !slices.Equal(got, []string{id}) {
		t.Errorf("sessions of %q, want %q", got, id)
	}
	conntest.Exchange(t, second, "still")
}

// TestReloadIsAllOrNothing: a node of a configuration that cannot be had is not left behind.
func TestReloadIsAllOrNothing(t *testing.T) {
	key, _ := keyOf(t)
	plain := "listeners: [{name: raw, protocol: tcp, listen: \"127.0.0.1:0\", upstream: svc}]\nupstreams: {svc: {endpoints: [\"127.0.0.1:1\"]}}"
	gw := gatewaytest.Run(t, gatewaytest.Parse(t, plain))
	taken := conntest.Listen(t)
	defer taken.Close()
	text := strings.Replace(plain, "127.0.0.1:0", taken.Addr().String(), 1) + "\n" + nodeText
	pairs := []string{"{key}", key, "{bootstrap}", ""}
	if err := gw.Reload(gatewaytest.Parse(t, text, pairs...)); !errors.Is(err, gateway.ErrListen) {
		t.Fatal(err)
	}
	if err := gw.Reload(gatewaytest.Parse(t, plain+"\n"+nodeText, pairs...)); err != nil {
		t.Fatal(err)
	}
	n := &node{Gateway: gw}
	if s := n.self(t); len(s.Addresses) == 0 {
		t.Errorf("%+v", s)
	}
}

// TestDrain: a connection at each side finishes when both gateways end.
func TestDrain(t *testing.T) {
	far, near := pair(t, `{endpoints: ["{echo}"]}`, rawListener, `{endpoints: ["p2p:{far}/svc"]}`, "{echo}", conntest.Serve(t, conntest.Echo))
	c := conntest.Dial(t, near.Addr("raw"))
	conntest.Exchange(t, c, "before")
	far.Stop()
	near.Stop()
	conntest.Eventually(t, "both drain", func() bool { return near.Snapshot().Draining && far.Snapshot().Draining })
	conntest.Exchange(t, c, "after")
	_ = c.Close()
	for _, n := range []*node{near, far} {
		if err := <-n.Result; err != nil {
			t.Error(err)
		}
	}
}
