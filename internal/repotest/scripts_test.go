package repotest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptsCleanUp checks that a script that removes something when it ends also does so after a signal, be it the end of its
// terminal: dash does not run a trap of EXIT then.
func TestScriptsCleanUp(t *testing.T) {
	scripts, err := filepath.Glob(filepath.Join(root(t), "scripts", "*.sh"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	traps := 0
	for _, file := range scripts {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for i, line := range lines[:len(lines)-1] {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "trap ") || !strings.HasSuffix(line, " EXIT") {
				continue
			}
			traps++
			if next := strings.TrimSpace(lines[i+1]); next != "trap 'exit 1' HUP INT TERM" {
				t.Errorf("%s:%d: after a trap of EXIT, want the line trap 'exit 1' HUP INT TERM", file, i+1)
			}
		}
	}
	if traps == 0 {
		t.Error("no script has a trap")
	}
}
