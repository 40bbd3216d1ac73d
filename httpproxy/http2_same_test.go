package httpproxy_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// told is a message as its reader sees it, without what differs in any case.
func told(line string, header, trailer http.Header, body io.Reader) string {
	var b strings.Builder
	sum := sha256.New()
	n, err := io.Copy(sum, body)
	fmt.Fprintf(&b, "%s\n%d bytes %x %v\n", line, n, sum.Sum(nil), err)
	for _, h := range []http.Header{header, trailer} {
		for _, k := range slices.Sorted(maps.Keys(h)) {
			if k != "X-Request-Id" && k != "Date" && k != "Via" {
				fmt.Fprintf(&b, "%s: %q\n", k, strings.Join(h[k], "; ")) // cookies may come in pieces
			}
		}
	}
	return b.String()
}

// chance is a request and its answer, made up from a seed.
type chance struct{ *rand.Rand }

func (c chance) fields(h http.Header) {
	for range c.IntN(5) {
		h.Add("X-"+string(rune('a'+c.IntN(4))), strings.Repeat("v\tw,", c.IntN(4))+".")
	}
	if c.IntN(8) == 0 {
		h.Set("X-Long", strings.Repeat("l", c.IntN(40000)))
	}
}

func (c chance) body() string {
	return strings.Repeat("body", c.IntN([]int{1, 8, 30000, 200000}[c.IntN(4)]))
}

func (c chance) request(url string) *http.Request {
	var body io.Reader
	method := []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "QUERY"}[c.IntN(8)]
	switch s := "b" + c.body(); {
	case method == "HEAD" || c.IntN(3) == 0:
	case c.IntN(2) == 0:
		body = strings.NewReader(s)
	default:
		body = io.MultiReader(strings.NewReader(s)) // without a length
	}
	path := []string{"/", "/a/b?c=d&e", "/%2e%41%00", "/a//b/;p=1", "/*", "/?", "/%zz"}[c.IntN(6)]
	req, err := http.NewRequest(method, url+path, body)
	if err != nil {
		panic(err)
	}
	req.Host = []string{"a.example", "a.example:8080", "[::1]:1", ""}[c.IntN(4)]
	req.Header.Set("User-Agent", "a")
	c.fields(req.Header)
	if c.IntN(3) == 0 {
		req.Header["Cookie"] = []string{"a=b; c=d", "e=f"}[:1+c.IntN(2)]
	}
	if c.IntN(8) == 0 {
		req.Header.Set("Te", "trailers")
	}
	if body != nil && req.Body != http.NoBody && req.ContentLength <= 0 && c.IntN(2) == 0 {
		req.Trailer = http.Header{"X-Sum": {"7"}}
	}
	if c.IntN(8) == 0 {
		req.Header.Set("Expect", "100-continue")
	}
	return req
}

func (c chance) answer(w http.ResponseWriter) {
	c.fields(w.Header())
	if c.IntN(4) == 0 {
		w.Header().Set("Connection", "X-A")
	}
	if c.IntN(4) == 0 {
		w.WriteHeader(http.StatusEarlyHints)
	}
	body := c.body()
	if c.IntN(2) == 0 {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
	}
	trailer := c.IntN(3) == 0
	status := []int{200, 200, 201, 204, 304, 404, 500, 599}[c.IntN(8)]
	w.WriteHeader(status)
	for len(body) > 0 {
		n := 1 + c.IntN(len(body))
		_, _ = io.WriteString(w, body[:n])
		body = body[n:]
		if c.IntN(2) == 0 {
			w.(http.Flusher).Flush()
		}
	}
	if trailer {
		w.Header().Set(http.TrailerPrefix+"X-End", "1")
	}
}

// TestHTTP2IsTheSame: for any request, the server sees the same request and the client the same answer in HTTP/1.1 and in
// HTTP/2.
func TestHTTP2IsTheSame(t *testing.T) {
	requests := make(chan string, 100)
	backend := serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		var seed uint64
		_, _ = fmt.Sscan(r.Header.Get("X-Seed"), &seed)
		body := &strings.Builder{}
		_, _ = io.Copy(body, r.Body)
		requests <- told(fmt.Sprint(r.Method, r.RequestURI, r.Host, r.ContentLength, r.TransferEncoding), r.Header, r.Trailer, strings.NewReader(body.String()))
		chance{rand.New(rand.NewPCG(seed, 2))}.answer(w)
	})
	p := startProxy(t, routeTo(newUpstream(t, backend)))
	clients := map[string]*http.Client{"HTTP/1.1": clientFor(t, "HTTP/1.1"), "HTTP/2.0": clientFor(t, "HTTP/2.0")}
	for seed := range uint64(100) {
		var seen, answers [2]string
		for i, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			req := chance{rand.New(rand.NewPCG(seed, 1))}.request(p.url)
			req.Header.Set("X-Seed", fmt.Sprint(seed))
			resp, err := clients[proto].Do(req)
			if err != nil {
				t.Fatalf("%d in %s: %v", seed, proto, err)
			}
			body := &strings.Builder{}
			_, err = io.Copy(body, resp.Body)
			_ = resp.Body.Close()
			answers[i] = told(fmt.Sprint(resp.StatusCode, resp.ContentLength, err), resp.Header, resp.Trailer, strings.NewReader(body.String()))
			for more := true; more; {
				select {
				case r := <-requests:
					seen[i] += r
				default:
					more = false
				}
			}
		}
		if seen[0] != seen[1] {
			t.Errorf("%d: the server sees\n%.1500s\nand in HTTP/2\n%.1500s", seed, seen[0], seen[1])
		}
		if answers[0] != answers[1] {
			t.Errorf("%d: the client sees\n%.1500s\nand in HTTP/2\n%.1500s", seed, answers[0], answers[1])
		}
	}
}
