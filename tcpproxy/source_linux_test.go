package tcpproxy_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// established counts the connections to an address of 127.0.0.1 whose other end has sent neither FIN nor reset, by the
// kernel's tables.
func established(t *testing.T, addr string) (n int) {
	t.Helper()
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	local := fmt.Sprintf("0100007F:%04X", netip.MustParseAddrPort(addr).Port())
	for line := range strings.Lines(string(table)) {
		const isEstablished = "01"
		if f := strings.Fields(line); len(f) > 3 && f[1] == local && f[3] == isEstablished {
			n++
		}
	}
	return n
}

// TestGoneWhileQueued: connections that died in the queue never reach a backend; one that was half closed after a request does.
func TestGoneWhileQueued(t *testing.T) {
	p, addr, reached := counted(t, func(c *listener.Config) { c.MaxConns, c.QueueTimeout = 1, conntest.Patience })
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	queued := make([]*net.TCPConn, 9)
	for i := range queued {
		queued[i] = conntest.Dial(t, addr)
		conntest.Eventually(t, "the queue", func() bool { return p.Stats().Queued == i+1 })
	}
	waits := queued[4]
	for i, c := range queued {
		switch {
		case c == waits:
			_, _ = io.WriteString(c, "still here")
			_ = c.CloseWrite()
		case i%3 == 0: // a reset behind bytes
			_, _ = io.WriteString(c, "bytes")
			_ = c.SetLinger(0)
			_ = c.Close()
		case i%3 == 1:
			_ = c.SetLinger(0)
			_ = c.Close()
		default:
			_ = c.Close()
		}
	}
	conntest.Eventually(t, "the ends of the clients", func() bool { return established(t, addr) == 1 })
	first.Close()
	conntest.Want(t, waits, "still here")
	_ = waits.Close()
	conntest.Eventually(t, "an empty queue", func() bool { st := p.Stats(); return st.Queued == 0 && st.Active == 0 })
	p.Close()
	st := p.Stats()
	if st.Errors[listener.ReasonClientGone] != uint64(len(queued)-1) || reached.Load() != 2 || st.Rejected != uint64(len(queued)-1) {
		t.Errorf("errors %v, rejected %d, %d reached the backend; want 8 gone, 8 rejected and 2 there", st.Errors, st.Rejected, reached.Load())
	}
}
