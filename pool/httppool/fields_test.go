package httppool_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/pool/httppool"
)

// TestForwardedFields: the fields about the client that the server gets, the dropped fields, and the fields that the
// client gets.
func TestForwardedFields(t *testing.T) {
	sent := http.Header{
		"X-Forwarded-For": {"1.1.1.1", "2.2.2.2"}, "X-Forwarded-Host": {"outer"}, "X-Forwarded-Port": {"1"}, "X-Real-Ip": {"3.3.3.3"},
		"Forwarded": {"for=1.1.1.1"}, "Via": {"1.0 a", "1.1 b"}, "Connection": {"X-Secret, te"}, "X-Secret": {"s"}, "Te": {"trailers"},
		"Proxy-Authorization": {"p"}, "Keep-Alive": {"k"}, "X-Many": {"1", "2"}, "Authorization": {"a"},
	}
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for name, tc := range map[string]struct {
		cfg  httppool.HandlerConfig
		want http.Header // nil = not there
	}{
		"untrusted": {want: http.Header{
			"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"asked"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Port": nil, "X-Real-Ip": nil,
			"Forwarded": nil, "Via": {"1.0 a", "1.1 b"},
		}},
		"trusted": {cfg: httppool.HandlerConfig{TrustedProxies: loopback}, want: http.Header{
			"X-Forwarded-For": {"1.1.1.1, 2.2.2.2, 127.0.0.1"}, "X-Forwarded-Host": {"outer"}, "X-Forwarded-Proto": {"http"}, "X-Forwarded-Port": {"1"},
			"X-Real-Ip": {"3.3.3.3"}, "Forwarded": {"for=1.1.1.1"},
		}},
		"extended": {cfg: httppool.HandlerConfig{TrustedProxies: loopback, Forwarded: true, Via: "here", RequestID: "x-id"}, want: http.Header{
			"Forwarded": {`for=1.1.1.1, for=127.0.0.1;proto=http;host="asked"`}, "Via": {"1.0 a, 1.1 b, 1.1 here"}, "X-Id": {"7"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan http.Header, 1)
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got <- r.Header
				w.Header()["X-Both"] = []string{"server's", "second"}
				w.Header()["Connection"] = []string{"x-hop"}
				w.Header()["X-Hop"] = []string{"h"}
			}))
			defer backend.Close()
			tc.cfg.Target = backend.URL
			h, err := httppool.NewHandler(tc.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			r := httptest.NewRequestWithContext(t.Context(), "GET", "http://asked/", nil)
			r.Header, r.RemoteAddr = sent.Clone(), "127.0.0.1:1"
			r.Header.Set("X-Id", "7")
			w := httptest.NewRecorder()
			w.Header()["X-Both"], w.Header()["X-Mine"] = []string{"mine"}, []string{"mine"}
			h.ServeHTTP(w, r)
			seen := <-got
			wantFields(t, seen, tc.want)
			wantFields(t, seen, http.Header{
				"X-Secret": nil, "Te": {"trailers"}, "Proxy-Authorization": nil, "Keep-Alive": nil, "Connection": {"TE"},
				"X-Many": {"1", "2"}, "Authorization": {"a"},
			})
			resp := w.Result()
			_, _ = io.Copy(io.Discard, resp.Body)
			wantFields(t, resp.Header, http.Header{"X-Both": {"server's", "second"}, "X-Mine": {"mine"}, "X-Hop": nil, "Connection": nil})
			if r.Header.Get("X-Secret") == "" {
				t.Error("the client's request was changed")
			}
		})
	}
}

func wantFields(t *testing.T, got, want http.Header) {
	t.Helper()
	for name, values := range want {
		if !slices.Equal(got[name], values) {
			t.Errorf("%s is %q, want %q", name, got[name], values)
		}
	}
}

// TestFieldsOfTheConnection: what a server gets of a client's fields about its own connection.
func TestFieldsOfTheConnection(t *testing.T) {
	for name, tc := range map[string]struct {
		request       string
		want, without string // lines of the head that the server gets, in lower case
	}{
		"trailers":               {"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\r\n", "\r\nconnection: te\r\nte: trailers\r\n", ""},
		"trailers and upgrade":   {"GET / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "\r\nconnection: te, upgrade\r\nte: trailers\r\nupgrade: x\r\n", ""},
		"upgrade of HTTP/1.0":    {"GET / HTTP/1.0\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "host: a\r\n", "upgrade"},
		"expectation":            {"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\nx", "\r\nexpect: 100-continue\r\n", ""},
		"expectation, no body":   {"GET / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n", "host: a\r\n", "expect"},
		"expectation, HTTP/1.0":  {"POST / HTTP/1.0\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx", "content-length: 1\r\n", "expect"},
		"names that are no rule": {"GET / HTTP/1.1\r\nHost: a\r\nWWW-Authenticate: b\r\n\r\n", "\r\nwww-authenticate: b\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			heads := make(chan string, 1)
			s := serveRaw(t, func(_ int64, c net.Conn, br *bufio.Reader) {
				head, body := "", false
				for line := ""; line != "\r\n"; head += line {
					line, _ = br.ReadString('\n')
					line = strings.ToLower(line)
					body = body || line == "content-length: 1\r\n"
				}
				heads <- head
				if body {
					_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\n")
					_, _ = br.Discard(1)
				}
				_, _ = io.WriteString(c, ok)
			})
			c, err := net.Dial("tcp", strings.TrimPrefix(serveForward(t, httppool.HandlerConfig{Target: s.url}), "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, tc.request)
			if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 && resp.StatusCode != 100 {
				t.Errorf("got %v, %v", resp, err)
			}
			head := <-heads
			if !strings.Contains(head, tc.want) || tc.without != "" && strings.Contains(head, tc.without) {
				t.Errorf("the server got %q, want %q and not %q", head, tc.want, tc.without)
			}
		})
	}
}
