package httpproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// TestAnswersAreFramedOnce: however a server frames its answer, the client reads exactly that one, and the next
// request's answer after it; an answer that breaks off, or is not HTTP, never looks complete.
func TestAnswersAreFramedOnce(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n"
	for name, tc := range map[string]struct {
		answer string
		want   string // the answers' statuses and bodies; "broken" where the client sees that a body is not whole
		no     string // what the client must not see
		strict bool
	}{
		"length listed by Connection": {answer: ok + "Connection: content-length\r\nContent-Length: 2\r\n\r\nhi", want: "200 hi"},
		"length of a 204":             {answer: "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n", want: "204 ", no: "No Content\r\nContent-Length"},
		"length of a 103":             {answer: "HTTP/1.1 103 Early Hints\r\nContent-Length: 2\r\n\r\n" + ok + "Content-Length: 2\r\n\r\nhi", want: "103 , 200 hi", no: "Content-Length: 2\r\n\r\nHTTP"},
		"no reason":                   {answer: "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nhi", want: "200 hi", no: "200\r\n"},
		"304 with a length":           {answer: "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", want: "304 "},
		"two answers":                 {answer: ok + "Content-Length: 2\r\n\r\nhi" + ok + "Content-Length: 4\r\n\r\nevil", want: "200 hi", no: "evil"},
		"bytes after a chunked body":  {answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nevil", want: "200 hi", no: "evil"},
		"bytes after a 204":           {answer: "HTTP/1.1 204 No Content\r\n\r\nevil", want: "204 ", no: "evil"},
		"up to the end":               {answer: ok + "\r\nhi", want: "200 hi"},
		"HTTP/1.0":                    {answer: "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", want: "200 hi"},
		"short of its length":         {answer: ok + "Content-Length: 3\r\n\r\nhi", want: "broken"},
		"chunks without an end":       {answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n", want: "broken"},
		"half a trailer":              {answer: ok + "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n", want: "broken"},
		"chunk longer than said":      {answer: ok + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\n"+strings.Repeat("x", 1024)+"\r\n", 32) + "1\r\nhi\r\n0\r\n\r\n", want: "broken"},
		"both framings":               {answer: ok + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n", want: "200 hi", no: "chunked\r\nContent-Length"},
		"both framings, strictly":     {answer: ok + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nhi\r\n0\r\n\r\n", strict: true, want: "502"},
		"both, one behind the other":  {answer: ok + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n" + ok + "Content-Length: 4\r\n\r\nevil", want: "200 hi", no: "evil"},
		"one length twice":            {answer: ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", want: "200 hi", no: "2\r\nContent-Length"},
		"one length twice, strictly":  {answer: ok + "Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi", strict: true, want: "502"},
		"two lengths":                 {answer: ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi", want: "502"},
		"folded":                      {answer: ok + "A: b\r\n c\r\nContent-Length: 2\r\n\r\nhi", want: "502"},
		"bare LF":                     {answer: "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", want: "502"},
		"unasked 101":                 {answer: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhi", want: "502"},
		"status of four digits":       {answer: "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nhi", want: "502"},
		"many interim":                {answer: strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100) + ok + "Content-Length: 2\r\n\r\nhi", want: strings.Repeat("102 , ", 100) + "200 hi"},
		"endless interim":             {answer: strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 1100), want: strings.Repeat("102 , ", 1000) + "502"},
		"nothing":                     {answer: "", want: "502"},
	} {
		t.Run(name, func(t *testing.T) {
			var served atomic.Bool
			backend := serveRaw(t, func(c net.Conn) {
				br := bufio.NewReader(c)
				for readRequest(br) == nil {
					if !served.Swap(true) {
						_, _ = io.WriteString(c, tc.answer)
						return
					}
					_, _ = io.WriteString(c, ok+"Content-Length: 4\r\n\r\nnext")
				}
			})
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend), StrictBackend: tc.strict, Retries: httpproxy.Retries{Attempts: 1}}}})
			c, _ := dialRaw(t, p.addr)
			_, _ = io.WriteString(c, getRoot+"GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
			raw, _ := io.ReadAll(c)
			want := append(strings.Split(tc.want, ", "), "200 next")
			if slices.Contains(want, "broken") {
				want = []string{"broken"}
			}
			if got := answersIn(string(raw)); !slices.Equal(got, want) || tc.no != "" && strings.Contains(string(raw), tc.no) {
				t.Errorf("got %q, want %q: %q", got, want, raw)
			}
		})
	}
}

// answersIn reads answers to GET requests: status and body, of 502 the status alone.
func answersIn(raw string) (answers []string) {
	for br := bufio.NewReader(strings.NewReader(raw)); ; {
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			return answers
		}
		body, err := io.ReadAll(resp.Body)
		switch {
		case err != nil:
			return append(answers, "broken")
		case resp.StatusCode == http.StatusBadGateway:
			answers = append(answers, "502")
		default:
			answers = append(answers, fmt.Sprintf("%d %s", resp.StatusCode, body))
		}
	}
}

// TestLargeResponseHead passes to clients of every protocol alike, up to 256 KiB; the connection serves on.
func TestLargeResponseHead(t *testing.T) {
	const size = 100 << 10
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/endless" {
			for i := range 40 {
				w.Header().Set(fmt.Sprint("Large-", i), strings.Repeat("x", 8<<10))
			}
		}
		w.Header().Set("Large", strings.Repeat("x", size))
		_, _ = io.WriteString(w, strings.Repeat("body", 10_000))
	})
	up := newUpstream(t, backend)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: up}}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, path := range []string{"/", "/", "/endless", "/"} {
			resp, err := client.Get(p.url + path)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if path == "/endless" {
				if resp.StatusCode != http.StatusBadGateway {
					t.Errorf("%s %s: %s", proto, path, resp.Status)
				}
				continue
			}
			if len(resp.Header.Get("Large")) != size || len(body) != 40_000 || err != nil {
				t.Errorf("%s %s: %s, a field of %d bytes, %d of body, %v", proto, path, resp.Status, len(resp.Header.Get("Large")), len(body), err)
			}
		}
	}
}
