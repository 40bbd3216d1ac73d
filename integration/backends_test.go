package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/pgtest"
)

// httpBackend is a real HTTP server.
//
//	GET  /          "ok"
//	POST /upload    reads the body, answers its length
//	GET  /bytes/N   N bytes
//	GET  /hold      sends the header and one byte, the rest after release
//	GET  /wait      answers after release
//	GET  /never     does not answer
type httpBackend struct {
	*httptest.Server
	holding chan struct{} // one value for each request that has begun to hold
	release func()        // lets all holding requests finish
}

func startHTTP(t testing.TB) *httpBackend {
	t.Helper()
	released := make(chan struct{})
	b := &httpBackend{holding: make(chan struct{}, 100), release: sync.OnceFunc(func() { close(released) })}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			_, _ = fmt.Fprint(w, n)
		}
	})
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(r.PathValue("n"), 10, 64)
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		_, _ = io.CopyN(w, zeros{}, n)
	})
	hold := func(w http.ResponseWriter, r *http.Request) {
		b.holding <- struct{}{}
		select {
		case <-released:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, "released\n")
	}
	mux.HandleFunc("GET /wait", hold)
	mux.HandleFunc("GET /never", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("GET /hold", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "x")
		_ = http.NewResponseController(w).Flush()
		hold(w, r)
	})
	b.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		b.release()
		b.CloseClientConnections()
		b.Close()
	})
	return b
}

// cut closes the server's connections, including those in the middle of a response.
func (b *httpBackend) cut() { b.CloseClientConnections() }

// awaitHold waits until a request holds.
func (b *httpBackend) awaitHold(t testing.TB) {
	t.Helper()
	select {
	case <-b.holding:
	case <-time.After(patience):
		t.Fatalf("no request has come within %s", patience)
	}
}

// addr returns the server's "host:port".
func (b *httpBackend) addr() string { return b.Listener.Addr().String() }

// zeros is an endless source of zero bytes.
type zeros struct{}

// Read implements io.Reader.
func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// startEcho starts a TCP echo server. It returns its address and a function that closes it with all
// its connections.
func startEcho(t testing.TB) (addr string, kill func()) {
	t.Helper()
	return conntest.ServeAt(t, "127.0.0.1:0", conntest.Echo)
}

// program returns the path of a PostgreSQL client program of the tested server's version.
func program(t testing.TB, name string) string {
	t.Helper()
	return pgtest.Shared(t).Bin(name)
}
