package httpproxy_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/internal/tlstest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/upstream"
)

// eventServer answers every request with a stream of the events that a test sends. "end" ends it, "abort" breaks it off.
type eventServer struct {
	*httpproxy.Upstream
	events chan string
	gone   chan struct{} // a client has left
	asked  chan string   // bodies of requests
}

func newEventServer(t testing.TB, way restWay) *eventServer {
	t.Helper()
	s := &eventServer{events: make(chan string), gone: make(chan struct{}, 1), asked: make(chan string, 9)}
	s.Upstream = way.serve(t, pool.Limits{}, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.asked <- string(body)
		_ = http.NewResponseController(w).Flush()
		for {
			select {
			case e := <-s.events:
				switch e {
				case "end":
					return
				case "abort":
					panic(http.ErrAbortHandler)
				}
				_, _ = io.WriteString(w, e)
				_ = http.NewResponseController(w).Flush()
			case <-r.Context().Done():
				s.gone <- struct{}{}
				return
			}
		}
	})
	return s
}

// rested returns a function that waits until no answer has a fiber, except the reader of an HTTP/2 connection, and the writer
// of one to a server. Call it before there are any.
func rested(t testing.TB, way restWay) func() {
	before := max(enginetest.Fibers(), 1) // one of them accepts
	if way.http2 {
		before++
	}
	if way.server != "" {
		before += 2
	}
	return func() {
		t.Helper()
		eventually(t, "no fiber is left", func() bool {
			fiber.Sleep(time.Millisecond)
			return enginetest.Fibers() <= before
		})
	}
}

// restWay is how a request comes and is passed on.
type restWay struct {
	http2, tls bool               // of the client
	server     httpproxy.Protocol // "" = HTTP/1.1
}

var restWays = map[string]restWay{
	"HTTP/1.1": {}, "HTTP/1.1 with TLS": {tls: true}, "HTTP/2": {http2: true}, "HTTP/2 with TLS": {http2: true, tls: true},
	"HTTP/1.1 to h2c": {server: httpproxy.ProtocolH2C}, "HTTP/1.1 with TLS to h2": {tls: true, server: httpproxy.ProtocolH2},
	"HTTP/2 to h2c": {http2: true, server: httpproxy.ProtocolH2C}, "HTTP/2 with TLS to h2": {http2: true, tls: true, server: httpproxy.ProtocolH2},
}

// client returns the configuration of a listener for such clients, and one of them.
func (w restWay) client(t testing.TB, cfg httpproxy.Config) (httpproxy.Config, *http.Client) {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	if w.tls {
		cfg.TLS, tr.TLSClientConfig = certificates(t)
		cfg.TLS.NextProtos = []string{"h2", "http/1.1"}
	}
	tr.Protocols.SetHTTP1(!w.http2)
	tr.Protocols.SetHTTP2(w.http2 && w.tls)
	tr.Protocols.SetUnencryptedHTTP2(w.http2 && !w.tls)
	t.Cleanup(tr.CloseIdleConnections)
	return cfg, &http.Client{Transport: tr}
}

// serve returns an upstream whose server is h.
func (w restWay) serve(t testing.TB, limits pool.Limits, h http.HandlerFunc) *httpproxy.Upstream {
	t.Helper()
	o := httpproxy.UpstreamOptions{Protocol: w.server, Settings: upstream.Settings{Limits: limits}}
	switch w.server {
	case "":
		return newUpstreamWith(t, o, serveHTTP(t, h))
	case httpproxy.ProtocolH2C:
		return newUpstreamWith(t, o, serveHTTP2(t, h).addr)
	}
	b := serveHTTP2(t, h, "h2")
	o.TLS = b.tls
	return newUpstreamWith(t, o, b.addr)
}

func wantEvent(t testing.TB, r io.Reader, text string) {
	t.Helper()
	b := make([]byte, len(text))
	if _, err := io.ReadFull(r, b); err != nil || string(b) != text {
		t.Fatalf("got %q, %v; want %q", b, err, text)
	}
}

// TestAnswerRests: a session whose answer pauses has no fiber and no buffer. Later data goes to the client, and its
// connection serves the next request.
func TestAnswerRests(t *testing.T) {
	for name, way := range restWays {
		t.Run(name, func(t *testing.T) {
			s := newEventServer(t, way)
			cfg, client := way.client(t, routeTo(s.Upstream))
			p := startProxy(t, cfg)
			rest := rested(t, way)
			for _, body := range []string{"", "a body", strings.Repeat("a long body", 10_000)} {
				resp, err := client.Post(p.url, "text/plain", strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if got := <-s.asked; got != body {
					t.Errorf("the server got %.20q, want %.20q", got, body)
				}
				for range 3 {
					rest()
					eventually(t, "little is held", func() bool {
						return enginetest.Kind() == fiber.Goroutine || p.Stats().Buffered <= 2<<10
					})
					s.events <- "event"
					wantEvent(t, resp.Body, "event")
				}
				rest()
				long := strings.Repeat("long", 100_000)
				s.events <- long
				wantEvent(t, resp.Body, long)
				rest()
				s.events <- "end"
				if b, err := io.ReadAll(resp.Body); err != nil || len(b) > 0 {
					t.Errorf("at the end: %q, %v", b, err)
				}
				_ = resp.Body.Close()
			}
			if st := p.Stats(); st.Accepted != 1 || len(st.Errors) > 0 {
				t.Errorf("%d connections, errors %v; want one, and none", st.Accepted, st.Errors)
			}
		})
	}
}

// killLast kills the session that is listed last: that of the request, also if its connection is listed.
func killLast(t testing.TB, p running) {
	t.Helper()
	all := p.Sessions()
	id, stream, _ := listener.ParseID(all[len(all)-1].ID)
	if !p.Kill(id, stream) {
		t.Errorf("%+v cannot be killed", all)
	}
}

// TestRestEnds: an event that ends the exchange while the session rests is noticed at once by both sides.
func TestRestEnds(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	for name, tc := range map[string]struct {
		end    func(t testing.TB, p running, s *eventServer, body io.Closer)
		idle   time.Duration // in units of paced
		limit  time.Duration // likewise
		reason string
		leaves bool // the client does
	}{
		"the client leaves": {end: func(_ testing.TB, _ running, _ *eventServer, body io.Closer) { _ = body.Close() }, reason: listener.ReasonClientGone, leaves: true},
		"the server aborts": {end: func(_ testing.TB, _ running, s *eventServer, _ io.Closer) { s.events <- "abort" }, reason: listener.ReasonBackendGone},
		"idle":              {end: func(testing.TB, running, *eventServer, io.Closer) {}, idle: 10, reason: listener.ReasonTimeout},
		"time-out":          {end: func(testing.TB, running, *eventServer, io.Closer) {}, limit: 10, reason: listener.ReasonTimeout},
		"drain":             {end: func(_ testing.TB, p running, _ *eventServer, _ io.Closer) { _ = p.Drain(cancelled) }},
		"kill":              {end: func(t testing.TB, p running, _ *eventServer, _ io.Closer) { killLast(t, p) }, reason: listener.ReasonKilled},
	} {
		for way, with := range restWays {
			test := func(t testing.TB, unit time.Duration) {
				s := newEventServer(t, with)
				cfg := routeTo(s.Upstream)
				cfg.Routes[0].IdleTimeout, cfg.Routes[0].Timeout = tc.idle*unit, tc.limit*unit
				cfg, client := with.client(t, cfg)
				p := startProxy(t, cfg)
				rest := rested(t, with)
				resp, err := client.Get(p.url)
				if err != nil {
					t.Fatal(err)
				}
				select {
				case s.events <- "event":
				case <-s.gone:
					t.Fatal("the exchange is over already")
				}
				wantEvent(t, resp.Body, "event")
				rest()
				tc.end(t, p, s, resp.Body)
				if name != "the server aborts" {
					<-s.gone
				}
				if _, err := resp.Body.Read(make([]byte, 1)); !tc.leaves && (err == nil || err == io.EOF) {
					t.Errorf("the client sees %v, want an error", err)
				}
				if tc.reason != "" {
					eventually(t, "the error is counted", func() bool { return p.Stats().Errors[tc.reason] == 1 })
				}
				eventually(t, "the exchange is over", func() bool { return p.Stats().Buffered == 0 })
			}
			t.Run(name+", "+way, func(t *testing.T) {
				if tc.idle == 0 && tc.limit == 0 {
					test(t, 0)
				} else {
					paced(t, test)
				}
			})
		}
	}
}

// TestRequestDuringARest: a client that sends its next request during a pause gets its answer, too.
func TestRequestDuringARest(t *testing.T) {
	s := newEventServer(t, restWay{})
	p := startProxy(t, routeTo(s.Upstream))
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	_, _ = io.WriteString(c, getRoot)
	<-s.asked
	rest()
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsecond")
	go func() {
		s.events <- "one"
		s.events <- "end"
	}()
	if _, body := readAnswer(t, br); body != "one" {
		t.Errorf("the first answer is %q", body)
	}
	if got := <-s.asked; got != "second" {
		t.Errorf("the second request has the body %q", got)
	}
	rest()
	go func() {
		s.events <- "two"
		s.events <- "end"
	}()
	if _, body := readAnswer(t, br); body != "two" {
		t.Errorf("the second answer is %q", body)
	}
}

// TestUnframedAnswerRests: an answer that ends with the server's connection also rests.
func TestUnframedAnswerRests(t *testing.T) {
	pieces := make(chan string)
	backend := serveRaw(t, func(c net.Conn) {
		if _, err := c.Read(make([]byte, 4<<10)); err != nil {
			return
		}
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
		for piece := range pieces {
			_, _ = io.WriteString(c, piece)
		}
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	rest := rested(t, restWay{})
	resp, err := http.Get(p.url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for _, piece := range []string{"one", "two", "three"} {
		rest()
		pieces <- piece
		wantEvent(t, resp.Body, piece)
	}
	rest()
	close(pieces)
	if b, err := io.ReadAll(resp.Body); err != nil || len(b) > 0 {
		t.Errorf("at the end: %q, %v", b, err)
	}
}

// TestKeyUpdateDuringARest: TLS's own messages from a client do not end the rest for long, and the client's next request may use new keys.
func TestKeyUpdateDuringARest(t *testing.T) {
	s := newEventServer(t, restWay{})
	cfg := routeTo(s.Upstream)
	server, client := certificates(t)
	server.SessionTicketsDisabled = true
	cfg.TLS = server
	var keyLog bytes.Buffer
	client.KeyLogWriter = &keyLog
	p := startProxy(t, cfg)
	rest := rested(t, restWay{})
	raw, _ := dialRaw(t, p.addr)
	c := tls.Client(raw, client)
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	if c.ConnectionState().CipherSuite != tls.TLS_AES_128_GCM_SHA256 {
		t.Log("this machine has no instructions for AES, and tlstest makes no other records")
		return
	}
	seal := tlstest.NewSealer(t, keyLog.String(), "CLIENT")
	send := func(kind byte, text string) {
		if _, err := raw.Write(seal.Record(kind, text)); err != nil {
			t.Fatal(err)
		}
	}
	send(tlstest.Data, getRoot)
	<-s.asked
	rest()
	for range 3 {
		send(tlstest.Handshake, tlstest.KeyUpdate)
		seal.Renew(t)
		rest()
		s.events <- "event"
		got := ""
		for b := make([]byte, 1000); !strings.Contains(got, "event"); {
			n, err := c.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			got += string(b[:n])
		}
		rest()
	}
	send(tlstest.Alert, tlstest.CloseNotify)
	<-s.gone
}

// TestLogOfARest: the log line of a request whose session has rested is right, although others have used its buffer.
func TestLogOfARest(t *testing.T) {
	lines := &logLines{t: t}
	s, other := newEventServer(t, restWay{}), newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))
	cfg := routeTo(s.Upstream)
	cfg.AccessLog = &httpproxy.AccessLog{To: lines, Query: true}
	cfg.Routes = append([]httpproxy.Route{{Path: "/other", Upstream: other, NoAccessLog: true}}, cfg.Routes...)
	p := startProxy(t, cfg)
	rest := rested(t, restWay{})
	c, br := dialRaw(t, p.addr)
	for _, request := range []string{
		"GET /a/b?c=d HTTP/1.1\r\nHost: first\r\nUser-Agent: tester\r\nX-Request-Id: number-one\r\n\r\n",
		"POST http://first/a/b?c=d HTTP/1.1\r\nHost: x\r\nUser-Agent: tester\r\nX-Request-Id: number-one\r\nContent-Length: 4\r\n\r\nbody",
	} {
		_, _ = io.WriteString(c, request)
		<-s.asked
		rest()
		for range 20 {
			if resp, _ := get(t, p.url+"/other/"+strings.Repeat("z", 2000)); resp.StatusCode != http.StatusOK {
				t.Error(resp.Status)
			}
		}
		go func() { s.events <- "end" }()
		if resp, body := readAnswer(t, br); resp.StatusCode != http.StatusOK || body != "" {
			t.Errorf("%s %q", resp.Status, body)
		}
		method, _, _ := strings.Cut(request, " ")
		wantFields(t, lines.fields(), map[string]any{"method": method, "host": "first", "user_agent": "tester", "request_id": "number-one", "status": 200})
	}
}
