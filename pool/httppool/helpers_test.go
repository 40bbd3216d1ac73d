package httppool_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/pool/httppool"
)

func TestMain(m *testing.M) { leaktest.Main(enginetest.Runner(m)) }

const patience = conntest.Patience

// rawServer gives each connection, with its number from 1, to a function.
type rawServer struct {
	url   string
	conns atomic.Int64
}

func serveRaw(t testing.TB, f func(n int64, c net.Conn, br *bufio.Reader)) *rawServer {
	t.Helper()
	s := &rawServer{}
	s.url = "http://" + conntest.Serve(t, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Now().Add(patience))
		f(s.conns.Add(1), c, bufio.NewReader(c))
	})
	return s
}

// serveAnswers reads requests whole and answers each with answer(connection, request on it), until that is "" or
// ends in "<close>".
func serveAnswers(t testing.TB, answer func(conn int64, request int) string) *rawServer {
	t.Helper()
	return serveRaw(t, func(n int64, c net.Conn, br *bufio.Reader) {
		for i := 1; ; i++ {
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			text, closes := strings.CutSuffix(answer(n, i), "<close>")
			_, _ = io.WriteString(c, text)
			if closes || text == "" {
				return
			}
		}
	})
}

func newTransport(t testing.TB, cfg httppool.Config) *httppool.Transport {
	t.Helper()
	tr, err := httppool.NewTransport(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func newRequest(t testing.TB, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// exchange does one request and returns the response with its body read, and the error of either.
func exchange(tr *httppool.Transport, req *http.Request) (*http.Response, string, error) {
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func wantBody(t *testing.T, tr *httppool.Transport, req *http.Request, want string) *http.Response {
	t.Helper()
	resp, body, err := exchange(tr, req)
	if err != nil {
		t.Fatal(err)
	}
	if body != want {
		t.Fatalf("body is %q, want %q", body, want)
	}
	return resp
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("the error is %v, want %v", err, want)
	}
	var e *httppool.Error
	if !errors.As(err, &e) {
		t.Fatalf("the error %v is no *httppool.Error", err)
	}
}

func wait(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
}
