package cli

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// TestAPIKey: stdout is a line for the file, and stderr the key that the line is of.
func TestAPIKey(t *testing.T) {
	code, line, key := execute("apikey", "ann")
	key = strings.TrimSpace(key)
	if want := fmt.Sprintf("ann:%x\n", sha256.Sum256([]byte(key))); code != exitOK || line != want || len(key) != len("hp_")+43 {
		t.Errorf("exit code %d, key %q, line %q, want %q", code, key, line, want)
	}
	if _, again, _ := execute("apikey", "ann"); again == line {
		t.Error("the same key twice")
	}
	for _, args := range [][]string{{"apikey"}, {"apikey", "a:b"}, {"apikey", ""}, {"apikey", "a", "b"}} {
		if code, stdout, stderr := execute(args...); code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "headpond apikey: ") {
			t.Errorf("%q: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}
