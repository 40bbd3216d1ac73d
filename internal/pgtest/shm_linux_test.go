package pgtest_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/pgtest"
)

// TestNothingStaysInSharedMemory: servers that ended with their tests, also those that a test has killed, leave no System V segment, of
// which a system has room for 4096, and nothing in /dev/shm.
func TestNothingStaysInSharedMemory(t *testing.T) {
	for name, kill := range map[string]bool{"running": false, "killed": true} {
		var key, id string
		t.Run(name, func(t *testing.T) {
			c := pgtest.Start(t)
			var kind string
			if err := c.Connect(t).QueryRow(t.Context(), "show dynamic_shared_memory_type").Scan(&kind); err != nil || kind != "mmap" {
				t.Errorf("dynamic shared memory is %q, %v, want files of the data directory", kind, err)
			}
			pid, err := os.ReadFile(filepath.Join(c.SocketDir(), "postmaster.pid"))
			if err != nil {
				t.Fatal(err)
			}
			segment := strings.Fields(strings.Split(string(pid), "\n")[6])
			if key, id = segment[0], segment[1]; !hasSegment(t, key, id) {
				t.Fatalf("a server that runs has no segment %s", id)
			}
			if kill {
				c.Kill(t)
			}
		})
		if hasSegment(t, key, id) {
			t.Errorf("%s: segment %s is left", name, id)
		}
	}
}

// hasSegment looks into the system's table of segments, whose first columns are the key and the id.
func hasSegment(t *testing.T, key, id string) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(strings.Split(string(table), "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 2 && f[0] == key && f[1] == id
	})
}
