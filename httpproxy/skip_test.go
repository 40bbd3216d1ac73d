package httpproxy_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// TestSkippedBodies: a connection goes on after an answer of the gateway if the body that it does not need is short, and
// ends otherwise; the body is never taken for a request.
func TestSkippedBodies(t *testing.T) {
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/up", Upstream: u},
		{Path: "/own", Respond: httpproxy.Respond{Status: 200}},
		{Path: "/limited", Upstream: u, RateLimit: httpproxy.RateLimit{Requests: 1, Per: time.Hour}},
		{Path: "/llm", Upstream: u, LLM: &httpproxy.LLM{}, RateLimit: httpproxy.RateLimit{Requests: 1, Per: time.Hour}},
	}})
	for _, path := range []string{"/limited", "/llm"} { // uses it up
		resp, err := http.Post(p.url+path, "", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	long := strings.Repeat("x", 60<<10)
	object := `{"pad":"` + long + `"}`
	chunks := func(b string) string {
		return fmt.Sprintf("1\r\n%s\r\n%x\r\n%s\r\n0\r\nT: x\r\n\r\n", b[:1], len(b)-1, b[1:])
	}
	for i, tc := range []struct {
		path, framing, body string
		closes              bool
	}{
		{"/own", "Content-Length: 4", "body", false},
		{"/own", fmt.Sprint("Content-Length: ", len(long)), long, false},
		{"/own", "Content-Length: 100000", strings.Repeat("x", 100_000), true},
		{"/own", "Transfer-Encoding: chunked", chunks("body"), false},
		{"/own", "Transfer-Encoding: chunked", chunks(long), false},
		{"/own", "Content-Length: 4\r\nExpect: 100-continue", "", true},
		{"/nowhere", "Content-Length: 4", "body", false},
		{"/limited", "Content-Length: 4", "body", false},
		{"/llm", fmt.Sprint("Content-Length: ", len(object)), object, false},
		{"/llm", "Transfer-Encoding: chunked", chunks(object), false},
		{"/bad/../x", "Content-Length: 4", "body", true},
	} {
		for _, apart := range []bool{false, true} {
			c, br := dialRaw(t, p.addr)
			head := "POST " + tc.path + " HTTP/1.1\r\nHost: x\r\n" + tc.framing + "\r\n\r\n"
			late := apart && tc.path != "/llm" // its body is read before the answer
			go func() {
				if !late {
					_, _ = io.WriteString(c, head+tc.body)
				} else {
					_, _ = io.WriteString(c, head)
				}
			}()
			resp, err := http.ReadResponse(br, nil)
			for err == nil && resp.StatusCode == 100 {
				resp, err = http.ReadResponse(br, nil)
			}
			if err != nil {
				t.Fatal(i, err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			if resp.Close != tc.closes {
				t.Errorf("%d, body later: %v: %s; the connection ends: %v", i, late, resp.Status, resp.Close)
			}
			if resp.Close {
				continue
			}
			next := "GET /up HTTP/1.1\r\nHost: x\r\n\r\n"
			if late {
				next = tc.body + next
			}
			if resp, _ := roundTrip(t, c, br, next); resp.StatusCode != 200 {
				t.Errorf("%d, body later: %v: then %s", i, late, resp.Status)
			}
		}
	}
}

// TestSkippedBodyMissing: the connection ends if the body does not come, is malformed, or is too long to be told so before.
func TestSkippedBodyMissing(t *testing.T) {
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Respond: httpproxy.Respond{Status: 200}}}})
	for _, request := range []string{
		"Content-Length: 4\r\n\r\nbo",
		"Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n0\r\n\r\n",
		"Transfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat("x", 0x20000) + "\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
	} {
		c, br := dialRaw(t, p.addr)
		go func() { _, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\n"+request) }()
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp, err := http.ReadResponse(br, nil); err == nil {
			t.Errorf("%.60q: then %s", request, resp.Status)
		}
	}
}
