package httpproxy_test

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// tells returns an upstream whose server answers with the header that the request asks for in X-Say, and the server's address.
func tells(t testing.TB) (u *httpproxy.Upstream, self string) {
	self = serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		name, value, _ := strings.Cut(r.Header.Get("X-Say"), ": ")
		w.Header().Set(name, value)
		w.WriteHeader(http.StatusFound)
	})
	return newUpstream(t, self), self
}

// said returns the header of an answer whose server writes say.
func said(t *testing.T, client *http.Client, url, say string, more ...string) string {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "www.example:8080"
	req.Header.Set("X-Say", say)
	for i := 0; i+1 < len(more); i += 2 {
		req.Header.Set(more[i], more[i+1])
	}
	name, _, _ := strings.Cut(say, ": ")
	stays := *client
	stays.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, _ := doWith(t, &stays, req)
	return resp.Header.Get(name)
}

// reverseCase has what a server says on a route, and what the client gets; {self} is the server's address.
type reverseCase struct {
	name  string
	path  string // of the request
	route httpproxy.Route
	pairs []string
}

// checkReverse asks over all versions of HTTP.
func checkReverse(t *testing.T, cases []reverseCase) {
	t.Helper()
	u, self := tells(t)
	for _, tc := range cases {
		tc.route.Upstream = u
		p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{tc.route}})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			for i := 0; i < len(tc.pairs); i += 2 {
				say, want := strings.ReplaceAll(tc.pairs[i], "{self}", self), strings.ReplaceAll(tc.pairs[i+1], "{self}", self)
				if got := said(t, client, p.url+tc.path, say); got != want {
					t.Errorf("%s, %s: %s becomes %q, want %q", tc.name, proto, say, got, want)
				}
			}
		}
	}
}

// TestOwnLocations: what a server writes that knows only its own address leads to the route.
func TestOwnLocations(t *testing.T) {
	own := httpproxy.LocationRewrite{Own: true}
	checkReverse(t, []reverseCase{
		{"strip", "/shop/", httpproxy.Route{Path: "/shop", StripPrefix: true, Locations: own}, []string{
			"Location: http://{self}/a?b#c", "/shop/a?b#c",
			"Location: https://{self}/a", "/shop/a",
			"Location: HTTP://{self}", "/shop",
			"Location: http://{self}/", "/shop/",
			"Location: http://{self}?x", "/shop?x",
			"Location: //{self}/a", "/shop/a",
			"Location: /login", "/shop/login",
			"Location: /", "/shop/",
			"Location: /shop/login", "/shop/login", // of a server that knows
			"Location: /shop", "/shop",
			"Location: /shopping", "/shop/shopping",
			"Location: http://www.example:8080/shop/x", "/shop/x",
			"Location: http://www.example:8080/x", "/shop/x",
			"Location: http://WWW.example:8080/x", "/shop/x",
			"Location: https://www.example:8080/x", "https://www.example:8080/x", // the client has to change to https
			"Location: http://www.example/x", "http://www.example/x", // another port
			"Location: http://other.example/x", "http://other.example/x",
			"Location: http://a@{self}/x", "http://a@{self}/x",
			"Location: login", "login",
			"Location: ?a", "?a",
			"Location: //other.example/x", "//other.example/x",
			`Location: /\other.example/x`, `/\other.example/x`,
			"Location: http://{self}//other.example/", "/shop//other.example/",
			"Content-Location: /\t/other.example/x", "/\t/other.example/x", // a host to browsers
			"Content-Location: http://{self}/a", "/shop/a",
			"Refresh: 5; url=http://{self}/a", "5; url=/shop/a",
			`Refresh: 5;URL = "/a"; x`, `5;URL = "/shop/a"; x`,
			"Refresh: 5", "5",
			"Refresh: 5; /a", "5; /a",
			"X-Location: /a", "/a",
		}},
	})
}

// TestOwnLocationsElsewhere: where the route changes paths in other ways, or the Host.
func TestOwnLocationsElsewhere(t *testing.T) {
	own := httpproxy.LocationRewrite{Own: true}
	inner := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "Host", Value: "inner.example:81"}}}
	checkReverse(t, []reverseCase{
		{"rewrite", "/api/", httpproxy.Route{Path: "/api/", Rewrite: "/v2{rest}", Locations: own}, []string{
			"Location: /v2/x", "/api/x",
			"Location: /v2", "/api/", // the route does not have /api
			"Location: http://{self}/v2?x", "/api/?x",
			"Location: /v2x", "/v2x",
			"Location: /api/x", "/api/x",
			"Location: http://{self}/other", "/other",
		}},
		{"strip with a slash", "/shop/", httpproxy.Route{Path: "/shop/", StripPrefix: true, Locations: own}, []string{
			"Location: http://{self}", "/shop/",
			"Location: http://{self}?x", "/shop/?x",
			"Location: http://{self}/x", "/shop/x",
		}},
		{"rewrite to what is below the route", "/api", httpproxy.Route{Path: "/api", Rewrite: "/api/v2{rest}", Locations: own}, []string{
			"Location: /api/v2/x", "/api/x",
			"Location: /api/x", "/api/x",
		}},
		{"rewrite with a path before", "/", httpproxy.Route{Rewrite: "/v2{path}", Locations: own}, []string{
			"Location: /v2/x", "/x",
			"Location: /v2", "/",
			"Location: /v2?x", "/?x",
			"Location: /v2//other.example", "/.//other.example",
			`Location: http://{self}/v2/\other.example`, `/./\other.example`,
			`Location: http://{self}\other.example`, `/./\other.example`,
			"Content-Location: /v2/\t/other.example", "/./\t/other.example", // browsers leave out the tab
		}},
		{"rewrite that cannot be undone", "/x/a", httpproxy.Route{Path: "/x/(.*)", PathMatch: httpproxy.PathRegexp, Rewrite: "/$1", Locations: own}, []string{
			"Location: http://{self}/a", "/a",
			"Location: /a", "/a",
			"Location: http://{self}//other.example/", "/.//other.example/",
			"Content-Location: http://{self}/\t\t\\other.example/", "/./\t\t\\other.example/",
		}},
		{"another Host", "/", httpproxy.Route{RequestHeaders: inner, Locations: own}, []string{
			"Location: http://inner.example:81/a", "/a",
			"Location: https://INNER.example:81/a", "/a",
			"Location: http://inner.example/a", "http://inner.example/a",
			"Location: http://www.example:8080/a", "/a",
		}},
		{"escapes", "/%C3%BC/", httpproxy.Route{Path: "/ü", StripPrefix: true, Locations: own}, []string{"Location: /a", "/%C3%BC/a"}},
		{"cookies alone", "/shop/", httpproxy.Route{Path: "/shop", StripPrefix: true, SetCookies: httpproxy.CookieRewrite{Own: true}}, []string{
			"Location: http://{self}/a", "http://{self}/a",
			"Refresh: 1; url=/a", "1; url=/a",
		}},
	})
}

// TestReplacedLocations: what the configuration says comes first.
func TestReplacedLocations(t *testing.T) {
	replace := []httpproxy.Replacement{
		{From: "http://old.example/shop/", To: "{scheme}://{host}/"}, {From: "http://old.example", To: "/old"}, {From: "/a/", To: "/b"}, {From: "/c", To: "https://new.example"}, {From: "/d/", To: "/"},
	}
	pairs := []string{
		"Location: http://old.example/shop/x?y", "http://www.example/x?y",
		"Location: http://old.example/shop", "/old/shop",
		"Location: http://old.example?x", "/old?x",
		"Location: http://old.example", "/old",
		"Location: http://old.example.evil.example/", "http://old.example.evil.example/",
		"Location: http://old.example:81/", "http://old.example:81/",
		"Location: /a/x", "/b/x",
		"Location: /a/", "/b",
		"Location: /c", "https://new.example",
		"Location: /c/@evil.example", "https://new.example/@evil.example",
		"Location: /d//evil.example", "/evil.example",
		"Location: /d///evil.example", "/.//evil.example",
		`Location: /d/\evil.example`, `/./\evil.example`,
		"Content-Location: /d/\t/evil.example", "/./\t/evil.example",
		"Refresh: 0; url='http://old.example/'", "0; url='/old/'",
	}
	own := httpproxy.Route{Path: "/shop", StripPrefix: true, Locations: httpproxy.LocationRewrite{Own: true, Replace: replace}}
	checkReverse(t, []reverseCase{
		{"own", "/shop", own, append([]string{"Location: /x", "/shop/x"}, pairs...)},
		{"not own", "/shop", httpproxy.Route{Path: "/shop", StripPrefix: true, Locations: httpproxy.LocationRewrite{Replace: replace}}, append([]string{
			"Location: /x", "/x",
			"Location: http://{self}/x", "http://{self}/x",
		}, pairs...)},
	})
}

// TestLocationsOfTLS: a client that has used https, itself or towards a trusted proxy, stays there.
func TestLocationsOfTLS(t *testing.T) {
	u, _ := tells(t)
	routes := []httpproxy.Route{{Path: "/shop", StripPrefix: true, Upstream: u, Locations: httpproxy.LocationRewrite{Own: true}}}
	serverTLS, clientTLS := certificates(t)
	secure := startProxy(t, httpproxy.Config{TLS: serverTLS, Routes: routes})
	behind := startProxy(t, httpproxy.Config{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Routes: routes})
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: clientTLS}}
	defer client.CloseIdleConnections()
	for _, scheme := range []string{"http", "https"} {
		say := "Location: " + scheme + "://www.example:8080/x"
		if got := said(t, client, secure.url+"/shop", say); got != "/shop/x" {
			t.Errorf("over TLS, %s becomes %q", say, got)
		}
		if got := said(t, client, behind.url+"/shop", say, "X-Forwarded-Proto", "https"); got != "/shop/x" {
			t.Errorf("behind a proxy with TLS, %s becomes %q", say, got)
		}
	}
	if say := "Location: https://www.example:8080/x"; said(t, client, behind.url+"/shop", say, "X-Forwarded-Proto", "http") != "https://www.example:8080/x" {
		t.Errorf("behind a proxy without TLS, %s does not stay", say)
	}
}

// TestRewrittenCookies: clients accept the cookies and send them back.
func TestRewrittenCookies(t *testing.T) {
	own := httpproxy.CookieRewrite{Own: true}
	checkReverse(t, []reverseCase{
		{"strip", "/shop/", httpproxy.Route{Path: "/shop", StripPrefix: true, SetCookies: own}, []string{
			"Set-Cookie: a=b; Path=/; HttpOnly", "a=b; Path=/shop; HttpOnly",
			"Set-Cookie: a=b;path=/cart; Max-Age=3", "a=b; Path=/shop/cart; Max-Age=3",
			"Set-Cookie: a=b; Path=/shop/cart", "a=b; Path=/shop/cart",
			"Set-Cookie: a=b; Domain=inner.example; Secure", "a=b; Secure",
			"Set-Cookie: a=b ; Domain=.WWW.example", "a=b; Domain=.WWW.example",
			"Set-Cookie: a=b; Domain=example", "a=b; Domain=example",
			"Set-Cookie: a=b; Domain=ww.example", "a=b",
			"Set-Cookie: a=b; Domain=; Path", "a=b; Domain=; Path",
			`Set-Cookie: a="x, y"; Expires=Thu, 01 Jan 2099 00:00:00 GMT`, `a="x, y"; Expires=Thu, 01 Jan 2099 00:00:00 GMT`,
			"Set-Cookie: __Host-a=b; Path=/; Secure", "__Host-a=b; Path=/; Secure",
			"Set-Cookie: a=b", "a=b",
		}},
		{"rewrite", "/api", httpproxy.Route{Path: "/api", Rewrite: "/v2{rest}", SetCookies: own}, []string{
			"Set-Cookie: a=b; Path=/v2", "a=b; Path=/api",
			"Set-Cookie: a=b; Path=/v2/x", "a=b; Path=/api/x",
			"Set-Cookie: a=b; Path=/", "a=b; Path=/",
		}},
		{"a path before", "/", httpproxy.Route{Rewrite: "/v2{path}", SetCookies: own}, []string{"Set-Cookie: a=b; Path=/v2", "a=b; Path=/"}},
		{"flags", "/shop", httpproxy.Route{Path: "/shop", StripPrefix: true, SetCookies: httpproxy.CookieRewrite{Secure: true, HTTPOnly: true, SameSite: httpproxy.SameSiteLax}}, []string{
			"Set-Cookie: a=b; Path=/", "a=b; Path=/; Secure; HttpOnly; SameSite=Lax",
			"Set-Cookie: a=b; samesite=None; secure; Path=/; httponly", "a=b; secure; Path=/; httponly; SameSite=Lax",
			"Set-Cookie: a=b; Domain=inner.example", "a=b; Domain=inner.example; Secure; HttpOnly; SameSite=Lax",
		}},
		{"replace", "/shop", httpproxy.Route{Path: "/shop", StripPrefix: true, SetCookies: httpproxy.CookieRewrite{
			Own: true, Domain: []httpproxy.Replacement{{From: "inner.example", To: "example"}}, Path: []httpproxy.Replacement{{From: "/app", To: "/"}, {From: "/old/", To: "/shop/new/"}},
		}}, []string{
			"Set-Cookie: a=b; Domain=.Inner.example; Path=/app", "a=b; Domain=example; Path=/",
			"Set-Cookie: a=b; Domain=x.inner.example; Path=/app/x", "a=b; Path=/x",
			"Set-Cookie: a=b; Path=/old/x", "a=b; Path=/shop/new/x",
			"Set-Cookie: a=b; Path=/apple", "a=b; Path=/shop/apple",
		}},
		{"locations alone", "/shop", httpproxy.Route{Path: "/shop", StripPrefix: true, Locations: httpproxy.LocationRewrite{Own: true}}, []string{
			"Set-Cookie: a=b; Path=/; Domain=x", "a=b; Path=/; Domain=x",
		}},
	})
}

func TestReverseErrors(t *testing.T) {
	type all = []httpproxy.Replacement
	u := echoBackend(t, "x")
	for want, r := range map[string]httpproxy.Route{
		`"a": want a path, or`:  {Locations: httpproxy.LocationRewrite{Replace: all{{"a", "/b"}}}},
		`"//a": want a path or`: {Locations: httpproxy.LocationRewrite{Replace: all{{"/a", "//a"}}}},
		"not {path}":            {Locations: httpproxy.LocationRewrite{Replace: all{{"/a", "/{path}"}}}},
		"more than 64":          {Locations: httpproxy.LocationRewrite{Replace: make(all, 65)}},
		"want a domain":         {SetCookies: httpproxy.CookieRewrite{Domain: all{{"a", "b; c"}}}},
		`"a": want a path such`: {SetCookies: httpproxy.CookieRewrite{Path: all{{"/a", "a"}}}},
		"SameSite cannot be":    {SetCookies: httpproxy.CookieRewrite{SameSite: "always"}},
		"for answers of an":     {SetCookies: httpproxy.CookieRewrite{Secure: true}, Respond: httpproxy.Respond{Status: 204}},
	} {
		if r.Respond.Status == 0 {
			r.Upstream = u
		}
		if err := (httpproxy.Config{Routes: []httpproxy.Route{r}}).Verify(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestReverseAllocatesNothing: changes are written into the head.
func TestReverseAllocatesNothing(t *testing.T) {
	write := httpproxy.RewriteFields(httpproxy.Route{
		Path: "/shop", StripPrefix: true, RequestHeaders: httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "Host", Value: "inner"}}},
		Locations:  httpproxy.LocationRewrite{Own: true, Replace: []httpproxy.Replacement{{From: "http://old/", To: "https://{host}/"}}},
		SetCookies: httpproxy.CookieRewrite{Own: true, SameSite: httpproxy.SameSiteLax},
	}, "www.example", "127.0.0.1:80", "Location", "http://inner/a", "Content-Location", "http://old/b", "Refresh", "5; url=//127.0.0.1:80//c", "Set-Cookie", "a=b; Path=/; Domain=inner")
	if n := testing.AllocsPerRun(100, write); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzOwnLocation: an address of the server's becomes one of the client's, with nothing left of the server, and no other
// address changes its host.
func FuzzOwnLocation(f *testing.F) {
	for _, l := range []string{"/", "//x", `/\x`, "http://inner:81/a", "http://inner:81//x", "http://inner:81?q", `http://inner:81\x`, "https://www/x", "http://www", "a/b", "", "/v2//x", "//inner:81/v2/..//x", "http://inner:81/\t/x", "/v2/\t/x", "/\t/x"} {
		for kind := range byte(4) {
			f.Add(l, kind)
		}
	}
	base := &url.URL{Scheme: "http", Host: "www", Path: "/api/x"}
	f.Fuzz(func(t *testing.T, l string, kind byte) {
		route := [...]httpproxy.Route{{Path: "/api", StripPrefix: true}, {Path: "/api", Rewrite: "/v2{rest}"}, {Rewrite: "/v2{path}"}, {}}[kind%4]
		got := httpproxy.OwnLocation(route, "www", "inner:81", l)
		for _, read := range []func(string) string{strings.Clone, asBrowsers} {
			before, err := base.Parse(read(l))
			if err != nil {
				continue
			}
			after, err := base.Parse(read(got))
			if err != nil {
				t.Fatalf("%q becomes %q: %v", l, got, err)
			}
			host := before.Host
			if got != l && strings.EqualFold(host, "inner:81") && before.User == nil && (before.Scheme == "http" || before.Scheme == "https") {
				host = base.Host
			}
			if !strings.EqualFold(withoutHTTPPort(after.Host), withoutHTTPPort(host)) {
				t.Errorf("%q becomes %q, at %q instead of %q", l, got, after.Host, host)
			}
			if before.RawQuery != after.RawQuery || before.EscapedFragment() != after.EscapedFragment() {
				t.Errorf("%q becomes %q, with another query or fragment", l, got)
			}
		}
		if u, err := url.Parse(l); err == nil && u.Scheme == "http" && u.Host == "inner:81" && u.User == nil && got == l {
			t.Errorf("%q stays", l)
		}
	})
}

// asBrowsers returns an address with what browsers leave out and replace in it (https://url.spec.whatwg.org).
func asBrowsers(address string) string {
	address = strings.ReplaceAll(address, "\t", "")
	end := strings.IndexAny(address, "?#")
	if end < 0 {
		end = len(address)
	}
	return strings.ReplaceAll(address[:end], `\`, "/") + address[end:]
}

func withoutHTTPPort(host string) string {
	if name, port, err := net.SplitHostPort(host); err == nil && port == "80" {
		return name
	}
	return host
}
