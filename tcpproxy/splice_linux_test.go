package tcpproxy_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestSpliced looks at the bytes this process has read with read(2), which a
// splice does not count: the client's end reads all, the proxy should add
// little to it.
func TestSpliced(t *testing.T) {
	const size = 64 << 20
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = c.Write(make([]byte, size))
	})
	p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
	c := conntest.Dial(t, addr)
	before := bytesRead(t)
	n, err := io.Copy(io.Discard, struct{ io.Reader }{c})
	if err != nil || n != size {
		t.Fatal(n, err)
	}
	copied := bytesRead(t) - before - size
	t.Logf("of %d bytes %d went through splice, %d were read by the proxy", size, p.Spliced(), copied)
	if p.Spliced() < size/2 || copied > size/2 {
		t.Errorf("spliced %d, read %d of %d bytes: want most of them to be spliced", p.Spliced(), copied, size)
	}
}

func bytesRead(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.TrimPrefix(string(b), "rchar: "), "%d", &n); err != nil {
		t.Fatal(err)
	}
	return n
}
