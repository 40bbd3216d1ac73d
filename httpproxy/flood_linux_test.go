package httpproxy_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestGoneBeforeAccept: clients that leave while they wait to be accepted, also by a reset after a request, cost no
// request to a backend. The next one is answered.
func TestGoneBeforeAccept(t *testing.T) {
	var reached atomic.Int64
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { reached.Add(1); io.WriteString(w, "hello") })
	var room listener.Room
	room.Resize(1)
	p := startProxy(t, httpproxy.Config{Listener: listener.Config{Room: &room}, Routes: []httpproxy.Route{{Path: "/", Upstream: newUpstream(t, backend)}}})
	const request = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
	first := conntest.Dial(t, p.addr)
	_, _ = io.WriteString(first, request)
	conntest.Want(t, first, "HTTP/1.1 200")
	const n = 90
	for i := range n {
		c := conntest.Dial(t, p.addr)
		switch i % 3 {
		case 0:
			_, _ = io.WriteString(c, request)
			_ = c.SetLinger(0)
		case 1:
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
	eventually(t, "the ends of the clients", func() bool { return conntest.Established(t, p.addr) == 1 })
	room.Resize(0)
	last := conntest.Dial(t, p.addr)
	_, _ = io.WriteString(last, request)
	conntest.Want(t, last, "HTTP/1.1 200")
	if st := p.Stats(); reached.Load() != 2 || st.Gone != n || st.Errors[listener.ReasonClientGone] != n || st.Rejected != 0 {
		t.Errorf("%d requests have reached the backend, %d clients are gone, errors %v; want 2 and %d", reached.Load(), st.Gone, st.Errors, n)
	}
}
