package httpproxy_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// serveSilence accepts, reads and never answers.
func serveSilence(t *testing.T) string {
	return serveRaw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
}

// TestErrorAnswers: status, body in both forms, request id and counter of every failure before a response.
func TestErrorAnswers(t *testing.T) {
	garbage := serveRaw(t, func(c net.Conn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "SSH-2.0-OpenSSH_9.6\r\n")
	})
	closing := serveRaw(t, func(c net.Conn) { _, _ = http.ReadRequest(bufio.NewReader(c)) })
	for name, tc := range map[string]struct {
		backend, path  string
		status         int
		reason, metric string
	}{
		"refused":       {conntest.FreeAddress(t), "/", 502, "connection refused", listener.ReasonUpstreamUnavailable},
		"silent":        {serveSilence(t), "/", 504, "no response in time", listener.ReasonTimeout},
		"not HTTP":      {garbage, "/", 502, "malformed response", listener.ReasonProtocol},
		"closes":        {closing, "/", 502, "the connection was closed without a response", listener.ReasonBackendGone},
		"unknown route": {closing, "/nowhere", 404, "no route for this request", listener.ReasonUnknownRoute},
	} {
		t.Run(name, func(t *testing.T) {
			limit := patience
			if tc.status == 504 {
				limit = 30 * time.Millisecond
			}
			route := httpproxy.Route{Path: "/known", Upstream: newUpstream(t, tc.backend), ResponseTimeout: limit}
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{route}})
			path := "/known"
			if tc.path != "/" {
				path = tc.path
			}
			req, err := http.NewRequest("POST", p.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, body := do(t, req)
			if resp.StatusCode != tc.status || !strings.Contains(body, tc.reason) {
				t.Errorf("got %s %q", resp.Status, body)
			}
			req.Header.Set("Accept", "application/json, text/plain;q=0.5")
			resp, body = do(t, req)
			var answer struct {
				Status                  int
				Error, Upstream, Reason string
				RequestID               string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(body), &answer); err != nil {
				t.Fatalf("%q: %v", body, err)
			}
			if answer.Status != tc.status || answer.Reason != tc.reason || answer.Error == "" {
				t.Errorf("got %q", body)
			}
			if strings.Contains(body, tc.backend) {
				t.Errorf("the client learns the server's address: %q", body)
			}
			if tc.status > 500 && (answer.Upstream != "api" || answer.RequestID == "" || answer.RequestID != resp.Header.Get("X-Request-Id")) {
				t.Errorf("got %q with %v", body, resp.Header)
			}
			eventually(t, "both are counted", func() bool { return p.Stats().Errors[tc.metric] == 2 })
		})
	}
}

func TestPoolExhausted(t *testing.T) {
	release := make(chan struct{})
	backend := serveHTTP(t, func(http.ResponseWriter, *http.Request) { <-release })
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Limits: pool.Limits{MinIdle: 1, MaxSize: 1, AcquireTimeout: 20 * time.Millisecond}}}, backend)
	eventually(t, "the connection is open", func() bool { return u.Status().Endpoints[0].Pool.Idle == 1 })
	p := startProxy(t, routeTo(u))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, _ := get(t, p.url); resp.StatusCode != 200 {
			t.Errorf("the first request got %s", resp.Status)
		}
	}()
	eventually(t, "the connection is in use", func() bool { return u.Status().Endpoints[0].Pool.InUse == 1 })
	resp, body := get(t, p.url)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !strings.Contains(body, `upstream "api"`) {
		t.Errorf("got %s %v %q", resp.Status, resp.Header, body)
	}
	close(release)
	<-done
	eventually(t, "one is counted", func() bool { return p.Stats().Errors[listener.ReasonPoolExhausted] == 1 })
}

// TestAnotherEndpoint: another one serves the request if one refuses connections, for every method.
func TestAnotherEndpoint(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	p := startProxy(t, routeTo(newUpstream(t, conntest.FreeAddress(t), backend)))
	for range 20 {
		req, err := http.NewRequest("POST", p.url, strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		if resp, body := do(t, req); resp.StatusCode != 200 || body != "body" {
			t.Fatalf("got %s %q", resp.Status, body)
		}
	}
}

// TestServerErrorsDoNotEject: an endpoint that answers 500 works as far as connections go.
func TestServerErrorsDoNotEject(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	u := newUpstream(t, backend)
	p := startProxy(t, routeTo(u))
	for range 10 {
		get(t, p.url)
	}
	if e := u.Status().Endpoints[0]; e.Failures != 0 || e.Ejected {
		t.Errorf("the endpoint's state is %+v", e)
	}
}

// TestHeaderLimits: too large, too many, too slow.
func TestHeaderLimits(t *testing.T) {
	backend := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	cfg := routeTo(newUpstream(t, backend))
	p := startProxy(t, cfg)
	for name, raw := range map[string]string{
		"large": "GET / HTTP/1.1\r\nHost: a\r\nA: " + strings.Repeat("x", 80<<10) + "\r\n\r\n",
		"many":  "GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("A: b\r\n", 300) + "\r\n",
	} {
		if got := sendRaw(t, p.addr, raw); len(got) != 1 || got[0] != 431 {
			t.Errorf("%s: statuses %v, want 431", name, got)
		}
	}
}

// TestMajorVersions: only HTTP/1.x has request lines, beside the preface of HTTP/2.
func TestMajorVersions(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))))
	for version, want := range map[string]int{"HTTP/0.9": 505, "HTTP/2.0": 505, "HTTP/3.0": 505, "HTTP/1.9": 200, "HTTP/3": 400, "HTTP/1.11": 400, "http/1.1": 400} {
		if got := sendRaw(t, p.addr, "GET / "+version+"\r\nHost: a\r\nConnection: close\r\n\r\n"); len(got) != 1 || got[0] != want {
			t.Errorf("%s: statuses %v, want %d", version, got, want)
		}
	}
}

// TestSilentHTTP2: a client of HTTP/2 that sends nothing has not sent a bad request.
func TestSilentHTTP2(t *testing.T) { paced(t, silentHTTP2) }

func silentHTTP2(t testing.TB, unit time.Duration) {
	cfg := routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {})))
	cfg.ReadHeaderTimeout = unit
	server, client := certificates(t)
	cfg.TLS = server
	p := startProxy(t, cfg)
	client = client.Clone()
	client.NextProtos = []string{"h2"}
	for sent, refused := range map[string]uint64{"": 0, "PRI * HT": 1} {
		before := p.Stats().Errors[listener.ReasonProtocol]
		raw, _ := dialRaw(t, p.addr)
		c := tls.Client(raw, client)
		_, _ = io.WriteString(c, sent)
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		frames, err := io.ReadAll(c)
		if bytes.Contains(frames, []byte("\x00\x00\x08\x07\x00")) != (refused > 0) || err != nil {
			t.Errorf("after %q the client gets %q, %v", sent, frames, err)
		}
		_ = c.Close()
		eventually(t, "the connection has ended", func() bool { return p.Stats().Active == 0 })
		if n := p.Stats().Errors[listener.ReasonProtocol] - before; n != refused {
			t.Errorf("after %q %d requests are refused", sent, n)
		}
	}
}

// TestLateHead: a client that has sent a part of a head in time gets 408, one that has sent nothing no answer.
func TestLateHead(t *testing.T) { paced(t, lateHead) }

func lateHead(t testing.TB, unit time.Duration) {
	cfg := routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {})))
	cfg.ErrorPages = []httpproxy.ErrorPage{{Statuses: []int{408}, Content: "late", ContentType: "text/plain"}}
	cfg.ReadHeaderTimeout = unit
	plain := startProxy(t, cfg)
	server, client := certificates(t)
	cfg.TLS = server
	secure := startProxy(t, cfg)
	const whole = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	for _, overTLS := range []bool{false, true} {
		for sent, want := range map[string]string{"": "", "GET / HTTP/1.1\r\nHost:": "408 true late", "G": "408 true late", whole: "", whole + "GE": "408 true late"} {
			c, br := dialRaw(t, plain.addr)
			if overTLS {
				if sent == "" {
					continue // the time is that of the handshake then
				}
				raw, _ := dialRaw(t, secure.addr)
				c = tls.Client(raw, client)
				br = bufio.NewReader(c)
			}
			_, _ = io.WriteString(c, sent)
			if strings.HasPrefix(sent, whole) {
				resp, err := http.ReadResponse(br, nil)
				if err != nil || resp.StatusCode != 200 {
					t.Fatalf("%v, %v", resp, err)
				}
				if sent == whole { // the next head has a longer time
					_ = c.Close()
					continue
				}
			}
			got := ""
			if resp, err := http.ReadResponse(br, nil); err == nil {
				body, _ := io.ReadAll(resp.Body)
				got = fmt.Sprint(resp.StatusCode, " ", resp.Close, " ", string(body))
			} else if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("TLS %t: the connection does not end after %q", overTLS, sent)
			}
			if got != want {
				t.Errorf("TLS %t: after %q the client gets %q, want %q", overTLS, sent, got, want)
			}
		}
	}
}

// TestGarbageIsCounted although net/http answers it; well-formed requests and idle connections are not.
func TestGarbageIsCounted(t *testing.T) {
	backend := serveHTTP(t, func(http.ResponseWriter, *http.Request) {})
	var log conntest.Log
	cfg := routeTo(newUpstream(t, backend))
	cfg.Listener.Logger = log.Logger()
	p := startProxy(t, cfg)
	get(t, p.url)
	h2, err := clientFor(t, "HTTP/2.0").Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	h2.Body.Close()
	if got := sendRaw(t, p.addr, ""); len(got) != 1 || got[0] != 200 {
		t.Fatalf("statuses are %v", got)
	}
	if got := sendRaw(t, p.addr, "\x17\x03\x01\x02\x00\r\n\r\n"); len(got) != 1 || got[0] != 400 {
		t.Errorf("statuses are %v", got)
	}
	eventually(t, "it is counted and logged", func() bool {
		return p.Stats().Errors[listener.ReasonProtocol] > 0 && strings.Contains(log.String(), "request refused")
	})
	if n := p.Stats().Errors[listener.ReasonProtocol]; n != 1 {
		t.Errorf("%d are counted", n)
	}
}

func TestAccessLog(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	var log conntest.Log
	cfg := routeTo(newUpstream(t, backend))
	cfg.Listener = listener.Config{Name: "web", AccessLog: true, Logger: log.Logger()}
	p := startProxy(t, cfg)
	for range 2 {
		req, err := http.NewRequest("POST", p.url+"/path?token=secret", strings.NewReader("abc"))
		if err != nil {
			t.Fatal(err)
		}
		do(t, req)
	}
	eventually(t, "the second line is there", func() bool { return strings.Contains(log.String(), "reused=true") })
	for _, want := range []string{"msg=access", "listener=web", "method=POST", "path=/path ", "status=200", "bytes_in=3",
		"bytes_out=5", "duration=", "upstream=api", "endpoint=" + backend, "reused=false"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "secret") {
		t.Errorf("the query is logged:\n%s", log.String())
	}
}

// TestAccessLogSaysHTTP2: of every request that came in it; and so does Via.
func TestAccessLogSaysHTTP2(t *testing.T) {
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, r.Header.Get("Via"))
	})
	var log conntest.Log
	up := newUpstream(t, backend)
	cfg := httpproxy.Config{Via: "pond", Routes: []httpproxy.Route{{Upstream: up}, {Path: "/bounded", Upstream: up, Timeout: time.Hour}}}
	cfg.Listener = listener.Config{AccessLog: true, Logger: log.Logger()}
	p := startProxy(t, cfg)
	client := clientFor(t, "HTTP/2.0")
	for i, tc := range []struct{ path, expect string }{{"/", ""}, {"/bounded", ""}, {"/", "100-continue"}, {"/a/../b", ""}} {
		req, err := http.NewRequest("POST", p.url+tc.path, strings.NewReader("abc"))
		if err != nil {
			t.Fatal(err)
		}
		if tc.expect != "" {
			req.Header.Set("Expect", tc.expect)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if via := string(body); resp.StatusCode == http.StatusOK && via != "2.0 pond" {
			t.Errorf("%s: the server sees Via %q", tc.path, via)
		}
		eventually(t, "there is a line", func() bool { return strings.Count(log.String(), "msg=access") > i })
	}
	if n := strings.Count(log.String(), "proto=HTTP/2.0"); n != 4 {
		t.Errorf("%d of 4 lines say HTTP/2:\n%s", n, log.String())
	}
}

// TestNoFilesLeft: the error says on which side files are short.
func TestNoFilesLeft(t *testing.T) {
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Dial: func(context.Context, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}
	}}, "10.1.2.3:80")
	resp, body := get(t, startProxy(t, routeTo(u)).url)
	if resp.StatusCode != 502 || !strings.Contains(body, "the gateway has no file descriptors left") || strings.Contains(body, "10.1.2.3") {
		t.Errorf("%s %q", resp.Status, body)
	}
}
