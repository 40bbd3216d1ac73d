package httppool_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// TestMalformedResponsesAreRefused sends responses that two readers could understand differently.
func TestMalformedResponsesAreRefused(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	const chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
	for name, answer := range map[string]string{
		"conflicting Content-Length": ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
		"list of lengths":            ok + "Content-Length: 2, 2\r\n\r\nhi",
		"signed length":              ok + "Content-Length: +2\r\n\r\nhi",
		"negative length":            ok + "Content-Length: -2\r\n\r\nhi",
		"huge length":                ok + "Content-Length: 99999999999999999999\r\n\r\nhi",
		"hexadecimal length":         ok + "Content-Length: 0x2\r\n\r\nhi",
		"two codings":                ok + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"two coding lines":           ok + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"identity coding":            ok + "Transfer-Encoding: identity\r\n\r\nhi",
		"coding in HTTP/1.0":         "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"folded line":                ok + "A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
		"bare LF in the head":        ok + "A: b\nContent-Length: 0\r\n\r\n",
		"bare LF at the end":         ok + "Content-Length: 0\r\n\n",
		"bare LF after status":       "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
		"bare CR":                    ok + "A: b\rc\r\nContent-Length: 0\r\n\r\n",
		"NUL":                        ok + "A: b\x00c\r\nContent-Length: 0\r\n\r\n",
		"space before the colon":     ok + "Content-Length : 0\r\n\r\n",
		"no colon":                   ok + "Content-Length\r\n\r\n",
		"empty name":                 ok + ": x\r\n\r\n",
		"HTTP/2.0":                   "HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.2":                   "HTTP/1.2 200 OK\r\nContent-Length: 0\r\n\r\n",
		"not HTTP":                   "SSH-2.0-OpenSSH_9.6\r\n\r\n",
		"status of two digits":       "HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n",
		"status of four digits":      "HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
		"status below 100":           "HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
		"unasked 101":                "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"endless interim":            strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", httpwire.MaxInterim+1),
		"endless head":               ok + "A: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"too many fields":            ok + strings.Repeat("A: b\r\n", 300) + "\r\n",
		"chunk overflow":             chunked + "10000000000000002\r\nhi\r\n0\r\n\r\n",
		"chunk above int64":          chunked + "8000000000000000\r\nhi\r\n0\r\n\r\n",
		"chunk not hexadecimal":      chunked + "2g\r\nhi\r\n0\r\n\r\n",
		"chunk negative":             chunked + "-2\r\nhi\r\n0\r\n\r\n",
		"chunk empty size":           chunked + "\r\nhi\r\n0\r\n\r\n",
		"chunk 0x":                   chunked + "0x2\r\nhi\r\n0\r\n\r\n",
		"chunk longer than size":     chunked + "2\r\nhi!\r\n0\r\n\r\n",
		"chunk size with bare LF":    chunked + "2\nhi\r\n0\r\n\r\n",
		"chunk ended by LF":          chunked + "2\r\nhi\n0\r\n\r\n",
		"chunk extension with CR":    chunked + "2;a=\rb\r\nhi\r\n0\r\n\r\n",
		"chunk extension too long":   chunked + "2;" + strings.Repeat("x", 4<<10) + "\r\nhi\r\n0\r\n\r\n",
		"chunks all extension":       chunked + strings.Repeat("1;"+strings.Repeat("x", 900)+"\r\na\r\n", 100) + "0\r\n\r\n",
		"trailers with bare LF":      chunked + "0\r\nA: b\n\r\n",
		"trailers folded":            chunked + "0\r\nA: b\r\n c\r\n\r\n",
		"endless trailers":           chunked + "0\r\n" + strings.Repeat("A: b\r\n", 20000) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(int64, int) string { return answer })
			tr := newTransport(t, httppool.Config{})
			resp, body, err := exchange(tr, newRequest(t, "GET", s.url, nil))
			if err == nil {
				t.Fatalf("accepted as %s with body %q", resp.Status, body)
			}
			wantError(t, err, httppool.ErrMalformedResponse)
			wantIdle(t, tr, 0)
		})
	}
}

// TestBodiesFramedTwice: what has one safe meaning passes as in a gateway, unless the program wants it refused.
func TestBodiesFramedTwice(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		answer string
		reused int
	}{
		"repeated Content-Length": {ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", 1},
		"both framings":           {ok + "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(int64, int) string { return tc.answer })
			tr := newTransport(t, httppool.Config{})
			if resp := wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi"); len(resp.Header["Content-Length"]) != tc.reused {
				t.Errorf("the fields are %v", resp.Header)
			}
			wantIdle(t, tr, tc.reused)
			strict := newTransport(t, httppool.Config{Options: httppool.Options{StrictBackend: true}})
			_, _, err := exchange(strict, newRequest(t, "GET", s.url, nil))
			wantError(t, err, httppool.ErrMalformedResponse)
			wantIdle(t, strict, 0)
		})
	}
}

// wantIdle checks how many connections went back.
func wantIdle(t *testing.T, tr *httppool.Transport, want int) {
	t.Helper()
	for _, p := range tr.Stats().Pools {
		if p.Idle != want || p.InUse != 0 {
			t.Errorf("%d connections are idle and %d in use, want %d and 0", p.Idle, p.InUse, want)
		}
	}
}

// TestReturnRule checks which connections serve a second request.
func TestReturnRule(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		method, answer, body string
		header               http.Header
		reused               bool
	}{
		"length":                {answer: ok + "Content-Length: 2\r\n\r\nhi", body: "hi", reused: true},
		"no reason":             {answer: "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", body: "hi", reused: true},
		"empty":                 {answer: ok + "Content-Length: 0\r\n\r\n", reused: true},
		"chunks":                {answer: ok + "Transfer-Encoding: Chunked\r\n\r\n1\r\nh\r\n00001;x=y\r\ni\r\n0\r\n\r\n", body: "hi", reused: true},
		"padded chunk size":     {answer: ok + "Transfer-Encoding: chunked\r\n\r\n2  \r\nhi\r\n0\r\n\r\n", body: "hi", reused: true},
		"204":                   {answer: "HTTP/1.1 204 No Content\r\n\r\n", reused: true},
		"304 with length":       {answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", reused: true},
		"HEAD":                  {method: "HEAD", answer: ok + "Content-Length: 9\r\n\r\n", reused: true},
		"HEAD of chunks":        {method: "HEAD", answer: ok + "Transfer-Encoding: chunked\r\n\r\n", reused: true},
		"after 103":             {answer: "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", reused: true},
		"after unasked 100":     {answer: "HTTP/1.1 100 Continue\r\n\r\n" + ok + "Content-Length: 0\r\n\r\n", reused: true},
		"Connection: close":     {answer: ok + "Content-Length: 2\r\nConnection: x, Close\r\n\r\nhi", body: "hi"},
		"request says close":    {answer: ok + "Content-Length: 2\r\n\r\nhi", body: "hi", header: http.Header{"Connection": {"close"}}},
		"HTTP/1.0":              {answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", body: "hi"},
		"HTTP/1.0 keep-alive":   {answer: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhi", body: "hi"},
		"ended by close":        {answer: ok + "\r\nhi<close>", body: "hi"},
		"extra bytes":           {answer: ok + "Content-Length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n", body: "hi"},
		"204 with a body":       {answer: "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nhi"},
		"HEAD with a body":      {method: "HEAD", answer: ok + "Content-Length: 2\r\n\r\nhi"},
		"304 with chunks":       {answer: "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		"Negotiate challenge":   {answer: "HTTP/1.1 401 U\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n"},
		"NTLM credentials sent": {answer: ok + "Content-Length: 0\r\n\r\n", header: http.Header{"Authorization": {"NTLM TlRM"}}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(int64, int) string { return tc.answer })
			tr := newTransport(t, httppool.Config{})
			for range 2 {
				req := newRequest(t, tc.method, s.url, nil)
				if tc.header != nil {
					req.Header = tc.header
				}
				wantBody(t, tr, req, tc.body)
			}
			if got := s.conns.Load() == 1; got != tc.reused {
				t.Errorf("reused: %v, want %v", got, tc.reused)
			}
		})
	}
}

func TestTruncatedBodiesAreErrors(t *testing.T) {
	for name, answer := range map[string]string{
		"length":   "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi<close>",
		"chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhi<close>",
		"no end":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n<close>",
		"trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n<close>",
		"head":     "HTTP/1.1 200 OK\r\nContent-Le<close>",
	} {
		t.Run(name, func(t *testing.T) {
			s := serveAnswers(t, func(int64, int) string { return answer })
			_, _, err := exchange(newTransport(t, httppool.Config{}), newRequest(t, "GET", s.url, nil))
			wantError(t, err, httppool.ErrServerGone)
			if errors.Is(err, httppool.ErrMalformedResponse) {
				t.Errorf("%v calls a lost connection malformed", err)
			}
		})
	}
}

func TestTrailers(t *testing.T) {
	s := serveAnswers(t, func(int64, int) string {
		return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n2\r\nhi\r\n0\r\n" +
			"Sum: 7\r\nExtra: 1\r\nContent-Length: 5\r\n\r\n"
	})
	tr := newTransport(t, httppool.Config{})
	resp := wantBody(t, tr, newRequest(t, "GET", s.url, nil), "hi")
	if resp.Trailer.Get("Sum") != "7" || resp.Trailer.Get("Extra") != "1" || resp.Trailer["Content-Length"] != nil {
		t.Errorf("trailers are %v", resp.Trailer)
	}
	wantIdle(t, tr, 1)
}
