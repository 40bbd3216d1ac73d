package conntest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
)

// Established counts the connections to an address of 127.0.0.1 whose other end has sent neither FIN nor reset, by the
// kernel's tables. Those that wait to be accepted count, too.
func Established(t testing.TB, addr string) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	local := fmt.Sprintf("0100007F:%04X", netip.MustParseAddrPort(addr).Port())
	for line := range strings.Lines(string(table)) {
		const isEstablished = "01"
		if !strings.Contains(line, local) { // most lines; a busy machine has tens of thousands
			continue
		}
		if f := strings.Fields(line); len(f) > 3 && f[1] == local && f[3] == isEstablished {
			n++
		}
	}
	return n
}
