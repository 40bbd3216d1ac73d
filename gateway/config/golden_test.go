package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headpond/headpond/gateway/config"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the golden files; commit only the changes you understand")

// TestGolden parses every testdata/*.yaml and compares the output of `headpond check`, and for accepted files the
// effective configuration, with the golden file beside it.
func TestGolden(t *testing.T) {
	t.Setenv("HEADPOND_TEST_USER", "app")
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // no pod
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no test files: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			cfg, problems := config.Load(file)
			got := problems.String()
			if cfg != nil {
				effective, err := cfg.YAML()
				if err != nil {
					t.Fatal(err)
				}
				got += string(effective)
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".golden", got)
		})
	}
}

func compareGolden(t *testing.T, golden, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -rewrite to accept):\n--- got\n%s--- want\n%s", golden, got, want)
	}
}
