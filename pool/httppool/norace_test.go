//go:build !race

package httppool_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool/httppool"
)

// TestAllocations of a small request. Two of them are the Response's header, one the head's bytes, one their strings, and one
// all the rest. The race detector lets pools forget, so that it cannot be counted there.
func TestAllocations(t *testing.T) {
	const most = 6
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Length: 128\r\nDate: Sat, 21 Nov 2026 00:00:00 GMT\r\n\r\n" + strings.Repeat("x", 128))
	address := conntest.Serve(t, func(c *net.TCPConn) {
		for buf := make([]byte, 4<<10); ; { // the request comes in one piece
			if _, err := c.Read(buf); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
	tr := newTransport(t, httppool.Config{})
	req, buf := newRequest(t, http.MethodGet, "http://"+address, nil), make([]byte, 4<<10)
	if n := testing.AllocsPerRun(1000, func() {
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if n, _ := io.ReadFull(resp.Body, buf); n != 128 {
			t.Fatalf("%d bytes of body", n)
		}
	}); n > most {
		t.Errorf("%v allocations for each request", n)
	}
}
