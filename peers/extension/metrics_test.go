package extension_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsAreDocumented compares the metrics of a node with the table in docs/peers.md, both ways.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/peers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| metric | |\n")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 2 {
			for _, name := range regexp.MustCompile("`(headpond_[a-z_]+)`").FindAllStringSubmatch(cells[1], -1) {
				documented[name[1]] = true
			}
		}
	}
	key, _ := keyOf(t)
	n := run(t, key, "", "admin: 127.0.0.1:0\n")
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (headpond_node_[a-z_]+) `).FindAllStringSubmatch(get(t, n.Addr("admin"), "/metrics"), -1) {
		found++
		if !documented[m[1]] {
			t.Errorf("docs/peers.md does not have %s", m[1])
		}
		delete(documented, m[1])
	}
	for name := range documented {
		t.Errorf("docs/peers.md has %s, which there is not", name)
	}
	if found == 0 {
		t.Error("a node has no metrics")
	}
}
