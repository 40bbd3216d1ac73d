package httpproxy_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/crypto/bcrypt"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/pool/httppool"
)

// htpasswd returns a line of a users file, as htpasswd -B writes it.
func htpasswd(t testing.TB, name, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return name + ":" + strings.Replace(string(hash), "$2a$", "$2y$", 1) + "\n"
}

// fileOfUsers returns users of a file, and what replaces it.
func fileOfUsers(t testing.TB, logger *slog.Logger, text string) (*httpproxy.Users, func(text string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	users, err := httpproxy.NewUsers("users", func() ([]byte, error) { return os.ReadFile(path) }, logger)
	if err != nil {
		t.Fatal(err)
	}
	return users, write
}

// tellsUser answers with the client's identity as it got it.
func tellsUser(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	_, _ = fmt.Fprintf(w, "%s auth=%q", r.Header["X-Remote-User"], r.Header.Get("Authorization"))
}

// basicAuthCases are requests to the routes of TestBasicAuth.
var basicAuthCases = []struct {
	name, path, user, password string
	headers                    http.Header
	status                     int
	body                       string
}{
	{name: "no credentials", path: "/", status: 401},
	{name: "right", path: "/", user: "ann", password: "s3cret: with colon", status: 200, body: `[ann] auth=""`},
	{name: "right again", path: "/", user: "ann", password: "s3cret: with colon", status: 200, body: `[ann] auth=""`},
	{name: "wrong password", path: "/", user: "ann", password: "guess", status: 401},
	{name: "another's password", path: "/", user: "ann", password: "b0b", status: 401},
	{name: "unknown", path: "/", user: "eve", password: "guess", status: 401},
	{name: "another scheme", path: "/", headers: http.Header{"Authorization": {"Bearer x"}}, status: 401},
	{name: "no base64", path: "/", headers: http.Header{"Authorization": {"Basic !!!"}}, status: 401},
	{name: "twice", path: "/", headers: http.Header{"Authorization": {"Basic Ym9iOmIwYg==", "Basic Ym9iOmIwYg=="}}, status: 401},
	{name: "in another case", path: "/", headers: http.Header{"Authorization": {"bAsIc  Ym9iOmIwYg=="}}, status: 200, body: `[bob] auth=""`},
	{
		name: "a name of the client's own", path: "/", user: "bob", password: "b0b", status: 200, body: `[bob] auth=""`,
		headers: http.Header{"X-Remote-User": {"ann"}, "X_remote_user": {"ann"}},
	},
	{name: "text", path: "/text", status: 401},
	{name: "text with password", path: "/text", user: "bob", password: "b0b", status: 200, body: "secret"},
	{name: "variables", path: "/rules", user: "bob", password: "b0b", headers: http.Header{"X-User": {"root"}}, status: 200, body: `[<>] auth=""`},
	{name: "forwarded", path: "/forward", user: "bob", password: "b0b", status: 200, body: `[] auth="Basic Ym9iOmIwYg=="`},
	{name: "a route without", path: "/open", user: "eve", password: "x", status: 200, body: `[] auth="Basic ZXZlOng="`},
}

// TestBasicAuth on both protocols: who is admitted, what the server gets, and what the client gets.
func TestBasicAuth(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), "# people\n\n"+htpasswd(t, "ann", "s3cret: with colon")+htpasswd(t, "bob", "b0b"))
	up := newUpstream(t, serveHTTP(t, tellsUser))
	var log conntest.Log
	cfg := httpproxy.Config{Routes: []httpproxy.Route{
		{Path: "/", Upstream: up, BasicAuth: &httpproxy.BasicAuth{Users: users, Realm: "pond", UserHeader: "X-Remote-User"}},
		{Path: "/forward", Upstream: up, BasicAuth: &httpproxy.BasicAuth{Users: users, Forward: true}},
		{Path: "/open", Upstream: up},
		{Path: "/text", Respond: httpproxy.Respond{Status: 200, Body: "secret"}, BasicAuth: &httpproxy.BasicAuth{Users: users, Realm: "pond"}},
		{
			Path: "/rules", Upstream: up, BasicAuth: &httpproxy.BasicAuth{Users: users, UserHeader: "X-User"},
			RequestHeaders: httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "X-Remote-User", Value: "<{header.X-User}{header.Authorization}>"}}},
		},
	}}
	cfg.Listener.Logger, cfg.Listener.AccessLog = log.Logger(), true
	p := startProxy(t, cfg)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, tc := range basicAuthCases {
			t.Run(proto+"/"+tc.name, func(t *testing.T) {
				req, err := http.NewRequest(http.MethodPost, p.url+tc.path, strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				if tc.headers != nil {
					req.Header = tc.headers.Clone()
				}
				if tc.user != "" {
					req.SetBasicAuth(tc.user, tc.password)
				}
				resp, body := doWith(t, client, req)
				if resp.StatusCode != tc.status || tc.status == 200 && body != tc.body {
					t.Errorf("%s %q, want %d %q", resp.Status, body, tc.status, tc.body)
				}
				if got, want := resp.Header.Get("WWW-Authenticate"), `Basic realm="pond", charset="UTF-8"`; tc.status == 401 && got != want {
					t.Errorf("the challenge is %q, want %q", got, want)
				}
			})
		}
	}
	// Each of five different credentials was checked once, although there were many more requests.
	if n := httpproxy.HashedPasswords(users); n != 5 {
		t.Errorf("bcrypt has run %d times, want 5", n)
	}
	eventually(t, "the log has the user", func() bool { return log.Line("msg=access", "user=ann", "status=200") != "" })
	if got := log.String(); strings.Contains(got, "s3cret") || strings.Contains(got, "guess") || strings.Contains(got, "Ym9iOmIwYg") {
		t.Errorf("the log has a password: %s", got)
	}
	if n := p.Stats().Errors["auth_failed"]; n == 0 {
		t.Error("no failure was counted")
	}
}

// TestBasicAuthFileChanges: users are added, changed and removed, also while the file has mistakes, which affect their
// line only.
func TestBasicAuthFileChanges(t *testing.T) {
	var log conntest.Log
	users, write := fileOfUsers(t, log.Logger(), htpasswd(t, "ann", "old"))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: newUpstream(t, serveHTTP(t, tellsUser)), BasicAuth: &httpproxy.BasicAuth{Users: users}},
	}})
	client := clientFor(t, "HTTP/2.0")
	status := func(user, password string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, p.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth(user, password)
		resp, _ := doWith(t, client, req)
		return resp.StatusCode
	}
	if status("ann", "old") != 200 || status("bob", "b0b") != 401 {
		t.Fatal("the first file does not count")
	}
	write(htpasswd(t, "ann", "new") + htpasswd(t, "bob", "b0b"))
	eventually(t, "a new user is let in", func() bool { return status("bob", "b0b") == 200 })
	if status("ann", "old") != 401 || status("ann", "new") != 200 {
		t.Error("a changed password is not")
	}
	write("carl\n" + htpasswd(t, "ann", "newer"))
	eventually(t, "a user who was removed is not, although another's line has a mistake", func() bool { return status("bob", "b0b") == 401 })
	if status("ann", "new") != 401 || status("ann", "newer") != 200 || log.Line("with mistakes", "users:1: want a name, a colon") == "" {
		t.Error("the other line does not count, or the log has no mistake:", log.String())
	}
	write(htpasswd(t, "ann", "newer") + htpasswd(t, "ann", "newest") + htpasswd(t, "bob", "b0b"))
	eventually(t, "bob is back", func() bool { return status("bob", "b0b") == 200 })
	if status("ann", "newer") != 401 || status("ann", "newest") != 401 {
		t.Error("a name that is there twice is somebody's")
	}
	write("")
	eventually(t, "nobody is left", func() bool { return status("bob", "b0b") == 401 })
	if status("eve", "x") != 401 {
		t.Error("somebody is let in by an empty file")
	}
}

// TestUsersUnreadable: while the file cannot be read, the users read before remain.
func TestUsersUnreadable(t *testing.T) {
	var log conntest.Log
	var gone atomic.Bool
	text := []byte(htpasswd(t, "bob", "b0b"))
	users, err := httpproxy.NewUsers("users", func() ([]byte, error) {
		if gone.Load() {
			return nil, os.ErrPermission
		}
		return text, nil
	}, log.Logger())
	if err != nil {
		t.Fatal(err)
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Upstream: newUpstream(t, serveHTTP(t, tellsUser)), BasicAuth: &httpproxy.BasicAuth{Users: users}}}})
	gone.Store(true)
	c, br := dialRaw(t, p.addr)
	eventually(t, "the log says so", func() bool {
		if resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Ym9iOmIwYg==\r\n\r\n"); resp.StatusCode != 200 {
			t.Error(resp.Status)
		}
		return log.Line("users file could not be reloaded", "permission") != ""
	})
}

// TestBasicAuthManyAtOnce: concurrent requests with one new pair share one check, and none is refused.
func TestBasicAuthManyAtOnce(t *testing.T) {
	hash, err := bcrypt.GenerateFromPassword([]byte("b0b"), 8)
	if err != nil {
		t.Fatal(err)
	}
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), "bob:"+string(hash))
	p := startProxy(t, httpproxy.Config{MaxStreams: 200, Routes: []httpproxy.Route{
		{Respond: httpproxy.Respond{Status: 200}, BasicAuth: &httpproxy.BasicAuth{Users: users}},
	}})
	client, results := clientFor(t, "HTTP/2.0"), make(chan string)
	for range 200 {
		go func() {
			req, _ := http.NewRequest(http.MethodGet, p.url, nil)
			req.SetBasicAuth("bob", "b0b")
			resp, err := client.Do(req)
			if err != nil {
				results <- err.Error()
				return
			}
			resp.Body.Close()
			results <- resp.Status
		}()
	}
	for range 200 {
		if got := <-results; got != "200 OK" {
			t.Error(got)
		}
	}
	if n := httpproxy.HashedPasswords(users); n != 1 {
		t.Errorf("bcrypt has run %d times, want 1", n)
	}
}

// TestHashQueue: sources take turns, each has a bounded number of places, and a source that leaves is not served.
func TestHashQueue(t *testing.T) {
	q := httpproxy.NewHashQueue(1)
	enter := func(source, name string, want bool) {
		t.Helper()
		if got := q.Enter(source, name); got != want {
			t.Errorf("%s of %s: %v", name, source, got)
		}
	}
	enter("192.0.2.1", "first", true)
	for i := range 64 {
		enter("192.0.2.1", fmt.Sprint(i), true)
	}
	enter("192.0.2.1", "one more", false)
	enter("192.0.2.2", "other", true)
	enter("192.0.2.3", "third", true)
	if !q.Leave("192.0.2.3", "third") || q.Leave("192.0.2.1", "first") {
		t.Error("one that waits must be able to leave, one that runs must not")
	}
	for range 66 { // one more than there are
		q.Next()
	}
	if got, want := fmt.Sprint(q.Began[:4]), "[first 0 other 1]"; got != want || len(q.Began) != 66 {
		t.Errorf("%d began, %s, want %s", len(q.Began), got, want)
	}
	enter("192.0.2.1", "last", true)
	if q.Began[66] != "last" {
		t.Error("a free place is not used")
	}
}

// TestUnwantedPassword: a check without waiters is cancelled, and leaves nothing behind.
func TestUnwantedPassword(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	for cause, want := range map[error]string{nil: "given up", httppool.ErrClientGone: "client left"} {
		if got, left := httpproxy.ComparedWithoutTurn(users, cause); got != want || left != 0 {
			t.Errorf("%v: %s, and %d left", cause, got, left)
		}
	}
}

// TestTooManyPasswords: a request whose password was not checked does not count as a failed login.
func TestTooManyPasswords(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	httpproxy.FillQueue(users)
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{{Respond: httpproxy.Respond{Status: 200}, BasicAuth: &httpproxy.BasicAuth{Users: users}}}})
	c, br := dialRaw(t, p.addr)
	resp, _ := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Ym9iOmIwYg==\r\n\r\n")
	if n := p.Stats().Errors; resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || n["overloaded"] != 1 || n["auth_failed"] != 0 {
		t.Errorf("%s, %v", resp.Status, n)
	}
}

// TestUnknownUsersCost: an unknown name is always compared with the same hash, and all unknown names together with every
// user's.
func TestUnknownUsersCost(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "ann", "a")+htpasswd(t, "bob", "b0b"))
	seen := map[string]bool{}
	for i := range 200 {
		name := fmt.Sprint("eve", i)
		hash := httpproxy.ComparedWith(users, name)
		if seen[hash] = true; hash != httpproxy.ComparedWith(users, name) {
			t.Error("another hash for the same name")
		}
	}
	if len(seen) != 2 {
		t.Errorf("%d of 2 hashes are used", len(seen))
	}
}

// TestIdentityHeaderIsWrittenOnce: header rules cannot write it too.
func TestIdentityHeaderIsWrittenOnce(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	_, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{{
		Upstream: newUpstream(t, "127.0.0.1:1"), BasicAuth: &httpproxy.BasicAuth{Users: users, UserHeader: "X-User"},
		RequestHeaders: httpproxy.HeaderRules{Add: []httpproxy.HeaderField{{Name: "x_user", Value: "root"}}},
	}}})
	if !errors.Is(err, httpproxy.ErrConfig) {
		t.Errorf("got %v", err)
	}
}

// TestIdentityHeaderOfATrustedProxy: only the gateway sets a header with the user's name, whoever sends another.
func TestIdentityHeaderOfATrustedProxy(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	const name = "X-Forwarded-User"
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.Header[name], r.Header["X_forwarded_user"], r.Header["X-Forwarded-Client-Cert"])
	}))
	auth := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(name, "bob") }))
	p := startProxy(t, httpproxy.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Routes: []httpproxy.Route{
		{Path: "/basic", Upstream: up, BasicAuth: &httpproxy.BasicAuth{Users: users, UserHeader: name}},
		{Path: "/asks", Upstream: up, ForwardAuth: &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience, ResponseHeaders: []string{name}}},
	}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, path := range []string{"/basic", "/asks"} {
			req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{name: {"root"}, "X_forwarded_user": {"root"}}
			req.SetBasicAuth("bob", "b0b")
			if resp, body := doWith(t, clientFor(t, proto), req); body != "[bob] [] []" {
				t.Errorf("%s %s: %s %q", proto, path, resp.Status, body)
			}
		}
	}
}

// TestUsersMistakes: the error has the line of each, and nothing of its content.
func TestUsersMistakes(t *testing.T) {
	good := htpasswd(t, "ann", "x")
	hash := strings.TrimSpace(strings.TrimPrefix(good, "ann:"))
	for text, want := range map[string]string{
		"":                                    "f has no users",
		"# nobody\n":                          "f has no users",
		good + "bob\n":                        `f:2: want a name, a colon`,
		"\n\nbob:{SHA}secret\n":               "f:3: the password of this user is not a bcrypt hash",
		"bob:$apr1$secret$secret\n":           "f:1: the password of this user is not a bcrypt hash",
		"bob:" + hash[:40] + "\n":             "f:1: the password of this user is not a bcrypt hash",
		good + good:                           "f:2: this user is there twice",
		":" + hash:                            "f:1: the name is empty",
		"a\tb:" + hash + "\n":                 "",
		"a\x01b:" + hash:                      "f:1: the name is empty, longer than 256 bytes, or has control characters",
		strings.Repeat("a", 257) + ":" + hash: "f:1: the name is empty, longer",
		"bob:$2y$31$" + hash[7:]:              "f:1: the hash of this user has cost 31; at most 15",
		strings.Repeat("#", 1<<20+1):          "f has more than 1048576 bytes",
	} {
		err := httpproxy.CheckUsers("f", []byte(text))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%.40q: %v, want %s", text, err, want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%.40q: the error has the hash: %v", text, err)
		}
	}
}

// TestRouteAddresses: lists of routes count for the peer, and for the client that a trusted proxy names.
func TestRouteAddresses(t *testing.T) {
	var asked atomic.Int32
	up := newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	routes := []httpproxy.Route{
		{Path: "/local", Upstream: up, Allow: prefixes("127.0.0.0/8")},
		{Path: "/mapped", Upstream: up, Allow: prefixes("::ffff:127.0.0.0/104")},
		{Path: "/far", Upstream: up, Allow: prefixes("192.0.2.0/24", "2001:db8::/32"), Deny: prefixes("192.0.2.9/32")},
		{Path: "/deny", Upstream: up, Deny: prefixes("127.0.0.1/32")},
		{Path: "/open", Upstream: up},
	}
	for name, tc := range map[string]struct {
		trusted []netip.Prefix
		want    map[string]int // by path and X-Forwarded-For
	}{
		"peers": {nil, map[string]int{
			"/local": 200, "/mapped": 200, "/far": 403, "/deny": 403, "/open": 200, "/far 192.0.2.1": 403, "/local 192.0.2.1": 200,
		}},
		"behind proxies": {prefixes("127.0.0.0/8", "10.0.0.0/8"), map[string]int{
			"/local": 200, "/deny": 403, "/open": 200, "/far": 403,
			"/far 192.0.2.1": 200, "/far 192.0.2.9": 403, "/far [2001:db8::1]:80": 200, "/far 192.0.2.1:80": 200, "/far ::ffff:192.0.2.1": 200,
			"/far 192.0.2.1, 203.0.113.1": 403, "/far 203.0.113.1,192.0.2.1, 10.1.1.1": 200, "/far 192.0.2.1,nonsense": 403, "/deny nonsense": 403,
			"/local 10.0.0.1": 403, "/local 192.0.2.1|10.0.0.1": 403, "/far 203.0.113.1|192.0.2.1": 200, "/far 192.0.2.1|203.0.113.1": 403, "/deny 192.0.2.1": 200,
			"/local ": 403, "/open nonsense": 200,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, httpproxy.Config{Routes: routes, TrustedProxies: tc.trusted})
			for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
				client := clientFor(t, proto)
				for request, status := range tc.want {
					path, forwarded, named := strings.Cut(request, " ")
					req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
					if err != nil {
						t.Fatal(err)
					}
					if named {
						req.Header["X-Forwarded-For"] = strings.Split(forwarded, "|")
					}
					before := asked.Load()
					if resp, body := doWith(t, client, req); resp.StatusCode != status || (asked.Load() > before) != (status == 200) {
						t.Errorf("%s %s: %s %q, want %d", proto, request, resp.Status, body, status)
					}
				}
			}
			if p.Stats().Errors["denied"] == 0 {
				t.Error("nothing was counted")
			}
		})
	}
}

// TestRefusedConnectionServesOn: a connection whose request was refused for lack of a password serves the next one.
func TestRefusedConnectionServesOn(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: newUpstream(t, serveHTTP(t, tellsUser)), BasicAuth: &httpproxy.BasicAuth{Users: users}},
	}})
	c, br := dialRaw(t, p.addr)
	for range 2 {
		if resp, _ := roundTrip(t, c, br, getRoot); resp.StatusCode != 401 {
			t.Fatal(resp.Status)
		}
		if resp, body := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Ym9iOmIwYg==\r\n\r\n"); body != `[] auth=""` {
			t.Fatalf("%s %q", resp.Status, body)
		}
	}
	_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\nGET / HTTP/1.1\r\n\r\n")
	if resp, err := http.ReadResponse(br, nil); err != nil || resp.StatusCode != 401 {
		t.Fatalf("%v %v", resp, err)
	} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp, body := roundTrip(t, c, br, "GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Basic Ym9iOmIwYg==\r\n\r\n"); body != `[] auth=""` {
		t.Errorf("a body was served as a request: %s %q", resp.Status, body)
	}
}

// TestIdentityHeaderInTrailers: a server may merge trailers into the header.
func TestIdentityHeaderInTrailers(t *testing.T) {
	users, _ := fileOfUsers(t, slog.New(slog.DiscardHandler), htpasswd(t, "bob", "b0b"))
	up := newUpstream(t, serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, r.Trailer)
	}))
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: up, BasicAuth: &httpproxy.BasicAuth{Users: users, UserHeader: "X-Remote-User"}},
	}})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		req, err := http.NewRequest(http.MethodPost, p.url, io.MultiReader(strings.NewReader("body")))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("bob", "b0b")
		req.Trailer = http.Header{"X-Remote-User": {"root"}, "X_remote_user": {"root"}, "X_forwarded_client_cert": {"Hash=1"}, "Sum": {"1"}}
		if resp, body := doWith(t, clientFor(t, proto), req); body != "map[Sum:[1]]" {
			t.Errorf("%s: %s %q", proto, resp.Status, body)
		}
	}
}

// TestPathParameters: parameters that some servers remove from a segment do not hide a ".." segment.
func TestPathParameters(t *testing.T) {
	p := startProxy(t, routeTo(newUpstream(t, serveHTTP(t, func(http.ResponseWriter, *http.Request) {}))))
	for path, status := range map[string]int{"/public/..;/admin": 400, "/public/.;a=b/x": 400, "/public/%2e%2e;/admin": 400, "/public/...;a/x": 200, "/a;b/c..;d": 200} {
		if got := sendRaw(t, p.addr, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); len(got) != 1 || got[0] != status {
			t.Errorf("%s: %v, want %d", path, got, status)
		}
	}
}
