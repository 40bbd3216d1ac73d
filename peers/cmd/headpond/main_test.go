package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/cli"
	"github.com/headpond/headpond/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// execute runs a command line and returns its exit code and output.
func execute(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = cli.Run(&out, &err, args)
	return code, out.String(), err.String()
}

// TestExamples keeps the documented files acceptable, without a warning.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("../../../examples/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatalf("examples: %v, %v", files, err)
	}
	readme, err := os.ReadFile("../../../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		code, stdout, stderr := execute("check", file)
		if code != 0 || stderr != "" || !strings.Contains(stdout, ": ok, ") {
			t.Errorf("%s: exit %d\n%s%s", file, code, stdout, stderr)
		}
		if !strings.Contains(string(readme), filepath.Base(file)) {
			t.Errorf("%s is not in examples/README.md", file)
		}
		if code, stdout, stderr := execute("check", "-effective", file); code != 0 || !strings.Contains(stdout, "drain_timeout: ") || zeroDefault.MatchString(stdout) {
			t.Errorf("%s -effective: exit %d\n%s%s", file, code, stdout, stderr)
		}
	}
}

// zeroDefault finds a value of 0 that stands for a default.
var zeroDefault = regexp.MustCompile(`(?m)^ *(loops|max_queue|max_idle|max_sessions_per_peer): 0$`)

// TestConfigurationsInDocuments takes every YAML block of the documentation, as people will copy it, but for those that are indented: they
// are parts of others.
func TestConfigurationsInDocuments(t *testing.T) {
	docs, err := filepath.Glob("../../../docs/*.md")
	if err != nil || len(docs) < 5 {
		t.Fatalf("documents: %v, %v", docs, err)
	}
	dir := t.TempDir()
	for _, doc := range append(docs, "../../../README.md") {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range yamlBlock.FindAllSubmatch(text, -1) {
			if block[1][0] == ' ' {
				continue
			}
			file := filepath.Join(dir, fmt.Sprintf("%s-%d.yaml", filepath.Base(doc), i+1))
			if err := os.WriteFile(file, block[1], 0o600); err != nil {
				t.Fatal(err)
			}
			if code, _, stderr := execute("check", file); code != 0 {
				t.Errorf("%s, block %d:\n%s\n%s", doc, i+1, stderr, block[1])
			}
		}
	}
}

var yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.+?)^```[ \t]*$")
