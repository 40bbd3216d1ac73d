package repotest_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
)

// layer is the dependency rule of ARCHITECTURE.md for one directory and all below it.
type layer struct {
	dir     string   // relative to the repository; the longest match counts
	imports []string // packages of ours that it may import, each with all below, beside its own directory
	stdOnly bool     // no third-party package in code that is not a test
}

// leaves are the packages that know nothing of listeners and configuration.
var leaves = []string{"pool", "traffic", "pgwire", "httpwire", "internal", "mux", "route", "fiber"}

// proxied lists the imports of a listener protocol: never another protocol, never the gateway.
var proxied = append([]string{"upstream", "listener"}, leaves...)

// layers is the map. A new directory needs a line here, and in ARCHITECTURE.md.
var layers = []layer{
	{dir: "cmd", imports: []string{"gateway", "internal"}},
	{dir: "pool", stdOnly: true},
	{dir: "pool/tcppool", imports: []string{"pool", "fiber", "internal"}},
	{dir: "pool/httppool", imports: []string{"pool", "httpwire", "fiber", "internal"}},
	{dir: "pool/pgpool", imports: []string{"pool", "internal"}},
	{dir: "pool/sqlitepool", imports: []string{"pool", "internal"}},
	{dir: "traffic", stdOnly: true},
	{dir: "pgwire", stdOnly: true},
	{dir: "httpwire", stdOnly: true},
	{dir: "mux/frame", stdOnly: true},
	{dir: "mux", imports: []string{"mux/frame", "fiber", "internal"}},
	{dir: "route", imports: []string{"route/internal"}, stdOnly: true},
	{dir: "route/ginroute", imports: []string{"route"}},
	{dir: "fiber", imports: []string{"internal"}},
	{dir: "upstream", imports: leaves},
	{dir: "listener", imports: leaves},
	{dir: "tcpproxy", imports: proxied},
	{dir: "udpproxy", imports: proxied},
	{dir: "httpproxy", imports: proxied},
	{dir: "pgproxy", imports: proxied},
	{dir: "tunnel", imports: proxied},
	{dir: "gateway", imports: append([]string{"tcpproxy", "udpproxy", "httpproxy", "pgproxy", "tunnel"}, proxied...)},
	{dir: "internal", imports: []string{"internal"}},
	{dir: "internal/cli", imports: []string{"gateway", "internal"}},
	{dir: "internal/pgbouncerini", imports: []string{"gateway", "pgproxy", "pgwire", "internal"}},
	{dir: "internal/proxyconf", imports: []string{"gateway", "httpproxy", "internal"}},
	{dir: "internal/top", imports: []string{"gateway", "listener"}},
	{dir: "internal/repotest", imports: []string{"gateway"}},
	{dir: "internal/gatewaytest", imports: []string{"gateway", "internal"}},
	{dir: "internal/watchtest", imports: []string{"listener"}},
	{dir: "internal/enginetest", imports: []string{"fiber", "internal"}},
	{dir: "internal/sourcetest", imports: []string{"upstream"}},
	{dir: "acme", imports: []string{"gateway", "internal"}},
	{dir: "tracing", imports: []string{"gateway", "httpproxy", "httpwire", "internal"}},
	{dir: "http3", imports: []string{"gateway", "httpproxy", "listener", "upstream", "fiber", "internal"}},
	{dir: "peers", imports: append([]string{"acme", "tracing", "http3", "gateway", "listener", "upstream", "tunnel"}, leaves...)},
	{dir: "examples", imports: []string{"gateway", "tcpproxy", "httpproxy", "pgproxy", "upstream", "listener", "pool", "pgwire", "mux", "route"}},
	{dir: "packaging"},
	{dir: "bench", imports: []string{"gateway", "tcpproxy", "udpproxy", "httpproxy", "pgproxy", "tunnel", "peers", "upstream", "listener", "pool", "pgwire", "mux", "route", "fiber", "internal"}},
	{dir: "integration", imports: []string{"gateway", "internal", "pgwire", "mux", "route", "pool"}},
}

// testOnly are the packages only tests may import: they never reach the binary.
var testOnly = []string{"internal/certs", "internal/clienttest", "internal/conntest", "internal/enginetest", "internal/gatewaytest", "internal/leaktest", "internal/pgtest", "internal/repotest", "internal/sourcetest", "internal/tlstest", "internal/watchtest"}

func TestImportDirection(t *testing.T) {
	for _, f := range goFiles(t) {
		l, ok := layerOf(f.dir())
		if !ok {
			t.Errorf("%s: directory %s is not in the map: add it to layers in internal/repotest/imports_test.go and to ARCHITECTURE.md", f.path, f.dir())
			continue
		}
		for _, spec := range f.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if why := forbidden(l, f, imported); why != "" {
				t.Errorf("%s imports %s: %s", f.line(spec.Pos()), imported, why)
			}
		}
	}
}

// forbidden says why a file of the layer may not import the package, or "".
func forbidden(l layer, f goFile, imported string) string {
	ours, ok := strings.CutPrefix(imported, module+"/")
	if !ok {
		if l.stdOnly && !f.isTest() && strings.Contains(strings.Split(imported, "/")[0], ".") {
			return l.dir + " is for the standard library only"
		}
		return ""
	}
	if slices.ContainsFunc(testOnly, func(p string) bool { return below(ours, p) }) {
		if f.isTest() || below(f.dir(), "internal") || below(f.dir(), "integration") || below(f.dir(), "bench") {
			return ""
		}
		return "only tests may"
	}
	if ours == l.dir || !l.stdOnly && below(ours, l.dir) {
		return ""
	}
	if slices.ContainsFunc(l.imports, func(p string) bool { return below(ours, p) }) {
		return ""
	}
	if f.isTest() && below(ours, "internal") {
		return ""
	}
	return l.dir + " may import of ours only " + strings.Join(l.imports, ", ")
}

func TestImportRuleItself(t *testing.T) {
	for _, c := range []struct {
		file, imports string
		allowed       bool
	}{
		{"tcpproxy/proxy.go", module + "/upstream", true},
		{"tcpproxy/proxy.go", module + "/httpproxy", false},
		{"tcpproxy/proxy.go", module + "/gateway", false},
		{"tcpproxy/proxy_test.go", module + "/gateway/config", false},
		{"pgproxy/sqlite/backend.go", module + "/pgproxy", true},
		{"pgproxy/sqlite/backend.go", module + "/pool/sqlitepool", true},
		{"pool/pool.go", "golang.org/x/sync/semaphore", false},
		{"pool/pool.go", module + "/pool/tcppool", false},
		{"pool/pool_test.go", "go.uber.org/goleak", true},
		{"pool/pgpool/pgpool.go", module + "/pool", true},
		{"pool/pgpool/pgpool.go", module + "/upstream", false},
		{"pgwire/reader.go", "sync/atomic", true},
		{"gateway/gateway.go", module + "/internal/pgtest", false},
		{"gateway/gateway_test.go", module + "/internal/pgtest", true},
		{"cmd/headpond/main.go", module + "/pool", false},
	} {
		f := goFile{path: c.file}
		l, ok := layerOf(f.dir())
		if why := forbidden(l, f, c.imports); !ok || (why == "") != c.allowed {
			t.Errorf("%s importing %s: %q, want allowed = %v", c.file, c.imports, why, c.allowed)
		}
	}
}

// layerOf returns the layer with the longest directory that holds dir.
func layerOf(dir string) (layer, bool) {
	var best layer
	for _, l := range layers {
		if below(dir, l.dir) && len(l.dir) > len(best.dir) {
			best = l
		}
	}
	return best, best.dir != ""
}

// below reports whether p is dir or in it.
func below(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
