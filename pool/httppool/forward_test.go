package httppool_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/httppool"
)

func TestHandlerConfig(t *testing.T) {
	for _, cfg := range []httppool.HandlerConfig{
		{}, {Target: "127.0.0.1:80"}, {Target: "ftp://a"}, {Target: "http://"}, {Target: "http://a?q"}, {Target: "http://u:p@a"}, {Target: "http://u:p@a:b"},
		{Target: "http://a", Via: "a b"}, {Target: "http://a", RequestID: "a:"}, {Transport: newTransport(t, httppool.Config{})},
	} {
		if _, err := httppool.NewHandler(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		} else if strings.Contains(err.Error(), "u:p") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

// serveForward starts a net/http server with a Handler before backend.
func serveForward(t *testing.T, cfg httppool.HandlerConfig) string {
	t.Helper()
	h, err := httppool.NewHandler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.Close(); h.Close(); http.DefaultClient.CloseIdleConnections() })
	return s.URL
}

// TestTargetBaseAndHost puts the target's path before the request's, and its host in the place of the client's.
func TestTargetBaseAndHost(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Host+" "+r.RequestURI)
	}))
	defer backend.Close()
	host := strings.TrimPrefix(backend.URL, "http://")
	url := serveForward(t, httppool.HandlerConfig{Target: backend.URL + "/base/", StripPrefix: "/api/", TargetHost: true})
	for path, want := range map[string]string{
		"/api/x?q=1": "/base/x?q=1", "/api": "/base/", "/api/a%2Fb": "/base/a%2Fb", "/api/%20": "/base/%20",
	} {
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) != host+" "+want {
			t.Errorf("%s became %q, want %q", path, body, want)
		}
	}
}

// TestRequestTimeout bounds the whole request: 504 before the head, a broken body after it.
func TestRequestTimeout(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			_, _ = io.WriteString(w, "part")
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}))
	defer backend.Close()
	results := make(chan httppool.Result, 1)
	within := func(limit time.Duration) (url string) {
		return serveForward(t, httppool.HandlerConfig{Target: backend.URL, Timeout: limit, OnDone: func(_ *http.Request, res httppool.Result) { results <- res }})
	}
	resp, err := http.Get(within(50 * time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("got %s", resp.Status)
	}
	wantError(t, (<-results).Err, context.DeadlineExceeded)
	for limit := 500 * time.Millisecond; ; limit *= 5 {
		if resp, err = http.Get(within(limit) + "/body"); err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusGatewayTimeout || limit > patience {
			break
		}
		<-results // a busy machine needs longer for the head
	}
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("a clean end after %q", body)
	}
	if res := <-results; res.Status != 200 || res.BytesOut != 4 || res.Err == nil {
		t.Errorf("the result is %+v", res)
	}
}

// TestHandlerWithoutAServer works with any ResponseWriter.
func TestHandlerWithoutAServer(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	h, err := httppool.Forward(s.url)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader("body")))
	if w.Code != 200 || w.Body.String() != "hi" {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
}

// TestServerThatDoesNotAnswerIsNoFullPool: a caller that gives up while a connection is being opened gets neither the
// error of a full pool nor that of an earlier open.
func TestServerThatDoesNotAnswerIsNoFullPool(t *testing.T) {
	for _, before := range []error{nil, syscall.ECONNREFUSED} {
		w := httptest.NewRecorder()
		err := &pool.Error{Kind: pool.ErrTimeout, Opening: 1, MaxSize: 2, LastOpenError: before}
		status, _ := httppool.WriteFailure(w, httptest.NewRequest("GET", "/", nil), err, httppool.Failure{Upstream: "api"})
		if body := w.Body.String(); status != 502 || !strings.HasSuffix(body, `"api": cannot connect: it does not answer in time`+"\n") {
			t.Errorf("after %v: %d %q", before, status, body)
		}
	}
}

// TestAnswersTellWhyThereIsNoConnection, in words without addresses: those are for the log.
func TestAnswersTellWhyThereIsNoConnection(t *testing.T) {
	for want, cause := range map[string]error{
		"cannot connect: its name cannot be resolved":     &net.DNSError{Name: "secret.internal", Err: "no such host"},
		"cannot connect: its certificate is not accepted": &tls.CertificateVerificationError{Err: errors.New("x509: unknown authority")},
		"cannot connect: it does not answer in TLS":       tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"},
		"connection refused":                              syscall.ECONNREFUSED,
		"cannot connect":                                  errors.New("secret.internal: whatever"),
	} {
		w := httptest.NewRecorder()
		err := &pool.Error{Kind: pool.ErrOpen, Cause: fmt.Errorf("TLS handshake: %w", cause)}
		status, _ := httppool.WriteFailure(w, httptest.NewRequest("GET", "/", nil), err, httppool.Failure{Upstream: "api"})
		if body := w.Body.String(); status != 502 || !strings.HasSuffix(body, `"api": `+want+"\n") || strings.Contains(body, "secret") {
			t.Errorf("%v: %d %q, want %q", cause, status, body, want)
		}
	}
}

// TestForwardedUpgrades: any request without a body may change the protocol, but not to one that carries requests.
func TestForwardedUpgrades(t *testing.T) {
	s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if to := r.Header.Get("Upgrade"); to != "" {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+to+"\r\n\r\n")
			return
		}
		_, _ = io.WriteString(c, ok)
	})
	url := serveForward(t, httppool.HandlerConfig{Target: s.url})
	for _, tc := range []struct {
		method, to, body string
		status           int
	}{
		{"GET", "websocket", "", 101}, {"POST", "SPDY/3.1", "", 101}, {"POST", "tcp", "body", 200}, {"GET", "h2c", "", 200}, {"GET", "H2-17", "", 200},
	} {
		req := newRequest(t, tc.method, url, strings.NewReader(tc.body))
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {tc.to}}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != tc.status {
			t.Errorf("%+v is answered %s", tc, resp.Status)
		}
	}
}

// TestRefusedUpgradeEndsTheConnection: what the client may have sent for the new protocol is not read as a request.
func TestRefusedUpgradeEndsTheConnection(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	c, err := net.Dial("tcp", strings.TrimPrefix(serveForward(t, httppool.HandlerConfig{Target: s.url}), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nGET /new-protocol HTTP/1.1\r\nHost: a\r\n\r\n")
	all, _ := io.ReadAll(c)
	if n := strings.Count(string(all), "HTTP/1.1 200"); n != 1 {
		t.Errorf("%d answers: %q", n, all)
	}
}

// TestDotSegments: a server would resolve them, and serve what is outside of the target's base.
func TestDotSegments(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string { return ok })
	h, err := httppool.NewHandler(httppool.HandlerConfig{Target: s.url + "/base", StripPrefix: "/api"})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for path, want := range map[string]int{"/api/..a/.b": 200, "/api/../secret": 400, "/api/a/%2e%2E/..;x/secret": 400, `/api/..\secret`: 400, "/api/.": 400} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != want {
			t.Errorf("%s is answered %d, want %d", path, w.Code, want)
		}
	}
}
