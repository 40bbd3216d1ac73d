package httpproxy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
)

// TestPlainHTTPToATLSListener: plain HTTP is answered in plain HTTP, and the log says what it was.
func TestPlainHTTPToATLSListener(t *testing.T) {
	server, client := certificates(t)
	var log conntest.Log
	cfg := httpproxy.Config{TLS: server, Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))}}}
	cfg.Listener.Logger = log.Logger()
	p := startProxy(t, cfg)
	for _, request := range []string{getRoot, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 100000)} {
		c, br := dialRaw(t, p.addr)
		resp, body := roundTrip(t, c, br, request)
		if resp.StatusCode != 400 || !strings.Contains(body, "this port speaks TLS: use https://") || !resp.Close {
			t.Errorf("%.10q: %s %q", request, resp.Status, body)
		}
	}
	conntest.Eventually(t, "both are counted", func() bool { return p.Stats().Errors["tls"] == 2 })
	if got := log.String(); !strings.Contains(got, "HTTP without TLS") || !strings.Contains(got, "client=127.0.0.1:") {
		t.Errorf("the log says %q", got)
	}
	for _, other := range []string{"\x00\x00\x00\x08\x04\xd2\x16\x2f", "get / HTTP/1.1\r\n\r\n"} { // is no HTTP, and gets no HTTP
		c, br := dialRaw(t, p.addr)
		if _, err := io.WriteString(c, other); err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(br); strings.Contains(string(got), "HTTP/1.1") {
			t.Errorf("%q was answered %q", other, got)
		}
	}
	c, _ := dialRaw(t, p.addr)
	if err := tls.Client(c, client).Handshake(); err != nil {
		t.Errorf("a client with TLS: %v", err)
	}
}

// TestTLSFailureIsLoggedAsSuch: a client that refuses the certificate, in either version of TLS, one that breaks the handshake off, and
// one that sends no TLS after it.
func TestTLSFailureIsLoggedAsSuch(t *testing.T) {
	server, trusting := certificates(t)
	for _, tc := range []struct {
		name, want string
		client     func(t *testing.T, url, addr string)
	}{
		{"TLS 1.3, certificate refused", "remote error: tls: unknown certificate authority", func(t *testing.T, url, _ string) { curl(t, url) }},
		{"TLS 1.2, certificate refused", "remote error: tls: unknown certificate authority", func(t *testing.T, url, _ string) { curl(t, url, "--tls-max", "1.2") }},
		{"handshake broken off", "EOF", func(t *testing.T, _, addr string) {
			c := conntest.Dial(t, addr)
			_, _ = c.Write([]byte{0x16}) // one that has left without a byte is refused before a handshake
			_ = c.Close()
		}},
		{"no TLS behind the handshake", "tls: ", func(t *testing.T, _, addr string) {
			c := conntest.Dial(t, addr)
			if err := tls.Client(c, trusting).Handshake(); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, getRoot)
			_, _ = io.Copy(io.Discard, c)
		}},
		{"no TLS in a request", "tls: ", func(t *testing.T, _, addr string) {
			c := conntest.Dial(t, addr)
			if _, err := io.WriteString(tls.Client(c, trusting), "GET / HT"); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(c, "TP/1.1\r\n\r\n")
			_, _ = io.Copy(io.Discard, c)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log conntest.Log
			cfg := routeTo(newUpstream(t, "127.0.0.1:1"))
			cfg.TLS = server
			cfg.Listener.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
			p := startProxy(t, cfg)
			tc.client(t, p.url, p.addr)
			eventually(t, "the log says so", func() bool { return log.Line("TLS", tc.want) != "" })
			if e := p.Stats().Errors; e["tls"] != 1 || e["protocol"] != 0 {
				t.Errorf("the errors are %v", e)
			}
		})
	}
}

// curl requests url with a certificate that it does not trust.
func curl(t *testing.T, url string, args ...string) {
	t.Helper()
	const untrusted = 60 // its exit code
	out, err := exec.CommandContext(t.Context(), "curl", append(args, "-sS", url)...).CombinedOutput()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != untrusted {
		t.Fatalf("curl: %v\n%s", err, out)
	}
}

// TestTLSToAPlainListener shows in the log as what it is.
func TestTLSToAPlainListener(t *testing.T) {
	_, client := certificates(t)
	var log conntest.Log
	cfg := routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {})))
	cfg.Listener.Logger = log.Logger()
	p := startProxy(t, cfg)
	c, _ := dialRaw(t, p.addr)
	if err := tls.Client(c, client).Handshake(); err == nil {
		t.Error("a handshake without TLS at the other side")
	}
	conntest.Eventually(t, "the log says so", func() bool {
		return strings.Contains(log.String(), "TLS spoken to a listener without TLS") && strings.Contains(log.String(), "http://")
	})
	if n := p.Stats().Errors["tls"]; n != 1 {
		t.Errorf("%d errors are counted", n)
	}
}

// TestUnusualRequestsKeepTheirConnection: whatever a request asks for, the next one is read by the same rules: refused if
// it is ambiguous, else served. Only after a requested change of protocol nothing is a request.
func TestUnusualRequestsKeepTheirConnection(t *testing.T) {
	for name, first := range map[string]string{
		"HTTP/1.0":       "GET /1 HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
		"no host":        "GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"TE":             "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: gzip\r\n\r\n",
		"trailer":        "POST /1 HTTP/1.1\r\nHost: a\r\nTrailer: A\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n",
		"long head":      "GET /1 HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("a", 20000) + "\r\n\r\n",
		"long, body":     "POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 30000\r\nA: " + strings.Repeat("a", 33000) + "\r\n\r\n" + strings.Repeat("b", 30000),
		"long, chunks":   "POST /1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nA: " + strings.Repeat("a", 33000) + "\r\n\r\n7530\r\n" + strings.Repeat("b", 30000) + "\r\n0\r\n\r\n",
		"absolute":       "GET http://a/1 HTTP/1.1\r\nHost: a\r\n\r\n",
		"all of it":      "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		"backslash":      "GET /1\\2?\\ HTTP/1.1\r\nHost: a\r\n\r\n",
		"upgrade to h2c": "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
		"with a body":    "POST /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nhi",
		"upgrade":        "GET /1 HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			for next, want := range map[string][]int{
				"GET /2 HTTP/1.1\nHost: a\n\n": {200, 400},
				"POST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc": {200, 400},
				"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n":                                               {200, 200, 200}, // sendRaw's is the third
			} {
				rec := &recorder{}
				p := startProxy(t, routeTo(newUpstream(t, serveRaw(t, rec.serve))))
				if name == "upgrade" {
					want = want[:1]
				}
				statuses := slices.DeleteFunc(sendRaw(t, p.addr, first+next), func(status int) bool { return status == 100 })
				if !slices.Equal(statuses, want) {
					t.Errorf("%.30q behind it: the client saw %v, want %v", next, statuses, want)
				}
				second := slices.ContainsFunc(rec.seen(), func(seen string) bool {
					return strings.HasPrefix(seen, "GET /2 ") || strings.HasPrefix(seen, "POST /2 ")
				})
				if second != (len(want) == 3) || len(rec.garbage) > 0 {
					t.Errorf("the server saw %.60q and %q", rec.seen(), rec.garbage)
				}
			}
		})
	}
}

// TestEmptyLineBeforeARequest: some clients send one after a body. More than one is refused.
func TestEmptyLineBeforeARequest(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %q", r.Method, body)
	}))))
	c, answer := dialRaw(t, p.addr)
	for _, request := range []struct{ text, want string }{
		{"\r\nPOST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc\r\n", `POST "abc"`},
		{"GET / HTTP/1.1\r\nHost: a\r\n\r\n", `GET ""`},
	} {
		if resp, body := roundTrip(t, c, answer, request.text); resp.StatusCode != 200 || body != request.want || resp.Close {
			t.Errorf("%.10q: %s %s, close %t", request.text, resp.Status, body, resp.Close)
		}
	}
	came := p.Stats().BytesIn
	_, _ = io.WriteString(c, "\r")
	conntest.Eventually(t, "half of a line has come", func() bool { return p.Stats().BytesIn == came+1 })
	if resp, body := roundTrip(t, c, answer, "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"); resp.StatusCode != 200 || body != `GET ""` {
		t.Errorf("behind a line in two pieces: %s %s", resp.Status, body)
	}
	if resp, _ := roundTrip(t, c, answer, "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"); resp.StatusCode != 400 {
		t.Errorf("behind two: %s", resp.Status)
	}
}

// TestTakersOfTrailersAreUsual: Firefox sends "te: trailers" in every HTTP/2 request. It must neither end its connection
// nor be dropped.
func TestTakersOfTrailersAreUsual(t *testing.T) {
	said := make(chan http.Header, 1)
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { said <- r.Header }))))
	check := func(what string) {
		if h := <-said; h.Get("Te") != "trailers" || h.Get("Connection") != "TE" {
			t.Errorf("%s: the server got TE %q, Connection %q", what, h["Te"], h["Connection"])
		}
	}
	c, answer := dialRaw(t, p.addr)
	for range 2 {
		if resp, _ := roundTrip(t, c, answer, "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE\r\nTE: trailers\r\n\r\n"); resp.StatusCode != 200 || resp.Close {
			t.Errorf("%s, close %t", resp.Status, resp.Close)
		}
		check("HTTP/1.1")
	}
	h := dialH2(t, p.addr)
	h.ask(1, true, append(plainGet, "te", "trailers")...)
	check("HTTP/2")
}
