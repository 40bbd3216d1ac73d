package httpproxy_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/httpproxy"
)

// TestCORS: browsers get the answers that let pages of the allowed origins use the route, and no others; preflight requests
// reach no server, and need no password.
func TestCORS(t *testing.T) {
	var asked atomic.Int64
	u := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Access-Control-Allow-Origin", "of the server")
		w.Header().Set("Access-Control-Expose-Headers", "X-Server")
		w.Header().Set("Vary", "Accept")
		w.Header().Set("Got", r.Method)
	}))
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/", Upstream: u},
		{
			Path: "/some", Upstream: u, Methods: []string{"GET", "PUT"},
			CORS: &httpproxy.CORS{Origins: []string{"https://app.example", "https://*.pond.example:8443"}, Credentials: true, ResponseHeaders: []string{"X-A", "X-B"}, MaxAge: time.Hour},
		},
		{Path: "/all", Upstream: u, CORS: &httpproxy.CORS{Origins: []string{"*"}, RequestHeaders: []string{"X-A"}}, BasicAuth: &httpproxy.BasicAuth{Users: users}},
		{Path: "/own", Respond: httpproxy.Respond{Status: 200, Body: "own"}, CORS: &httpproxy.CORS{Origins: []string{"*"}}},
	}})
	const preflight, cors = "preflight ", "Access-Control-"
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for i, tc := range []struct{ request, origin, want string }{
			{preflight + "PUT /some", "https://app.example", "204 origin=https://app.example credentials=true methods=GET, PUT headers=x-mine max=3600 vary=[Origin]"},
			{preflight + "DELETE /some", "https://app.example", "200 origin=of the server credentials= methods= headers= max= vary=[Accept]"}, // another route's
			{preflight + "GET /some", "https://evil.example", "403 origin= credentials= methods= headers= max= vary=[Origin]"},
			{preflight + "GET /some", "https://a.b.pond.example:8443", "204 origin=https://a.b.pond.example:8443 credentials=true methods=GET, PUT headers=x-mine max=3600 vary=[Origin]"},
			{preflight + "GET /all", "null", "204 origin=* credentials= methods=GET, HEAD, POST, PUT, PATCH, DELETE headers=X-A max=600 vary=[]"},
			{preflight + "GET /own", "http://x", "204 origin=* credentials= methods=GET, HEAD, POST, PUT, PATCH, DELETE headers=x-mine max=600 vary=[]"},
			{"GET /some", "https://app.example", "200 origin=https://app.example credentials=true methods= headers= max= vary=[Accept Origin]"},
			{"GET /some", "https://app.example.evil", "200 origin= credentials= methods= headers= max= vary=[Accept Origin]"},
			{"GET /some", "https://pond.example:8443", "200 origin= credentials= methods= headers= max= vary=[Accept Origin]"},
			{"GET /some", "https://evil/.pond.example:8443", "200 origin= credentials= methods= headers= max= vary=[Accept Origin]"},
			{"GET /some", "https://a.pond.example", "200 origin= credentials= methods= headers= max= vary=[Accept Origin]"},
			{"GET /some", "", "200 origin= credentials= methods= headers= max= vary=[Accept Origin]"},
			{"GET /all", "https://x", "401 origin=* credentials= methods= headers= max= vary=[]"},
			{"OPTIONS /all", "https://x", "401 origin=* credentials= methods= headers= max= vary=[]"},
			{"GET /own", "https://x", "200 origin=* credentials= methods= headers= max= vary=[]"},
			{"GET /", "https://x", "200 origin=of the server credentials= methods= headers= max= vary=[Accept]"},
		} {
			about, ahead := strings.CutPrefix(tc.request, preflight)
			method, path, _ := strings.Cut(about, " ")
			req, err := http.NewRequest(method, p.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.origin != "" {
				req.Header.Set("Origin", tc.origin)
			}
			if ahead {
				req.Method = http.MethodOptions
				req.Header.Set(cors+"Request-Method", method)
				req.Header.Set(cors+"Request-Headers", "x-mine")
			}
			before := asked.Load()
			resp, _ := doWith(t, client, req)
			h := resp.Header
			got := fmt.Sprintf("%d origin=%s credentials=%s methods=%s headers=%s max=%s vary=%s", resp.StatusCode, strings.Join(h.Values(cors+"Allow-Origin"), "|"),
				h.Get(cors+"Allow-Credentials"), h.Get(cors+"Allow-Methods"), h.Get(cors+"Allow-Headers"), h.Get(cors+"Max-Age"), h["Vary"])
			if got != tc.want {
				t.Errorf("%s %d, %s of %s: %s\nwant %s", proto, i, tc.request, tc.origin, got, tc.want)
			}
			if own := h.Get("Got") == ""; own != (asked.Load() == before) || own && h.Get("Content-Length") != "" && resp.StatusCode == 204 {
				t.Errorf("%s %d: the server was asked: %v; %v", proto, i, asked.Load() > before, h)
			}
			if exposed := h.Get(cors + "Expose-Headers"); strings.HasPrefix(path, "/some") && h.Get(cors+"Allow-Origin") == tc.origin && tc.origin != "" && exposed != "X-A, X-B" {
				t.Errorf("%s %d: %q can be read", proto, i, exposed)
			}
		}
	}
}

// TestCORSForwardAuth: the answer of an authentication server cannot open the route for other origins either.
func TestCORSForwardAuth(t *testing.T) {
	auth := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", r.Header.Get("Origin"))
		w.Header().Set("Access-Control-Allow-Credentials", "true")
		w.Header().Set("Vary", "Cookie")
		w.Header().Set("Location", "/login")
		w.WriteHeader(http.StatusFound)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: auth, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience}, CORS: &httpproxy.CORS{Origins: []string{"https://app.example"}},
	}}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for origin, want := range map[string]string{
			"https://app.example": "302 /login [https://app.example] [] [Origin Cookie]", "https://evil.example": "302 /login [] [] [Origin Cookie]",
		} {
			req, err := http.NewRequest(http.MethodGet, p.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Origin", origin)
			client := clientFor(t, proto)
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, _ := doWith(t, client, req)
			h := resp.Header
			if got := fmt.Sprint(resp.StatusCode, " ", h.Get("Location"), " ", h["Access-Control-Allow-Origin"], " ", h["Access-Control-Allow-Credentials"], " ", h["Vary"]); got != want {
				t.Errorf("%s, %s: %s, want %s", proto, origin, got, want)
			}
		}
	}
}

// TestCORSConfig: what cannot be is refused.
func TestCORSConfig(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	for want, c := range map[string]httpproxy.CORS{
		"want 1 to 256 origins": {},
		"without a path":        {Origins: []string{"https://app.example/"}},
		"in lower case":         {Origins: []string{"https://App.example"}},
		"the port":              {Origins: []string{"https://app.example:443"}},
		"want an origin":        {Origins: []string{"*.example"}},
		"excludes Credentials":  {Origins: []string{"*"}, Credentials: true},
		"not a token":           {Origins: []string{"*"}, Methods: []string{"a b"}},
	} {
		if err := (httpproxy.Config{Routes: []httpproxy.Route{{Upstream: u, CORS: &c}}}).Verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
