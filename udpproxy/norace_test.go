//go:build !race

package udpproxy_test // the race detector makes pools forget

import (
	"net"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/udpproxy"
)

// TestForwardingAllocatesNothing: a datagram of a session that runs costs no memory.
func TestForwardingAllocatesNothing(t *testing.T) {
	deaf, err := net.ListenPacket("udp", "127.0.0.1:0") // a reader would allocate, too
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	p := run(t, "127.0.0.1:0", before(deaf.LocalAddr().String()), nil)
	c := client(t, p.address)
	for i := range uint64(udpproxy.MaxHeld + 1) {
		send(t, c, "x")
		conntest.Eventually(t, "it is not forwarded", func() bool { return p.Datagrams().Forwarded == i+1 })
	}
	if n := testing.AllocsPerRun(1000, p.listener.Replay(c.LocalAddr().String(), "x")); n > 0 {
		t.Errorf("%v allocations for each datagram", n)
	}
}
