package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/httpproxy"
)

// TestMaxBody: bodies that are longer than the route allows get 413, whatever their framing and the versions of HTTP, and
// no server takes one for whole.
func TestMaxBody(t *testing.T) {
	const most = 20_000
	var whole atomic.Int64
	backend := serveEither(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err == nil {
			whole.Store(n)
		}
	})
	var routes []httpproxy.Route
	for path, protocol := range map[string]httpproxy.Protocol{"/h1": httpproxy.ProtocolH1, "/h2": httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend)
		routes = append(routes, httpproxy.Route{Path: path, Upstream: u, MaxBody: most}, httpproxy.Route{Path: path + "/small", Upstream: u, MaxBody: 9})
	}
	p := startProxy(t, httpproxy.Config{Routes: routes})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, path := range []string{"/h1", "/h2"} {
			for _, tc := range []struct {
				path         string
				size, pieces int
				status       int
			}{
				{"", most, 0, 200}, {"", most, 7000, 200}, {"", most, most, 200}, {"", most + 1, 0, 413}, {"", most + 1, 7000, 413}, {"", 10 * most, 10 * most, 413},
				{"/small", 9, 0, 200}, {"/small", 9, 9, 200}, {"/small", 10, 0, 413}, {"/small", 10, 10, 413}, {"/small", 10, 1, 413},
			} {
				whole.Store(-1)
				resp, body := askInPieces(t, client, p.url+path+tc.path, strings.Repeat("x", tc.size), tc.pieces)
				name := fmt.Sprintf("%s %s%s, %d bytes in pieces of %d", proto, path, tc.path, tc.size, tc.pieces)
				if got := whole.Load(); resp.StatusCode != tc.status || (got == int64(tc.size)) != (tc.status == 200) || tc.status == 413 && !strings.Contains(body, "long") {
					t.Errorf("%s: %s %q, the server got %d", name, resp.Status, body, got)
				}
			}
		}
	}
	c, br := dialRaw(t, p.addr)
	if resp, _ := roundTrip(t, c, br, "POST /h1 HTTP/1.1\r\nHost: x\r\nContent-Length: 20001\r\nExpect: 100-continue\r\n\r\n"); resp.StatusCode != 413 || !resp.Close {
		t.Errorf("the body is asked for: %s", resp.Status)
	}
}

// TestMaxBodyAsked: what the gateway adds to a body does not count.
func TestMaxBodyAsked(t *testing.T) {
	const body = `{"stream":true}`
	backend := serveEither(t, usageBackend(t))
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, backend)
		llm := &httpproxy.LLM{IncludeUsage: true}
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
			{Path: "/fits", Upstream: u, LLM: llm, MaxBody: int64(len(body))}, {Path: "/long", Upstream: u, LLM: llm, MaxBody: int64(len(body)) - 1},
		}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for _, pieces := range []int{0, 4} {
				for path, want := range map[string]int{"/fits": 200, "/long": 413} {
					if resp, _ := askInPieces(t, clientFor(t, proto), p.url+path+"/completions", body, pieces); resp.StatusCode != want {
						t.Errorf("%s to %s%s in pieces of %d: %s, want %d", proto, protocol, path, pieces, resp.Status, want)
					}
				}
			}
		}
	}
}

// TestMaxBodyAhead: a body without a length that has come with its head, and is too long, is refused before the server answers
// the head alone.
func TestMaxBodyAhead(t *testing.T) {
	backend := serveFrames(t, func(s *frames) {
		for {
			f, ok := s.await(http2.FrameHeaders).(*http2.MetaHeadersFrame)
			if !ok {
				return
			}
			if f.StreamEnded() { // of the warm-up
				s.answer(f.StreamID, "hi")
				continue
			}
			id, given := f.StreamID, false
			for n := 0; n < 2000 && !given; n++ { // round trips, in which the gateway can give the request up
				_ = s.WritePing(false, [8]byte{})
				switch f := s.await(http2.FrameRSTStream, http2.FramePing).(type) {
				case nil:
					return
				case *http2.RSTStreamFrame:
					given = f.StreamID == id
				}
			}
			if !given {
				s.answer(id, "hi")
			}
		}
	})
	u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: httpproxy.ProtocolH2C}, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, MaxBody: 9}}})
	h := dialH2(t, p.addr)
	next := h.warmUp()
	h.write(h.request(next, plainPost, "0123456789"))
	if got := h.outcome(next); !strings.HasPrefix(got, "413") {
		t.Errorf("the client gets %.60q", got)
	}
}
