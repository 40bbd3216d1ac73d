package integration

import (
	"fmt"
	"strings"
	"testing"
)

// checkMemory fails the test when the gateway ever used more than maxRSS.
func checkMemory(t *testing.T, g *gateway) {
	t.Helper()
	used := memory(t, g, "VmHWM:")
	t.Logf("peak memory %d MiB", used>>20)
	if used > maxRSS {
		t.Errorf("the gateway used %d MiB at its peak, the limit is %d MiB", used>>20, maxRSS>>20)
	}
}

// residentMemory is what the gateway uses now.
func residentMemory(t *testing.T, g *gateway) int64 {
	t.Helper()
	return memory(t, g, "VmRSS:")
}

// memory is a figure of the gateway's, in bytes.
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
