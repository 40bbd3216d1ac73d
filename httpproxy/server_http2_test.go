package httpproxy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// What follows is about backends that speak HTTP/2: net/http's.

// h2Backend is a server that speaks HTTP/2, and counts its connections.
type h2Backend struct {
	addr  string
	conns atomic.Int64
	tls   *tls.Config // of clients; nil = h2c
}

// serveHTTP2 starts one; with alpn it speaks TLS and offers these protocols, otherwise h2c.
func serveHTTP2(t testing.TB, h http.HandlerFunc, alpn ...string) *h2Backend {
	t.Helper()
	b := &h2Backend{}
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = new(http.Protocols)
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			b.conns.Add(1)
		}
	}
	if len(alpn) == 0 {
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	} else {
		server, client := certificates(t)
		for _, p := range alpn {
			s.Config.Protocols.SetHTTP1(s.Config.Protocols.HTTP1() || p == "http/1.1")
			s.Config.Protocols.SetHTTP2(s.Config.Protocols.HTTP2() || p == "h2")
		}
		s.EnableHTTP2 = s.Config.Protocols.HTTP2()
		s.TLS, b.tls = server, client
		s.StartTLS()
	}
	t.Cleanup(s.Close)
	b.addr = s.Listener.Addr().String()
	return b
}

// upstream makes one of the backend.
func (b *h2Backend) upstream(t testing.TB, p httpproxy.Protocol) *httpproxy.Upstream {
	t.Helper()
	return newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: p, TLS: b.tls}, b.addr)
}

// TestServersOfHTTP2 get what clients of either version send, and the other way round.
func TestServersOfHTTP2(t *testing.T) {
	echo := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Proto", r.Proto)
		w.Header().Set("Got", fmt.Sprint(r.Method, " ", r.Host, r.URL, " ", r.ContentLength, " ", r.Header["Cookie"], r.Header.Get("X-Forwarded-Host"), r.Header.Get("Te")))
		switch r.URL.Path {
		case "/204":
			w.WriteHeader(http.StatusNoContent)
			return
		case "/trailers":
			trailing(t)(w, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		}
		_, _ = w.Write(body)
	}
	for name, tc := range map[string]struct {
		protocol httpproxy.Protocol
		alpn     []string
		proto    string
	}{
		"h2c":            {httpproxy.ProtocolH2C, nil, "HTTP/2.0"},
		"h2":             {httpproxy.ProtocolH2, []string{"h2"}, "HTTP/2.0"},
		"auto":           {httpproxy.ProtocolAuto, []string{"h2", "http/1.1"}, "HTTP/2.0"},
		"auto to HTTP/1": {httpproxy.ProtocolAuto, []string{"http/1.1"}, "HTTP/1.1"},
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" from "+proto, func(t *testing.T) {
				b := serveHTTP2(t, echo, tc.alpn...)
				p := startProxy(t, routeTo(b.upstream(t, tc.protocol)))
				client := clientFor(t, proto)
				cookies := strings.NewReplacer()
				if tc.proto == proto && proto == "HTTP/1.1" { // HTTP/2 makes one of several
					cookies = strings.NewReplacer("a=1; b=2", "a=1 b=2")
				}
				checkEchoes(t, client, p.url, tc.proto, cookies)
				checkTrailers(t, client, p.url)
				if n := b.conns.Load(); n != 1 && tc.proto == "HTTP/2.0" {
					t.Errorf("%d connections to the server", n)
				}
			})
		}
	}
}

// checkEchoes sends requests of several kinds to a server that echoes them.
func checkEchoes(t *testing.T, client *http.Client, url, proto string, cookies *strings.Replacer) {
	t.Helper()
	large := strings.Repeat("0123456789abcdef", 40_000)
	for _, r := range []struct {
		method, path, body string
		chunked            bool
		got                string // what the server saw besides
	}{
		{"GET", "/a?b=c%20d", "", false, "0"},
		{"POST", "/a", "hello", false, "5"},
		{"POST", "/length", large, false, fmt.Sprint(len(large))},
		{"PUT", "/a", large, true, "-1"},
		{"POST", "/length", "", false, "0"},
		{"HEAD", "/length", "", false, "0"},
		{"GET", "/204", "", false, "0"},
		{"DELETE", "/", "", false, "0"},
	} {
		var body io.Reader = strings.NewReader(r.body)
		if r.chunked {
			body = io.MultiReader(body)
		} else if r.body == "" {
			body = nil
		}
		req, err := http.NewRequest(r.method, url+r.path, body)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "a.example"
		req.Header["Cookie"] = []string{"a=1", "b=2"}
		resp, text := doWith(t, client, req)
		want := fmt.Sprint(r.method, " a.example", r.path, " ", r.got, " [a=1; b=2]a.example")
		if resp.Header.Get("Got") != cookies.Replace(want) {
			t.Errorf("%s %s: server got %q, want %q", r.method, r.path, resp.Header.Get("Got"), want)
		}
		if text != r.body || resp.Header.Get("Proto") != proto {
			t.Errorf("%s %s: %d bytes by %s", r.method, r.path, len(text), resp.Header.Get("Proto"))
		}
	}
}

// checkTrailers sends trailers and wants some.
func checkTrailers(t *testing.T, client *http.Client, url string) {
	t.Helper()
	req, err := http.NewRequest("POST", url+"/trailers", io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	req.Trailer = http.Header{"Check": {"7"}}
	req.Header.Set("Te", "trailers")
	resp, text := doWith(t, client, req)
	if text != "body" || resp.Trailer.Get("Sum") != "7" || resp.Trailer.Get("Late") != "1" {
		t.Errorf("%q %v", text, resp.Trailer)
	}
	if !strings.HasSuffix(resp.Header.Get("Got"), "trailers") {
		t.Errorf("te: %q", resp.Header.Get("Got"))
	}
}

// TestLargeTrailers: trailers may be as large as heads.
func TestLargeTrailers(t *testing.T) {
	const large = 200 << 10
	b := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Got") // or a length would take their place
		if _, err := io.Copy(w, r.Body); err != nil {
			t.Error(err)
		}
		got := len(r.Trailer.Get("Check"))
		for i := range large / 4096 {
			w.Header().Set(fmt.Sprintf("%sPart-%d", http.TrailerPrefix, i), strings.Repeat("x", 4096))
		}
		w.Header().Set("Got", fmt.Sprint(got))
	})
	p := startProxy(t, routeTo(b.upstream(t, httpproxy.ProtocolH2C)))
	const sent = 40_000
	req, err := http.NewRequest("POST", p.url, io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Te", "trailers")
	req.Trailer = http.Header{"Check": {strings.Repeat("y", sent)}}
	resp, text := doWith(t, clientFor(t, "HTTP/2.0"), req)
	all := 0
	for name := range resp.Trailer {
		if strings.HasPrefix(name, "Part-") {
			all += len(resp.Trailer.Get(name))
		}
	}
	if got := resp.Trailer.Get("Got"); text != "body" || all != large || got != fmt.Sprint(sent) {
		t.Errorf("%q, %d bytes of trailers, %s bytes were got, want %d and %d", text, all, got, large, sent)
	}
	old, err := net.Dial("tcp", p.addr) // net/http takes no such trailers in HTTP/1.1
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	_ = old.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(old, "GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close, TE\r\n\r\n")
	answer, err := io.ReadAll(old)
	if n := strings.Count(string(answer), strings.Repeat("x", 4096)+"\r\n"); err != nil || n != large/4096 || !strings.HasSuffix(string(answer), "\r\n\r\n") {
		t.Errorf("HTTP/1.1: %d trailers, %v; want %d", n, err, large/4096)
	}
}

// TestServerHTTP2Many requests at once share few connections, and each gets its own answer.
func TestServerHTTP2Many(t *testing.T) {
	const requests, streams = 120, 50
	var here atomic.Int64
	together := make(chan struct{})
	answer := sync.OnceFunc(func() { close(together) })
	b := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		if here.Add(1) == requests { // all are under way
			answer()
		}
		<-together
		_, _ = io.Copy(w, r.Body)
	})
	o := httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C, MaxConnStreams: streams, ConnectTimeout: patience}
	o.Limits.AcquireTimeout = patience
	u := newUpstreamWith(t, o, b.addr)
	p := startProxy(t, routeTo(u))
	client := clientFor(t, "HTTP/2.0")
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			want := bytes.Repeat([]byte{byte(i)}, 1000*i)
			defer answer() // if it failed, the others need not wait for it
			resp, err := client.Post(p.url, "", bytes.NewReader(want))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(got, want) {
				t.Errorf("request %d: %s, %d bytes %.100q, %v", i, resp.Status, len(got), got, err)
			}
		})
	}
	all.Wait()
	if n := b.conns.Load(); n != (requests+streams-1)/streams {
		t.Errorf("%d connections for %d requests at a time", n, requests)
	}
}

// TestServerHTTP2FewStreams: a server that takes one request on a connection gets the connections for many requests at the same time.
func TestServerHTTP2FewStreams(t *testing.T) {
	const requests = 8
	var all, others sync.WaitGroup // connections that are open, but for the first one
	all.Add(requests)
	others.Add(requests - 1)
	var conns atomic.Int64
	addr := serveRaw(t, func(c net.Conn) {
		first := conns.Add(1) == 1
		f := http2.NewFramer(c, bufio.NewReader(c))
		if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		if !first { // they say nothing until all others are there
			others.Done()
			others.Wait()
		}
		_ = f.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		answerH2(f, all.Done, all.Wait)
	})
	p := startProxy(t, routeTo(newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, addr)))
	var done sync.WaitGroup
	for range requests {
		done.Go(func() {
			if resp, err := http.Get(p.url); err != nil || resp.StatusCode != 200 {
				t.Error(resp, err)
			} else {
				_ = resp.Body.Close()
			}
		})
	}
	done.Wait()
	if n := conns.Load(); n != requests {
		t.Errorf("%d connections for %d requests", n, requests)
	}
}

// answerH2 answers one request of HTTP/2, and reads what follows.
func answerH2(f *http2.Framer, asked, wait func()) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				_ = f.WriteSettingsAck()
			}
		case *http2.HeadersFrame:
			asked()
			wait()
			_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: frame.StreamID, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
		}
	}
}
