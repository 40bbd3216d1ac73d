package pgtest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestAbandonedClustersAreRemoved: what a killed test binary has left goes, and nothing else.
func TestAbandonedClustersAreRemoved(t *testing.T) {
	dir, hourAgo := t.TempDir(), time.Now().Add(-time.Hour)
	for name, made := range map[string]time.Time{
		"hp-pg-abandoned": hourAgo, "hp-pg-held": hourAgo, "hp-pg-young": time.Now(), "headpond-pgtest-template": hourAgo,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, made, made); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := hold(filepath.Join(dir, "hp-pg-held"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	removeAbandoned(dir)
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"headpond-pgtest-template", "hp-pg-held", "hp-pg-young"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("left are %q, %v, want %q", left, err, want)
	}
}
