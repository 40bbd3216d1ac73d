//go:build !race

package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headpond/headpond/gateway/config"
)

// TestMutatedFiles takes each value of each file in testdata out, and puts others in its place. Parse must report
// what is wrong, or return a configuration that can be written again. These are thousands of files, and Parse has no
// concurrency, so the race detector is left out.
func TestMutatedFiles(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")           // no pod
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // the heap is small, and almost all of it garbage
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var doc yaml.Node
			if yaml.Unmarshal(text, &doc) != nil {
				return // a file for the errors of YAML itself
			}
			mutate(&doc, func(what string) {
				changed, err := yaml.Marshal(&doc)
				if err != nil {
					return // an anchor went
				}
				parseMutated(t, what, changed)
			})
		})
	}
}

// mutate changes the tree at one place after another, calls try, and changes it back.
func mutate(n *yaml.Node, try func(what string)) {
	for i := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			key := n.Content[i]
			all := n.Content
			n.Content = append(append([]*yaml.Node(nil), all[:i]...), all[i+2:]...)
			try("without " + key.Value)
			n.Content = all
			continue
		}
		was := n.Content[i]
		for _, value := range []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: "nosuch"}, {Kind: yaml.ScalarNode, Value: "~"}, {Kind: yaml.MappingNode},
		} {
			n.Content[i] = value
			try(fmt.Sprintf("line %d: %q becomes %q %v", was.Line, was.Value, value.Value, value.Kind))
		}
		n.Content[i] = was
		mutate(was, try)
	}
}

func parseMutated(t *testing.T, what string, text []byte) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("%s: panic: %v\n%s\n%s", what, p, debug.Stack(), text)
		}
	}()
	cfg, problems := config.Parse("file.yaml", text)
	switch {
	case cfg == nil && problems.String() == "":
		t.Errorf("%s: neither a configuration nor a problem\n%s", what, text)
	case cfg != nil:
		if _, err := cfg.YAML(); err != nil {
			t.Errorf("%s: %v\n%s", what, err, text)
		}
	}
}
