package peers_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/net/gostream"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/gatewaytest"
	"github.com/headpond/headpond/peers"
	"github.com/headpond/headpond/peers/extension"
)

// Addresses of the far node: both, as by default, unless an arm is about one of them.
const (
	quic = "/ip4/127.0.0.1/udp/0/quic-v1"
	both = quic + `", "/ip4/127.0.0.1/tcp/0`
)

// arms start two nodes before a server (host:port), and return the URL of the near one.
var arms = []struct {
	name  string
	start func(b *testing.B, server string) string
}{
	{"headpond", func(b *testing.B, server string) string { return nodes(b, server, "peers", both) }},
	{"gateway", func(b *testing.B, server string) string { return nodes(b, server, "http, upstream: web", both) }},
	{"quic", func(b *testing.B, server string) string { return nodes(b, server, "peers", quic) }},
	{"https", overHTTPS},
	{"study", study},
	{"harness", func(_ *testing.B, server string) string { return "http://" + server }},
}

// newKey makes the identity of a node.
func newKey(b *testing.B) (file, id string) {
	b.Helper()
	file = filepath.Join(b.TempDir(), "node.key")
	key, _, err := peers.LoadOrCreateKey(file)
	if err != nil {
		b.Fatal(err)
	}
	if id, err = peers.IDOf(key); err != nil {
		b.Fatal(err)
	}
	return file, id
}

// nodes starts two gateways that are nodes, the near one with a listener.
func nodes(b *testing.B, server, listener, listen string) string {
	b.Helper()
	farKey, farID := newKey(b)
	nearKey, nearID := newKey(b)
	far := gatewaytest.Run(b, gatewaytest.Parse(b, `
peers: {key: "{key}", listen: ["{listen}"]}
services: {web: {upstream: web, allow: {near}}}
upstreams: {web: {endpoints: ["{server}"]}}
`, "{key}", farKey, "{near}", nearID, "{server}", server, "{listen}", listen))
	text := `
peers: {key: "{key}", listen: [], bootstrap: ["{far}"]}
listeners: [{name: web, protocol: {listener}, listen: "127.0.0.1:0"}]
`
	path := ""
	if listener == "peers" {
		path = "/v1/p2p/" + farID + "/web"
	} else {
		text += "upstreams: {web: {endpoints: [\"p2p:" + farID + "/web\"]}}\n"
	}
	near := gatewaytest.Run(b, gatewaytest.Parse(b, text, "{key}", nearKey, "{listener}", listener, "{far}", strings.Join(self(b, far).Addresses, `", "`)))
	address := "http://" + near.Addr("web") + path
	conntest.Eventually(b, "the near node reaches the server", func() bool { return get(address) == nil })
	return address
}

// self returns a gateway's status as a node.
func self(b *testing.B, g *gatewaytest.Gateway) extension.NodeStatus {
	b.Helper()
	for _, a := range g.Snapshot().Additions {
		if rows, ok := a.Rows.([]extension.NodeStatus); ok && len(rows) == 1 {
			return rows[0]
		}
	}
	b.Fatal("the gateway is no node")
	return extension.NodeStatus{}
}

// get requests a page.
func get(address string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(address + "/")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}

// overHTTPS starts two gateways with HTTPS between them.
func overHTTPS(b *testing.B, server string) string {
	b.Helper()
	authority, dir := certs.New(), b.TempDir()
	cert, key := certs.PEM(authority.Certificate)
	for name, data := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	far := gatewaytest.Run(b, gatewaytest.Parse(b, `
listeners: [{name: web, protocol: http, listen: "127.0.0.1:0", upstream: web, tls: {cert: "{dir}/cert.pem", key: "{dir}/key.pem"}}]
upstreams: {web: {endpoints: ["{server}"]}}
`, "{dir}", dir, "{server}", server))
	near := gatewaytest.Run(b, gatewaytest.Parse(b, `
listeners: [{name: web, protocol: http, listen: "127.0.0.1:0", upstream: web}]
upstreams: {web: {endpoints: ["{far}"], tls: {ca: "{dir}/cert.pem", server_name: localhost}}}
`, "{dir}", dir, "{far}", far.Addr("web")))
	return "http://" + near.Addr("web")
}

// study starts two nodes like those of the streaming study: each request has its own libp2p stream and a new connection
// to the server.
func study(b *testing.B, server string) string {
	b.Helper()
	const protocol = "/study/http/1"
	far, near := newHost(b), newHost(b)
	l, err := gostream.Listen(far, protocol)
	if err != nil {
		b.Fatal(err)
	}
	serve := &http.Server{Handler: forward(&http.Transport{DisableKeepAlives: true, DisableCompression: true}, server)}
	go func() { _ = serve.Serve(l) }()
	b.Cleanup(func() { _ = serve.Close() })
	if err := near.Connect(b.Context(), peer.AddrInfo{ID: far.ID(), Addrs: far.Addrs()}); err != nil {
		b.Fatal(err)
	}
	over := &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return gostream.Dial(ctx, near, far.ID(), protocol)
	}}
	entry, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	front := &http.Server{Handler: forward(over, "far")}
	go func() { _ = front.Serve(entry) }()
	b.Cleanup(func() { _ = front.Close() })
	return "http://" + entry.Addr().String()
}

func newHost(b *testing.B) host.Host {
	b.Helper()
	h, err := libp2p.New(libp2p.ListenAddrStrings(quic), libp2p.DisableMetrics())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = h.Close() })
	return h
}

// forward is the standard library's proxy.
func forward(by http.RoundTripper, target string) http.Handler {
	return &httputil.ReverseProxy{Transport: by, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: target})
	}}
}
