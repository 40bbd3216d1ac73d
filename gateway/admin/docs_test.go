package admin_test

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/admin"
)

// TestMetricsAreDocumented compares what a scrape shows with the tables of metrics in docs, both ways.
func TestMetricsAreDocumented(t *testing.T) {
	documented := map[string]string{} // name, without headpond_, to file
	for _, file := range []string{"runbook.md", "tunnel.md"} {
		text, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		_, table, found := strings.Cut(string(text), "\n| metric | |\n|---|---|\n")
		table, _, _ = strings.Cut(table, "\n\n")
		if !found {
			t.Fatalf("%s has no table of metrics", file)
		}
		for line := range strings.Lines(table) {
			first := strings.Split(line, "|")[1]
			for _, name := range regexp.MustCompile("`([a-z_]+)").FindAllStringSubmatch(first, -1) {
				documented[strings.TrimPrefix(name[1], "headpond_")] = file
			}
		}
	}
	known := map[string]bool{}
	exported := bufio.NewScanner(get(newHandler(t, admin.Config{}), "/metrics").Body)
	for exported.Scan() {
		name, ok := strings.CutPrefix(exported.Text(), "# TYPE headpond_")
		if !ok {
			continue
		}
		name, _, _ = strings.Cut(name, " ")
		known[name] = true
		if documented[name] == "" {
			t.Errorf("headpond_%s stands in no table of docs/runbook.md or docs/tunnel.md", name)
		}
		delete(documented, name)
	}
	if err := exported.Err(); err != nil {
		t.Fatal(err)
	}
	for name, file := range documented {
		t.Errorf("docs/%s has %s, which is not exported", file, name)
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("documents: %v, %v", files, err)
	}
	for _, file := range files { // alerts and the like
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`headpond_([a-z_]+[a-z])`).FindAllStringSubmatch(string(text), -1) {
			if !known[name[1]] {
				t.Errorf("%s names headpond_%s, which is not exported", file, name[1])
			}
		}
	}
}
