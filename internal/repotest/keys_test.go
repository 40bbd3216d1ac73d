package repotest_test

import (
	"fmt"
	"go/ast"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/protocols"
	"github.com/headpond/headpond/gateway/sources"
	"github.com/headpond/headpond/gateway/tunnels"
)

// keyTable is a table of keys in the documentation: of each struct that it describes every key stands in it, with its default.
type keyTable struct {
	file, header string // header is the first cell of its first line
	after        string // the heading above it, where the header does not tell
	of           []any
}

var keyTables = []keyTable{
	{"docs/configuration.md", "key", "## Top level", []any{config.Config{}}},
	{"docs/configuration.md", "key", "## Listeners", []any{config.Listener{}}},
	{"docs/configuration.md", "key", "## Upstreams", []any{config.Upstream{}}},
	{"docs/configuration.md", "key", "### Pool", []any{config.Pool{}}},
	{"docs/discovery.md", "key of `dns`", "", []any{sources.DNS{}}},
	{"docs/discovery.md", "key of `file`", "", []any{sources.File{}}},
	{"docs/discovery.md", "key of `kubernetes`", "", []any{sources.Kubernetes{}}},
	{"docs/tcp.md", "key of `tcp`", "", []any{protocols.TCPListener{}}},
	{"docs/http.md", "key of a route", "", []any{protocols.Route{}}},
	{"docs/postgres.md", "key of a listener's `postgres`", "", []any{protocols.PostgresListener{}}},
	{"docs/postgres.md", "key of an upstream's `postgres`", "", []any{config.PostgresUpstream{}}},
	{"docs/tunnel.md", "key of `tunnel` (listener) and of a tunnel with `connect`", "", []any{tunnels.Listener{}, tunnels.Tunnel{}}},
	{"docs/tunnel.md", "key of `tunnel` (listener)", "", []any{tunnels.Listener{}}},
	{"docs/tunnel.md", "key of a tunnel", "", []any{tunnels.Tunnel{}}},
}

var mdCode = regexp.MustCompile("`([^`]+)`")

// TestDocumentedKeysAreThoseThereAre compares the tables of keys with what the configuration knows: names and defaults.
func TestDocumentedKeysAreThoseThereAre(t *testing.T) {
	docs := markdown(t)
	documented := map[reflect.Type]map[string]bool{}
	for _, table := range keyTables {
		rows := table.rows(docs[table.file])
		if len(rows) == 0 {
			t.Errorf("%s has no table %q below %q", table.file, table.header, table.after)
		}
		for _, row := range rows {
			for _, of := range table.of {
				typ := reflect.TypeOf(of)
				if documented[typ] == nil {
					documented[typ] = map[string]bool{}
				}
				for _, key := range mdCode.FindAllStringSubmatch(row[0], -1) {
					checkKey(t, table.file, typ, key[1], row, documented[typ])
				}
			}
		}
	}
	for typ, keys := range documented {
		for _, f := range config.Schema(typ) {
			if key := f.Tag.Get("conf"); !keys[key] {
				t.Errorf("no table of the documentation has the key %q of %s", key, typ.Name())
			}
		}
	}
}

// rows are the table's lines after the header, as cells.
func (k keyTable) rows(text string) (rows [][]string) {
	if k.after != "" {
		_, text, _ = strings.Cut(text, "\n"+k.after+"\n")
	}
	_, text, found := strings.Cut(text, "\n| "+k.header+" |")
	if !found {
		return nil
	}
	lines := strings.Split(text, "\n")
	for _, line := range lines[2:] {
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, append(cells, "", ""))
	}
	return rows
}

// checkKey finds the field of a key, such as log.format, and compares what the row says about it.
func checkKey(t *testing.T, file string, typ reflect.Type, key string, row []string, seen map[string]bool) {
	first, rest, nested := strings.Cut(key, ".")
	f, ok := fieldOf(typ, first)
	if !ok {
		t.Errorf("%s: %s has no key %q", file, typ.Name(), key)
		return
	}
	seen[first] = true
	sub := f.Type
	if sub.Kind() == reflect.Pointer {
		sub = sub.Elem()
	}
	switch {
	case nested:
		checkKey(t, file, sub, rest, row, map[string]bool{})
	case f.Tag.Get("default") != "":
		if want := "`" + f.Tag.Get("default") + "`"; !strings.HasPrefix(row[1], want) {
			t.Errorf("%s: the default of %q is %s, the table says %s", file, key, want, row[1])
		}
	case sub.Kind() == reflect.Struct && strings.Contains(row[1]+row[2], "`"):
		checkInline(t, file, key, sub, row[1]+" "+row[2])
	}
}

// checkInline looks for the keys of a struct that has no table in the text about it: `{ca, cert}`, or `interval` `2s` where there is a default.
func checkInline(t *testing.T, file, key string, typ reflect.Type, text string) {
	for _, f := range config.Schema(typ) {
		tag := f.Tag
		name, value := tag.Get("conf"), tag.Get("default")
		if value != "" && !strings.Contains(text, "`"+name+"` `"+value+"`") {
			t.Errorf("%s: the text about %q lacks `%s` `%s`", file, key, name, value)
		} else if !regexp.MustCompile("`[^`]*\\b" + name + "\\b[^`]*`").MatchString(text) {
			t.Errorf("%s: the text about %q lacks its key %q", file, key, name)
		}
	}
}

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

func fieldOf(typ reflect.Type, key string) (reflect.StructField, bool) {
	for _, f := range config.Schema(typ) {
		if f.Tag.Get("conf") == key {
			return f, true
		}
	}
	return reflect.StructField{}, false
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
