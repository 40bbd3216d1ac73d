package tables_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/tables"
)

// repository is the directory of the README.
const repository = "../../.."

// TestDocumentsSayWhatTheDataSay makes the tables of every document again and compares: each number in them comes from
// the committed results.
func TestDocumentsSayWhatTheDataSay(t *testing.T) {
	files, err := filepath.Glob(repository + "/docs/benchmarks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	tablesDrawn := 0
	for _, path := range append(files, repository+"/README.md") {
		want, err := tables.Update(path)
		if err != nil {
			t.Error(err)
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s shows other figures than its results; run scripts/bench-tables.sh", path)
		}
		tablesDrawn += strings.Count(want, "<!-- bench:")
	}
	if tablesDrawn == 0 {
		t.Error("no document shows a table")
	}
}

// drawn matches a generated table; figure matches a figure that only such a table may contain.
var (
	drawn  = regexp.MustCompile(`(?s)<!-- bench:.*?<!-- /bench -->`)
	cell   = regexp.MustCompile(`\| *\*{0,2}[\d,.]+\*{0,2} *\|`)
	figure = regexp.MustCompile(`(?i)\d[\d,.]* ?(?:[µnm]s\b|(?:ops?|req|requests|transactions|queries)/s|tps\b|[KMG]i?B/|allocs?\b|allocations|times (?:as|fast|less|more|cheap)|[x×] (?:as|fast|less|more)|% (?:of (?:the )?(?:cpu|haproxy|nginx|pgbouncer)|less|more|fast|cheap))`)
)

// TestDocumentsTypeNoFigure looks for figures outside generated tables.
func TestDocumentsTypeNoFigure(t *testing.T) {
	for text, want := range map[string]int{
		"94.6 µs → 251ns": 2, "2 times as fast as nginx, 40 % less CPU": 2, "100,000 req/s and 3 allocs": 2, "0.8 KiB/client at 2 GB/s": 2,
		"needs Go 1.21, port 6432, two times a day, on 2 cores, 100 % tested": 0,
	} {
		if got := figure.FindAllString(text, -1); len(got) != want {
			t.Errorf("in %q are the figures %q, want %d", text, got, want)
		}
	}
	files, err := filepath.Glob(repository + "/docs/benchmarks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(files, repository+"/README.md") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := drawn.ReplaceAllString(string(data), "")
		if found := figure.FindAllString(text, -1); len(found) > 0 {
			t.Errorf("%s has figures that were typed: %q; tables are drawn from data, see scripts/bench-tables.sh", path, found)
		}
		if cells := cell.FindAllString(text, -1); len(cells) > 0 {
			t.Errorf("%s has a table that was typed, with %q", path, cells)
		}
	}
}

func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	arm := func(name string, cpu float64) *result.Arm {
		a := &result.Arm{Name: name}
		for range 3 {
			a.Add(result.Sample{Values: map[string]float64{result.CPU: cpu}})
		}
		return a
	}
	r := &result.Results{Schema: result.Schema, Cases: []*result.Case{
		{ID: "W1c/64", Title: "a|b", Metrics: []string{result.CPU}, Arms: []*result.Arm{arm("gateway-uring", 4.25)}},
		{ID: "x/g=1", Metrics: []string{result.CPU}, Arms: []*result.Arm{arm("a", 2), arm("b", 4), arm("nothing", 1)}, Floor: "nothing", Others: 0.4},
		{ID: "x/g=8", Metrics: []string{result.CPU}, Arms: []*result.Arm{arm("a", 3)}},
	}}
	if err := r.Save(filepath.Join(dir, "r.json")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.md")
	for text, want := range map[string]string{
		"a\n<!-- bench:cases r.json -->\nold 1.23\n<!-- /bench -->\nb\n": "| gateway-uring | 4.25 | 4.25–4.25 |",
		"no table": "no table",
		"<!-- bench:case r.json x/g=8 -->\n<!-- /bench -->\n":                "| a | 3.00 | 3.00–3.00 |",
		"<!-- bench:pivot r.json cpu_us ^x/(.*)$ a/b -->\n<!-- /bench -->\n": "| g=1 | 1.00 | 3.00 | 0.33 ±0 % noise |\n| g=8 | 3.00 | – | – |\n\nOther programs used up to 40 %",
		"<!-- bench:facts r.json -->\n<!-- /bench -->\n":                     "- Generator: ",
		"<!-- bench:case r.json nowhere -->\n<!-- /bench -->\n":              "",
		"<!-- bench:pivot r.json cpu_us ^y/(.*)$ -->\n<!-- /bench -->\n":     "",
		"<!-- bench:pivot r.json cpu_us ^x/.*$ -->\n<!-- /bench -->\n":       "",
		"<!-- bench:pivot r.json -->\n<!-- /bench -->\n":                     "",
		"<!-- bench:cases r.json -->\n":                                      "",
		"<!-- bench:nothing r.json -->\n<!-- /bench -->\n":                   "",
		"<!-- bench:summary nowhere.json -->\n<!-- /bench -->\n":             "",
		"<!-- bench:summary r.json -->\n9.99\n<!-- /bench -->\nafter":        "<!-- bench:summary r.json -->\n<!-- /bench -->\nafter",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := tables.Update(path)
		if (err != nil) != (want == "") || err == nil && (!strings.Contains(got, want) || strings.Contains(got, "1.23")) {
			t.Errorf("%q becomes %q, %v", text, got, err)
		}
	}
}
