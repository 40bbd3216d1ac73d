package tables_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/bench/internal/result"
	"github.com/headpond/headpond/bench/internal/tables"
)

// repository is where the README is.
const repository = "../../.."

// TestDocumentsSayWhatTheDataSay draws the tables of every document and compares: each number in them is one of the committed results.
func TestDocumentsSayWhatTheDataSay(t *testing.T) {
	files, err := filepath.Glob(repository + "/docs/benchmarks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := 0
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
		drawn += strings.Count(want, "<!-- bench:")
	}
	if drawn == 0 {
		t.Error("no document shows a table")
	}
}

func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	a := &result.Arm{Name: "gateway-uring"}
	a.Add(result.Sample{Values: map[string]float64{result.CPU: 4.25}})
	r := &result.Results{Schema: result.Schema, Cases: []*result.Case{{ID: "W1c/64", Title: "a|b", Metrics: []string{result.CPU}, Arms: []*result.Arm{a}}}}
	if err := r.Save(filepath.Join(dir, "r.json")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.md")
	for text, want := range map[string]string{
		"a\n<!-- bench:cases r.json -->\nold 1.23\n<!-- /bench -->\nb\n": "| gateway-uring | 4.25 | 4.25–4.25 |",
		"no table":                      "no table",
		"<!-- bench:cases r.json -->\n": "",
		"<!-- bench:nothing r.json -->\n<!-- /bench -->\n":            "",
		"<!-- bench:summary nowhere.json -->\n<!-- /bench -->\n":      "",
		"<!-- bench:summary r.json -->\n9.99\n<!-- /bench -->\nafter": "<!-- bench:summary r.json -->\n<!-- /bench -->\nafter",
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
