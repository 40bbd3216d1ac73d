package httpproxy_test

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// TestClientGoneWhileWaiting: a waiting request leaves the queue when its client disconnects, or resets the stream.
func TestClientGoneWhileWaiting(t *testing.T) {
	asked := make(chan struct{}, 1)
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	one := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MaxSize: 1, AcquireTimeout: 100 * suspendAfter}}}, backend)
	plain := startProxy(t, routeTo(one))
	cfg := routeTo(one)
	server, client := certificates(t)
	cfg.TLS = server
	secure := startProxy(t, cfg)
	holder, _ := dialRaw(t, plain.addr)
	if _, err := io.WriteString(holder, getRoot); err != nil {
		t.Fatal(err)
	}
	<-asked
	had := uint64(0)
	for name, ask := range map[string]func(t *testing.T) (leave func()){
		"HTTP/1.1": func(t *testing.T) func() {
			c, _ := dialRaw(t, plain.addr)
			_, _ = io.WriteString(c, getRoot)
			return func() { _ = c.Close() }
		},
		"HTTP/1.1 over TLS": func(t *testing.T) func() {
			c, _ := dialRaw(t, secure.addr)
			tc := tls.Client(c, client)
			_, _ = io.WriteString(tc, getRoot)
			return func() { _ = tc.Close() }
		},
		"stream": func(t *testing.T) func() {
			h := dialH2(t, plain.addr)
			h.ask(1, true, plainGet...)
			return func() { h.do(0, h.WriteRSTStream(1, http2.ErrCodeCancel)) }
		},
		"HTTP/2": func(t *testing.T) func() {
			h := dialH2(t, plain.addr)
			h.ask(1, true, plainGet...)
			return func() { _ = h.c.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			leave := ask(t)
			stats := func() pool.Stats { return one.Status().Endpoints[0].Pool }
			eventually(t, "it waits", func() bool { return stats().Waiting == 1 })
			leave()
			had++
			eventually(t, "it does not wait any more", func() bool { return stats().Waiting == 0 && stats().Canceled == had })
		})
	}
}
