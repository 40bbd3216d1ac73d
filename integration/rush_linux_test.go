package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestMemoryAfterARush: requests that all wait at once make the gateway grow, and soon after them it is as large as before. The limits are
// wide: what remains is code and the runtime's own tables. It measures the released binary, as the race detector multiplies memory.
func TestMemoryAfterARush(t *testing.T) {
	const clients, grown, left = 3000, 10 << 20, 8 << 20 // a program that has just started may be larger before than later
	var asked atomic.Int64
	release := make(chan struct{})
	answer := sync.OnceFunc(func() { close(release) })
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		<-release
	}))
	defer backend.Close()
	defer answer()
	listen := address(t)
	g := startGateway(t, httpConfig(listen, fmt.Sprintf("max_size: %d", clients), backend.Listener.Addr().String()), plain)
	before := residentMemory(t, g)
	var conns []net.Conn
	for range clients {
		c, err := net.Dial("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	eventually(t, "all requests wait", func() error {
		if n := asked.Load(); n != clients {
			return fmt.Errorf("%d of %d", n, clients)
		}
		return nil
	})
	peak := residentMemory(t, g)
	answer()
	for _, c := range conns {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", resp, err)
		}
		_ = c.Close()
	}
	if peak < before+grown {
		t.Errorf("the requests took %d MiB: too little to see whether it is given back", (peak-before)>>20)
	}
	after := residentMemory(t, g)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(4 * patience); after > before+left && time.Now().Before(deadline); after = residentMemory(t, g) {
		<-tick.C
	}
	t.Logf("%d MiB before, %d at the peak, %d after", before>>20, peak>>20, after>>20)
	if after > before+left {
		t.Errorf("%d MiB before, %d at the peak, and still %d", before>>20, peak>>20, after>>20)
	}
}
