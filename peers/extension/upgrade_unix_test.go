//go:build unix

package extension_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
)

const upgradeText = `
drain_timeout: 20s
peers:
  key: "{key}"
  listen: ["/ip4/127.0.0.1/udp/{udp}/quic-v1", "/ip4/127.0.0.1/tcp/{tcp}"]
  bootstrap: [{bootstrap}]
`

// startUpgradable starts a node at fixed addresses.
func startUpgradable(t *testing.T, key, bootstrap, text string, pairs ...string) *node {
	t.Helper()
	port := func() string { _, port, _ := net.SplitHostPort(conntest.FreeAddress(t)); return port }
	full := strings.Replace(upgradeText, "{udp}", port(), 1)
	n := &node{text: strings.NewReplacer(append(pairs, "{tcp}", port(), "{key}", key, "{bootstrap}", bootstrap)...).Replace(full + text)}
	n.Gateway = gatewaytest.Run(t, n.parse(t))
	return n
}

// TestUpgradeOfANode: when another process takes a node's gateway over, its node has the same identity and addresses, the
// services are available again, and so are those of others to its clients. The old process serves on until its node is
// closed, and its listeners longer.
func TestUpgradeOfANode(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) }))
	defer web.Close()
	farKey, farID := keyOf(t)
	nearKey, _ := keyOf(t)
	far := startUpgradable(t, farKey, "", `
services: {svc: {upstream: svc, allow: [anyone]}}
listeners: [{name: side, protocol: tcp, listen: "{side}", upstream: echo}]
upstreams:
  echo: {endpoints: ["{echo}"]}
  svc: {endpoints: ["{web}"]}
`, "{web}", web.Listener.Addr().String(), "{side}", conntest.FreeAddress(t), "{echo}", conntest.Serve(t, conntest.Echo))
	near := startUpgradable(t, nearKey, far.addrs(t), `
listeners: [{name: web, protocol: http, listen: "{listen}", upstream: svc}]
upstreams: {svc: {connect_timeout: 1m, endpoints: ["p2p:{far}/svc"]}}
`, "{listen}", conntest.FreeAddress(t), "{far}", farID)
	ask := func(what string) {
		t.Helper()
		conntest.Eventually(t, what, func() bool {
			resp, err := http.Get("http://" + near.Addr("web"))
			if err != nil {
				return false
			}
			_ = resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		})
		http.DefaultClient.CloseIdleConnections()
	}
	ask("before")
	addresses := far.addrs(t)
	side := conntest.Dial(t, far.Addr("side"))
	conntest.Exchange(t, side, "hello")
	upgradeNode := func(n *node) {
		t.Helper()
		old := n.Gateway
		n.Gateway = gatewaytest.Upgrade(t, old, n.parse(t))
		if err := old.Leave(); err != nil {
			t.Fatal(err)
		}
		old.Stop()
		conntest.Eventually(t, "the new node", func() bool { return n.isNode() })
	}
	upgradeNode(far)
	if got := far.addrs(t); got != addresses {
		t.Errorf("the new node is at %s, the old one was at %s", got, addresses)
	}
	ask("after an upgrade of the node that serves")
	conntest.Exchange(t, side, "still there")
	upgradeNode(near)
	ask("after an upgrade of the node that asks")
}

// TestUpgradeOfANodeThatFails: a process that does not take over leaves the node of the old one alone, and a reload
// may change the node that waits, or remove it.
func TestUpgradeOfANodeThatFails(t *testing.T) {
	key, _ := keyOf(t)
	rest := `
listeners: [{name: raw, protocol: tcp, listen: "{listen}", upstream: echo}]
upstreams: {echo: {endpoints: ["127.0.0.1:1"]}}
`
	old := startUpgradable(t, key, "", rest, "{listen}", conntest.FreeAddress(t))
	next := &node{Gateway: gatewaytest.Upgrade(t, old.Gateway, old.parse(t)), text: old.text}
	for _, cfg := range []string{"peers:\n  max_connections: 100", "x-nothing:", "peers:\n  max_connections: 200"} {
		text := strings.Replace(next.text, "peers:", cfg, 1)
		if err := next.Reload(gatewaytest.Parse(t, text)); err != nil {
			t.Fatal(err)
		}
		if next.isNode() || !old.isNode() {
			t.Error("the node has changed hands before the old process has left")
		}
	}
	next.Close()
	if !old.isNode() || len(old.self(t).Addresses) == 0 {
		t.Error("the old process has no node any more")
	}
	last := &node{Gateway: gatewaytest.Upgrade(t, old.Gateway, old.parse(t))}
	if err := old.Leave(); err != nil {
		t.Fatal(err)
	}
	conntest.Eventually(t, "the node of another process", last.isNode)
}
