package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/pool"
)

// TestUploadThenWait: a session whose request's body came after the head rests a second after the end of the body, not at its
// end, and its request is sent again as it was.
func TestUploadThenWait(t *testing.T) {
	for name, tc := range map[string]struct {
		restWay
		chunked bool
		size    int
		again   bool // the body is kept
	}{
		"kept":           {size: 40_000, again: true},
		"kept, chunked":  {chunked: true, size: 40_000, again: true},
		"large":          {size: 400_000},
		"large, chunked": {chunked: true, size: 400_000},
		"HTTP/2, small":  {restWay: restWay{http2: true}, size: 100, again: true},
		"HTTP/2, kept":   {restWay: restWay{http2: true}, chunked: true, size: 40_000, again: true},
		"HTTP/2, large":  {restWay: restWay{http2: true}, size: 400_000},
		"to h2c, kept":   {restWay: restWay{server: httpproxy.ProtocolH2C}, size: 40_000, again: true},
		"to h2c, large":  {restWay: restWay{server: httpproxy.ProtocolH2C}, chunked: true, size: 400_000},
		"both, small":    {restWay: restWay{http2: true, server: httpproxy.ProtocolH2C}, size: 100, again: true},
		"both, kept":     {restWay: restWay{http2: true, server: httpproxy.ProtocolH2C}, chunked: true, size: 40_000, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			asked, fail := make(chan string, 2), make(chan struct{}, 1)
			backend := tc.serve(t, pool.Limits{}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked <- string(body)
				if _, ok := <-fail; ok {
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, "ok")
			})
			cfg, client := tc.client(t, routeTo(backend))
			other := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
			cfg.Routes = append([]httpproxy.Route{{Path: "/other", Upstream: other}}, cfg.Routes...)
			p := startProxy(t, cfg)
			rest := rested(t, tc.restWay)
			began := time.Now()
			body := strings.Repeat("0123456789", tc.size/10)
			req, _ := http.NewRequest(http.MethodPut, p.url, struct{ io.Reader }{strings.NewReader(body)})
			if !tc.chunked {
				req.ContentLength = int64(tc.size)
			}
			answer := make(chan string, 1)
			go func() {
				resp, got := doWith(t, client, req)
				answer <- resp.Status + " " + got
			}()
			if got := <-asked; got != body {
				t.Errorf("the server got %d bytes, want %d", len(got), len(body))
			}
			rest()
			if took := time.Since(began); enginetest.Kind() != fiber.Goroutine && took < checkInterval {
				t.Errorf("the session rests %v after the beginning of its request", took)
			}
			for range 20 {
				get(t, p.url+"/other/"+strings.Repeat("z", 2000))
			}
			fail <- struct{}{}
			if tc.again {
				if got := <-asked; got != body {
					t.Errorf("the server got %d bytes again, want %d", len(got), len(body))
				}
				close(fail)
			}
			want := "200 OK ok"
			if !tc.again {
				want = "502 Bad Gateway"
			}
			if got := <-answer; !strings.HasPrefix(got, want) {
				t.Errorf("the client gets %q, want %q", got, want)
			}
		})
	}
}

// TestQueuedAgain: a request that waits long for a connection, because its first one failed in the middle of its body, is sent
// with its body in order.
func TestQueuedAgain(t *testing.T) {
	for name, way := range restWays {
		if way.server == "" {
			continue // over HTTP/1.1, net/http reads the body before it fails
		}
		t.Run(name, func(t *testing.T) {
			const part = 1000
			asked, read, fail, second := make(chan string, 2), make(chan struct{}), make(chan struct{}), make(chan string, 1)
			tries := 0 // of the upload; one at a time
			u := way.serve(t, pool.Limits{MaxSize: 1, AcquireTimeout: patience}, func(_ http.ResponseWriter, r *http.Request) {
				asked <- r.URL.Path
				if tries++; tries == 1 {
					_, _ = io.ReadFull(r.Body, make([]byte, part))
					close(read)
					<-fail
					panic(http.ErrAbortHandler)
				}
				if r.URL.Path == "/between" {
					<-fail
					return
				}
				body, _ := io.ReadAll(r.Body)
				second <- string(body)
			})
			cfg, client := way.client(t, routeTo(u))
			p := startProxy(t, cfg)
			from, to := io.Pipe()
			req, _ := http.NewRequest(http.MethodPut, p.url+"/upload", from)
			req.ContentLength = 3 * part
			var clients sync.WaitGroup
			defer clients.Wait()
			clients.Go(func() { doWith(t, client, req) })
			<-asked // so that the body comes behind the head
			_, _ = io.WriteString(to, strings.Repeat("1", part))
			<-read
			clients.Go(func() {
				r, _ := http.NewRequest(http.MethodGet, p.url+"/between", nil)
				doWith(t, client, r)
			})
			waiting := func() bool { return u.Status().Endpoints[0].Pool.Waiting == 1 }
			eventually(t, "the other request waits, for longer than others may overtake it", func() bool {
				return waiting() && u.Status().Endpoints[0].Pool.OldestWait > 10*time.Millisecond
			})
			fail <- struct{}{}
			if got := <-asked; got != "/between" {
				t.Errorf("the server is asked for %s", got)
				close(fail)
				_ = to.CloseWithError(io.ErrUnexpectedEOF) // or the clients are waited for in vain
				return
			}
			eventually(t, "the upload waits", waiting)
			_, _ = io.WriteString(to, strings.Repeat("2", part))
			eventually(t, "little is held", func() bool { return p.Stats().Buffered < 42<<10 })
			_, _ = io.WriteString(to, strings.Repeat("3", part))
			_ = to.Close()
			fail <- struct{}{}
			if got := <-second; got != strings.Repeat("1", part)+strings.Repeat("2", part)+strings.Repeat("3", part) {
				t.Errorf("the server got %d bytes: %.20q … %q", len(got), got, got[max(len(got)-20, 0):])
			}
		})
	}
}
