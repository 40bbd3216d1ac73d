package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// idlePipes returns the descriptors of pipes that the gateway keeps for later splices. They belong to no session.
func idlePipes(g *gateway) float64 {
	folder := fmt.Sprintf("/proc/%d/fd", g.Cmd.Process.Pid)
	files, _ := os.ReadDir(folder)
	n := 0
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(folder, f.Name())); err == nil && strings.HasPrefix(to, "pipe:") {
			n++
		}
	}
	return float64(min(n, 2*keptPipes)) // more would be a leak
}

// keptPipes is the most pipes that the gateway keeps for later splices.
const keptPipes = 8

// checkMemory fails the test if the gateway ever used more than maxRSS.
func checkMemory(t *testing.T, g *gateway) {
	t.Helper()
	used := memory(t, g, "VmHWM:")
	t.Logf("peak memory %d MiB", used>>20)
	if used > maxRSS {
		t.Errorf("the gateway used %d MiB at its peak, the limit is %d MiB", used>>20, maxRSS>>20)
	}
}

// residentMemory returns the gateway's present memory.
func residentMemory(t *testing.T, g *gateway) int64 {
	t.Helper()
	return memory(t, g, "VmRSS:")
}

// memory returns a figure of the gateway's memory, in bytes.
func memory(t *testing.T, g *gateway, field string) int64 {
	t.Helper()
	status := readFile(t, fmt.Sprintf("/proc/%d/status", g.Cmd.Process.Pid))
	_, rest, _ := strings.Cut(status, field)
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		t.Fatalf("no %s in %s: %v", field, status, err)
	}
	return kib << 10
}
