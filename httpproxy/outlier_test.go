package httpproxy_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/upstream"
)

// TestBadAnswersEject: an endpoint whose answers are errors, late or missing is ejected, over each version of HTTP.
func TestBadAnswersEject(t *testing.T) {
	const slow, late = time.Millisecond, 100 * time.Millisecond // what is late may be as late as it likes
	fails := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		http.Error(w, "no", http.StatusInternalServerError)
	}
	dawdles := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-time.After(late)
	}
	hangs := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	errors, slowness := upstream.Ejection{Errors: true}, upstream.Ejection{Slow: slow}
	for name, tc := range map[string]struct {
		bad      http.HandlerFunc
		ejection upstream.Ejection
		route    httpproxy.Route
		client   time.Duration // how long it waits; 0 = forever
		grpc     string        // its deadline, by HTTP/2 only
	}{
		"errors":                     {bad: fails, ejection: errors},
		"slow":                       {bad: dawdles, ejection: slowness},
		"silent, by errors":          {bad: hangs, ejection: errors, route: httpproxy.Route{ResponseTimeout: late}},
		"silent, by slowness":        {bad: hangs, ejection: upstream.Ejection{Slow: time.Hour}, route: httpproxy.Route{ResponseTimeout: late}},
		"beyond the request's limit": {bad: hangs, ejection: slowness, route: httpproxy.Route{Timeout: late}},
		"beyond the client's wish":   {bad: hangs, ejection: slowness, client: late},
		"beyond a deadline of gRPC":  {bad: hangs, ejection: slowness, grpc: "100m"},
	} {
		for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
			if tc.grpc != "" && protocol == httpproxy.ProtocolH1 {
				continue
			}
			t.Run(name+" by "+string(protocol), func(t *testing.T) {
				good := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }
				tc.ejection.Failures, tc.ejection.Base, tc.ejection.Max = 3, time.Hour, time.Hour
				u := newUpstreamWith(t, httpproxy.UpstreamOptions{
					Settings: upstream.Settings{Balance: upstream.First, Ejection: tc.ejection}, Protocol: protocol,
				}, serveEither(t, tc.bad), serveEither(t, good))
				route := tc.route
				route.Upstream = u
				p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{route}})
				client := clientFor(t, map[httpproxy.Protocol]string{httpproxy.ProtocolH1: "HTTP/1.1", httpproxy.ProtocolH2C: "HTTP/2.0"}[protocol])
				sent := 0
				eventually(t, "it is ejected", func() bool { // the client may have the answer before, and late may come before the request is sent
					if u.Status().Endpoints[0].Ejected {
						return true
					}
					askBadly(t, client, p.url, sent%3*20_000, tc.client, tc.grpc)
					sent++
					return false
				})
				if sent < 3 {
					t.Errorf("ejected after %d failures", sent)
				}
			})
		}
	}
}

// TestAuthServersAreEjected by the rules for other servers: errors, slow answers and silence are failures; a refusal is an answer.
func TestAuthServersAreEjected(t *testing.T) {
	const late = 100 * time.Millisecond
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }))
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	errors, slowness := upstream.Ejection{Errors: true}, upstream.Ejection{Slow: time.Nanosecond}
	for name, tc := range map[string]struct {
		bad      http.HandlerFunc
		ejection upstream.Ejection
		timeout  time.Duration // of the question
		within   time.Duration // of the request; 0 = forever
		stays    bool
	}{
		"500":                      {bad: answers(500), ejection: errors},
		"503 with a page":          {bad: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 503) }, ejection: errors},
		"slow":                     {bad: answers(200), ejection: slowness},
		"slow refusal":             {bad: answers(401), ejection: slowness},
		"silent":                   {bad: hangs, ejection: errors, timeout: late},
		"silent, in requests":      {bad: hangs, ejection: slowness, within: late},
		"silent in short requests": {bad: hangs, ejection: errors, within: late, stays: true},
		"401":                      {bad: answers(401), ejection: errors, stays: true},
		"403":                      {bad: answers(403), ejection: errors, stays: true},
		"302":                      {bad: answers(302), ejection: errors, stays: true},
		"500, not asked for":       {bad: answers(500), stays: true},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+proto, func(t *testing.T) {
				tc.ejection.Failures, tc.ejection.Base, tc.ejection.Max = 3, time.Hour, time.Hour
				auth := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.First, Ejection: tc.ejection}},
					serveHTTP(t, tc.bad), serveHTTP(t, answers(200)))
				p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
					{Upstream: up, Timeout: tc.within, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: cmp.Or(tc.timeout, patience)}},
				}})
				client := clientFor(t, proto)
				for range 3 {
					askBadly(t, client, p.url, 0, 0, "")
				}
				if tc.stays {
					if n := quiet(t, auth); n != 0 || auth.Status().Endpoints[0].Ejected {
						t.Errorf("%d failures are counted", n)
					}
					return
				}
				eventually(t, "it is ejected", func() bool {
					if auth.Status().Endpoints[0].Ejected {
						return true
					}
					askBadly(t, client, p.url, 0, 0, "")
					return false
				})
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url, nil)
				if resp, body := doWith(t, client, req); tc.within == 0 && (resp.StatusCode != 200 || body != "hi") {
					t.Errorf("the other one is not asked: %s %q", resp.Status, body)
				}
			})
		}
	}
}

// askBadly sends a body and waits for the answer for the given time (0 = forever), or sets a gRPC deadline.
func askBadly(t *testing.T, client *http.Client, url string, size int, wait time.Duration, deadline string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(wait, patience))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(make([]byte, size)))
	if err != nil {
		t.Fatal(err)
	}
	if deadline != "" {
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Grpc-Timeout", deadline)
	}
	if resp, err := client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// serveEither starts a backend that speaks HTTP/1.1 and HTTP/2 without TLS.
func serveEither(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestErrorsAreNoFailures of an endpoint unless that is asked for.
func TestErrorsAreNoFailures(t *testing.T) {
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: upstream.Ejection{Failures: 1}}},
		serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	p := startProxy(t, routeTo(u))
	for range 3 {
		get(t, p.url)
	}
	if s := u.Status().Endpoints[0]; s.Ejected || s.Failures > 0 {
		t.Errorf("%d failures after three answers", s.Failures)
	}
}

// quiet waits until the leases of all endpoints have ended, and returns the failures of the first one.
func quiet(t *testing.T, u *httpproxy.Upstream) int {
	t.Helper()
	eventually(t, "no lease is left", func() bool {
		for _, e := range u.Status().Endpoints {
			if e.Leases > 0 {
				return false
			}
		}
		return true
	})
	return u.Status().Endpoints[0].Failures
}

// TestRequestsThatFailForClients: failures that a client causes, or its own slowness, do not count for the endpoint.
func TestRequestsThatFailForClients(t *testing.T) {
	const slow = 100 * time.Millisecond
	for name, tc := range map[string]struct {
		ejection upstream.Ejection
		request  string
		answers  func(c net.Conn)
	}{
		"a method that does not exist": {
			upstream.Ejection{Errors: true}, "FOO / HTTP/1.1\r\nHost: a\r\n\r\n",
			func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 501 No\r\nContent-Length: 0\r\n\r\n") },
		},
		"a version": {
			upstream.Ejection{Errors: true}, "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
			func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 505 No\r\nContent-Length: 0\r\n\r\n") },
		},
		"a slow upload": {
			upstream.Ejection{Slow: slow}, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nx",
			func(c net.Conn) {
				<-time.After(2 * slow)
				_, _ = io.WriteString(c, "HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.ejection.Failures = 100
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Ejection: tc.ejection}}, serveRaw(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				for {
					if _, err := http.ReadRequest(br); err != nil {
						return
					}
					tc.answers(c)
				}
			}))
			p := startProxy(t, routeTo(u))
			for range 3 {
				c, br := dialRaw(t, p.addr)
				if resp, _ := roundTrip(t, c, br, tc.request); resp.StatusCode < 400 {
					t.Errorf("the answer is %s", resp.Status)
				}
			}
			if n := quiet(t, u); n != 0 {
				t.Errorf("%d failures: %+v", n, u.Status().Endpoints[0])
			}
		})
	}
}

// TestBlameForOwnTime: only an endpoint's own time counts for it.
func TestBlameForOwnTime(t *testing.T) {
	const limit = 400 * time.Millisecond
	for name, tc := range map[string]struct {
		hold   time.Duration // until the first endpoint ends the connection
		blamed bool
	}{
		"the first takes most": {3 * limit / 4, false},
		"the first fails soon": {0, true},
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			first := serveRaw(t, func(c net.Conn) {
				_ = readRequest(bufio.NewReader(c))
				<-time.After(tc.hold)
			})
			second := serveRaw(t, func(c net.Conn) {
				_ = readRequest(bufio.NewReader(c))
				asked.Add(1)
				_, _ = io.Copy(io.Discard, c)
			})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{
				Settings: upstream.Settings{Balance: upstream.First, Ejection: upstream.Ejection{Errors: true, Failures: 10_000}},
			}, first, second)
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, ResponseTimeout: limit}}})
			eventually(t, "the second endpoint was asked, and blamed as it should be", func() bool { // in time, unless the machine stands still
				before := asked.Load()
				if resp, body := get(t, p.url); resp.StatusCode < 500 {
					t.Errorf("the answer is %s: %s", resp.Status, body)
				}
				quiet(t, u)
				failures := u.Status().Endpoints[1].Failures
				if failures > 0 && !tc.blamed {
					t.Fatalf("the second endpoint has %d failures: %+v", failures, u.Status().Endpoints[1])
				}
				return asked.Load() > before && (failures > 0) == tc.blamed
			})
		})
	}
}

// TestEarlyAnswerToALongUpload: an answer that comes while the upload still waits for the server ends it, and is one failure.
func TestEarlyAnswerToALongUpload(t *testing.T) {
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{
		Settings: upstream.Settings{Balance: upstream.PeakEWMA, Ejection: upstream.Ejection{Errors: true, Failures: 10_000}},
	}, serveRaw(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			<-time.After(100 * time.Millisecond) // the buffers fill
			_, _ = io.WriteString(c, "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
			<-t.Context().Done()
		}
	}))
	p := startProxy(t, routeTo(u))
	c, _ := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n")
	for piece, err := make([]byte, 1<<20), error(nil); err == nil; {
		_, err = c.Write(piece)
	}
	if n := quiet(t, u); n != 1 {
		t.Errorf("%d failures after one answer", n)
	}
}

// TestReloadMeasuresNoBodies: answers that have begun before a reload measures answers are not measured by their bodies.
func TestReloadMeasuresNoBodies(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		t.Run(string(protocol), func(t *testing.T) {
			release := make(chan struct{})
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, _ *http.Request) {
				_ = http.NewResponseController(w).Flush()
				<-release
				_, _ = io.WriteString(w, "hi")
			}))
			p := startProxy(t, routeTo(u))
			resp, err := http.Get(p.url)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			settings := upstream.Settings{Endpoints: upstream.Endpoints(u.Status().Endpoints[0].Address), Ejection: upstream.Ejection{Failures: 100, Slow: time.Nanosecond}}
			if err := u.Update(settings); err != nil {
				t.Fatal(err)
			}
			close(release)
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hi" {
				t.Errorf("%q, %v", body, err)
			}
			if n := quiet(t, u); n != 0 {
				t.Errorf("%d failures: %+v", n, u.Status().Endpoints[0])
			}
			get(t, p.url)
			if n := quiet(t, u); n != 1 {
				t.Errorf("%d failures after an answer that was measured", n)
			}
		})
	}
}

// ewma starts a proxy that balances by PeakEWMA.
func ewma(t *testing.T, endpoints ...http.HandlerFunc) (*httpproxy.Upstream, running) {
	t.Helper()
	var addresses []string
	for _, h := range endpoints {
		addresses = append(addresses, serveHTTP(t, h))
	}
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.PeakEWMA}}, addresses...)
	return u, startProxy(t, routeTo(u))
}

// TestPeakEWMAOfRequests: the balance learns from answers. Drawn alone, an endpoint would not get 40 requests in a row.
func TestPeakEWMAOfRequests(t *testing.T) {
	var slow, quick atomic.Int64
	_, p := ewma(t, func(http.ResponseWriter, *http.Request) {
		slow.Add(1)
		<-time.After(time.Second)
	}, func(http.ResponseWriter, *http.Request) { quick.Add(1) })
	eventually(t, "only the quick one is asked", func() bool {
		before := slow.Load()
		for range 40 {
			get(t, p.url)
		}
		return before > 0 && slow.Load() == before
	})
}

// TestPeakEWMAOfErrors: quick errors do not make an endpoint preferred.
func TestPeakEWMAOfErrors(t *testing.T) {
	var bad, good atomic.Int64
	_, p := ewma(t, func(w http.ResponseWriter, _ *http.Request) {
		bad.Add(1)
		w.WriteHeader(http.StatusInternalServerError)
	}, func(http.ResponseWriter, *http.Request) {
		good.Add(1)
		<-time.After(10 * time.Millisecond)
	})
	eventually(t, "only the good one is asked", func() bool {
		before := bad.Load()
		for range 40 {
			get(t, p.url)
		}
		return before > 0 && bad.Load() == before
	})
}

// TestPeakEWMAOfLongAnswers: an endpoint with a long first answer gets other requests, also after an upgrade.
func TestPeakEWMAOfLongAnswers(t *testing.T) {
	for name, begin := range map[string]func(c net.Conn){
		"a stream": func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n") },
		"an upgrade": func(c net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			release, asked := make(chan struct{}), make(chan *atomic.Int64, 1)
			var of [2]atomic.Int64
			backend := func(own *atomic.Int64) string {
				return serveRaw(t, func(c net.Conn) {
					br := bufio.NewReader(c)
					for {
						r, err := http.ReadRequest(br)
						if err != nil {
							return
						}
						if r.URL.Path == "/long" {
							begin(c)
							asked <- own
							<-release
							return
						}
						own.Add(1)
						<-time.After(100 * time.Millisecond)
						_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
					}
				})
			}
			u := newUpstreamWith(t, httpproxy.UpstreamOptions{Settings: upstream.Settings{Balance: upstream.PeakEWMA}}, backend(&of[0]), backend(&of[1]))
			p := startProxy(t, routeTo(u))
			t.Cleanup(func() { close(release) })
			c, br := dialRaw(t, p.addr)
			if _, err := io.WriteString(c, "GET /long HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := http.ReadResponse(br, nil); err != nil {
				t.Fatal(err)
			}
			own := <-asked
			eventually(t, "it gets another request", func() bool {
				get(t, p.url)
				return own.Load() > 0
			})
		})
	}
}
