package httpproxy_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// lateConn is a client's connection on which a Read notices the deadline only when there is data, as on a machine that stood
// still meanwhile.
type lateConn struct {
	*net.TCPConn
	late *atomic.Bool // the next Read does so
}

func (c lateConn) Read(p []byte) (int, error) {
	if !c.late.Swap(false) {
		return c.TCPConn.Read(p)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	if err := raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return !errors.Is(err, syscall.EAGAIN)
	}); err != nil {
		return 0, err
	}
	return 0, os.ErrDeadlineExceeded
}

// lateConns is a listener of such connections.
type lateConns struct {
	net.Listener
	late *atomic.Bool
}

func (l lateConns) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return lateConn{c.(*net.TCPConn), l.late}, nil
}

// TestRequestsBeforeALateDeadline are served: a client that has sent its request in time gets an answer, also if the proxy stood
// still until after the deadline.
func TestRequestsBeforeALateDeadline(t *testing.T) {
	var late atomic.Bool
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		if late.Swap(true) { // for the next request
			t.Error("a request whose Read has not noticed a deadline")
		}
		_, _ = io.WriteString(w, "ok")
	})
	p, err := httpproxy.New(routeTo(newUpstream(t, backend)))
	if err != nil {
		t.Fatal(err)
	}
	addr := conntest.Run(t, lateConns{conntest.Listen(t), &late}, p.Serve, func() { _ = p.Drain(context.Background()) })
	late.Store(true)
	client := clientFor(t, "HTTP/1.1")
	for _, which := range []string{"first", "next"} {
		resp, err := client.Post("http://"+addr, "text/plain", http.NoBody) // net/http does not send it again
		if err != nil {
			t.Fatalf("the %s request: %v", which, err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "ok" {
			t.Errorf("the %s request: %q, %v", which, body, err)
		}
		_ = resp.Body.Close()
	}
	client.CloseIdleConnections()
}
