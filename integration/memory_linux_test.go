package integration

import (
	"fmt"
	"strings"
	"testing"
)

// checkMemory fails the test when the gateway ever used more than maxRSS.
func checkMemory(t *testing.T, g *gateway) {
	t.Helper()
	status := readFile(t, fmt.Sprintf("/proc/%d/status", g.cmd.Process.Pid))
	_, rest, _ := strings.Cut(status, "VmHWM:")
	var kib int64
	if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
		t.Fatalf("no VmHWM in %s: %v", status, err)
	}
	t.Logf("peak memory %d MiB", kib>>10)
	if kib<<10 > maxRSS {
		t.Errorf("the gateway used %d MiB at its peak, the limit is %d MiB", kib>>10, maxRSS>>20)
	}
}
