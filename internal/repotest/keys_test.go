package repotest_test

import (
	"fmt"
	"go/ast"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/gateway/sources"
	"github.com/headpond/headpond/gateway/tunnels"
	"github.com/headpond/headpond/internal/repotest"
)

var keyTables = []repotest.KeyTable{
	{File: "docs/configuration.md", Header: "key", After: "## Top level", Of: []any{config.Config{}}},
	{File: "docs/configuration.md", Header: "key", After: "## Listeners", Of: []any{config.Listener{}}},
	{File: "docs/configuration.md", Header: "key", After: "## Upstreams", Of: []any{config.Upstream{}}},
	{File: "docs/configuration.md", Header: "key of `eject`", Of: []any{config.Eject{}}},
	{File: "docs/configuration.md", Header: "key", After: "### Pool", Of: []any{config.Pool{}}},
	{File: "docs/discovery.md", Header: "key of `dns`", Of: []any{sources.DNS{}}},
	{File: "docs/discovery.md", Header: "key of `file`", Of: []any{sources.File{}}},
	{File: "docs/discovery.md", Header: "key of `kubernetes`", Of: []any{sources.Kubernetes{}}},
	{File: "docs/tcp.md", Header: "key of `tcp`", Of: []any{protocols.TCPListener{}}},
	{File: "docs/udp.md", Header: "key of `udp`", Of: []any{protocols.UDPListener{}}},
	{File: "docs/http.md", Header: "key of a route", Of: []any{protocols.Route{}}},
	{File: "docs/http.md", Header: "key of a listener's `http`", Of: []any{protocols.HTTPListener{}}},
	{File: "docs/http.md", Header: "key of `basic_auth`", Of: []any{protocols.BasicAuth{}}},
	{File: "docs/http.md", Header: "key of `bearer_auth`", Of: []any{protocols.BearerAuth{}}},
	{File: "docs/http.md", Header: "key of `jwt`", Of: []any{protocols.JWT{}}},
	{File: "docs/http.md", Header: "key of `forward_auth`", Of: []any{protocols.ForwardAuth{}}},
	{File: "docs/http.md", Header: "key of `access_log`", Of: []any{protocols.AccessLog{}}},
	{File: "docs/http.md", Header: "key of `mirror`", Of: []any{protocols.Mirror{}}},
	{File: "docs/http.md", Header: "key of `rewrite_location`", Of: []any{protocols.RewriteLocation{}}},
	{File: "docs/http.md", Header: "key of `rewrite_cookies`", Of: []any{protocols.RewriteCookies{}}},
	{File: "docs/http.md", Header: "key of `error_pages`", Of: []any{protocols.ErrorPage{}}},
	{File: "docs/http.md", Header: "key of a route's `access_log`", Of: []any{protocols.RouteLog{}}},
	{File: "docs/http.md", Header: "key of `compress`", Of: []any{protocols.Compress{}}},
	{File: "docs/http.md", Header: "key of `http3`", Of: []any{protocols.HTTP3{}}},
	{File: "docs/http.md", Header: "key of `retries`", Of: []any{protocols.Retries{}}},
	{File: "docs/postgres.md", Header: "key of a listener's `postgres`", Of: []any{protocols.PostgresListener{}}},
	{File: "docs/authentication.md", Header: "key of a rule", Of: []any{protocols.AuthRule{}}},
	{File: "docs/authentication.md", Header: "key of `auth_maps`", Of: []any{protocols.AuthMap{}}},
	{File: "docs/console.md", Header: "key of `console`", Of: []any{protocols.Console{}}},
	{File: "docs/postgres.md", Header: "key of an upstream's `postgres`", Of: []any{protocols.PostgresUpstream{}}},
	{File: "docs/tunnel.md", Header: "key of `tunnel` (listener) and of a tunnel with `connect`", Of: []any{tunnels.Listener{}, tunnels.Tunnel{}}},
	{File: "docs/tunnel.md", Header: "key of `tunnel` (listener)", Of: []any{tunnels.Listener{}}},
	{File: "docs/tunnel.md", Header: "key of a tunnel", Of: []any{tunnels.Tunnel{}}},
}

var mdCode = repotest.Code

// TestDocumentedKeysAreThoseThereAre compares the tables of keys with the configuration: names and defaults. The tables
// of peers are compared in their module.
func TestDocumentedKeysAreThoseThereAre(t *testing.T) { repotest.CheckKeys(t, markdown(t), keyTables) }

// TestDocumentedPoolSizes compares the one default that differs by protocol in every case.
func TestDocumentedPoolSizes(t *testing.T) {
	cfg, problems := config.Parse("c.yaml", []byte(`listeners:
  - {name: p, protocol: postgres, listen: "127.0.0.1:1", upstream: p}
  - {name: h, protocol: http, listen: "127.0.0.1:2", upstream: h}
  - {name: t, protocol: tcp, listen: "127.0.0.1:3", upstream: t}
  - {name: s, protocol: postgres, listen: "127.0.0.1:4", upstream: s}
upstreams:
  p: {endpoints: ["127.0.0.1:9"], postgres: {user: u}}
  h: {endpoints: ["127.0.0.1:9"]}
  t: {endpoints: ["127.0.0.1:9"]}
  s: {endpoints: ["sqlite:s.db"]}
`))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	size := func(name string) int { return cfg.Upstream(name).Pool.MaxSize }
	want := fmt.Sprintf("| `max_size` | %d `postgres`, %d `http`, %d `tcp`, %d SQLite readers |", size("p"), size("h"), size("t"), size("s"))
	if !strings.Contains(markdown(t)["docs/configuration.md"], want) {
		t.Errorf("docs/configuration.md lacks %s", want)
	}
}

// TestDocumentedReasons compares the reasons for errors in docs/metrics.md with package listener's, both ways.
func TestDocumentedReasons(t *testing.T) {
	_, table, _ := strings.Cut(markdown(t)["docs/metrics.md"], "\n| `reason` | |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		for _, m := range mdCode.FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
			documented[m[1]] = true
		}
	}
	for _, f := range packages(t)["listener"] {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || f.isTest() || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
				return true
			}
			reason := strings.Trim(spec.Values[0].(*ast.BasicLit).Value, `"`)
			if !documented[reason] {
				t.Errorf("docs/metrics.md does not explain the reason %s", reason)
			}
			delete(documented, reason)
			return true
		})
	}
	for reason := range documented {
		t.Errorf("docs/metrics.md explains the reason %s, which there is not", reason)
	}
}
