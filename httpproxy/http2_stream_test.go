package httpproxy_test

import (
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool/httppool"
)

// TestHTTP2ResetJustBeforeUse: a stream that was reset while its server's connection was being leased gives that back, and must not
// close it at its own end, when others use it.
func TestHTTP2ResetJustBeforeUse(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c, err := httppool.NewConn(t.Context(), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if httpproxy.HeldAfterReset(c) {
		t.Error("the stream still closes the connection")
	}
}

// TestHTTP2HangUpWhileConnectionsMove: clients of several loops share connections to the server, which move to the loop of who leases
// them; a client that goes away meanwhile must not get at one that is on its way.
func TestHTTP2HangUpWhileConnectionsMove(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))))
	ask := h2Frames(func(fr *http2.Framer, fields func(...string) []byte) {
		_ = fr.WriteSettings()
		for id := uint32(1); id < 9; id += 2 {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fields(plainGet...), EndStream: id%4 == 1, EndHeaders: true})
		}
	})
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for range 400 {
				c, err := net.Dial("tcp", p.addr)
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(patience))
				_, _ = c.Write(append([]byte(http2.ClientPreface), ask...))
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		})
	}
	clients.Wait()
	if n := p.Stats().Errors["internal"]; n > 0 {
		t.Errorf("%d sessions panicked", n)
	}
}

// TestHTTP2SendingForOthers: who sends what has come together for a client is not kept at it for as long as others have something to
// send; it may have a connection to give back, or an upload to go on with.
func TestHTTP2SendingForOthers(t *testing.T) {
	returned := make(chan struct{})
	kept := false
	err := httpproxy.FlushAmongOthers(1000, func(i int) {
		if i != 100 {
			return
		}
		select {
		case <-returned:
		case <-time.After(patience):
			kept = true
		}
	}, func() { close(returned) })
	if err != nil || kept {
		t.Errorf("%v, kept: %t", err, kept)
	}
}
