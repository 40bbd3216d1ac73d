package httpproxy_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// captureRoutes are routes with expressions whose groups make a new path, or the target of a redirect.
func captureRoutes(u *httpproxy.Upstream) []httpproxy.Route {
	rewrite := func(path, to string) httpproxy.Route {
		return httpproxy.Route{Path: path, PathMatch: httpproxy.PathRegexp, Upstream: u, Rewrite: to}
	}
	redirect := func(path, to string) httpproxy.Route {
		return httpproxy.Route{Path: path, PathMatch: httpproxy.PathRegexp, Redirect: httpproxy.Redirect{To: to, Status: 302}}
	}
	return []httpproxy.Route{
		rewrite(`/users/(\d+)/(?P<part>.*)`, "/u$1x/${part}/$part"),
		rewrite(`/cost/(.*)`, "/$$1/${1}{{"),
		rewrite(`/join/(.*)x(.*)`, "/$1$2"),
		rewrite(`/maybe(/a)?/b`, "/m$1/c"),
		rewrite(`/all/.*`, "/in$0"),
		rewrite(`/long/(.*)`, "/"+strings.Repeat("$1", 16)),
		redirect(`/old/(.*)`, "https://www.example$1"),
		redirect(`(/same/.*)`, "https://www.example$1{query}"),
		redirect(`/local/(.*)`, "/$1"),
		redirect(`/find/(?P<q>.*)`, "/search?q=$q&page=1#$q"),
		redirect(`/dots/(.*)x(.*)`, "/a/$1$2"),
		redirect(`/host/(.*)`, "https://{header.X-Host}$1"),
		{Path: "/", Upstream: u},
	}
}

// TestGroupsOfPaths: groups insert what the client wrote, and cannot lead out of the path, in every version of HTTP.
func TestGroupsOfPaths(t *testing.T) {
	for _, protocol := range []httpproxy.Protocol{httpproxy.ProtocolH1, httpproxy.ProtocolH2C} {
		u := newUpstreamWith(t, httpproxy.UpstreamOptions{Protocol: protocol}, serveEither(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RequestURI)
		}))
		p := startProxy(t, httpproxy.Config{Routes: captureRoutes(u)})
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			client := clientFor(t, proto)
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			for path, want := range map[string]string{
				"/users/7/a/b?q=1":                    "200 /u7x/a/b/a/b?q=1",
				"/users/7/":                           "200 /u7x//",
				"/%75sers/%37/a%2Fb":                  "200 /u%37x/a%2Fb/a%2Fb", // escapes stay as they are
				"/users/7/%0d%0aX-A:%20":              "200 /u7x/%0d%0aX-A:%20/%0d%0aX-A:%20",
				"/users/7/%3Fa%23b":                   "200 /u7x/%3Fa%23b/%3Fa%23b",
				"/users/7/%C3%A9%ff":                  "200 /u7x/%C3%A9%ff/%C3%A9%ff",
				"/users/x/a":                          "200 /users/x/a",
				"/cost/5":                             "200 /$1/5{",
				"/cost/$1":                            "200 /$1/$1{",
				"/maybe/b":                            "200 /m/c",
				"/maybe/a/b":                          "200 /m/a/c",
				"/all/x%20y?z":                        "200 /in/all/x%20y?z",
				"/join/axb":                           "200 /ab",
				"/join//ax/b":                         "200 /a/b", // no "//" at the start
				"/join/.x.":                           "400 ",
				"/join/a/.x%2E":                       "400 ",
				"/join/.x.%2Fb":                       "400 ",
				"/join/.x.;a":                         "400 ",
				"/long/" + strings.Repeat("a", 8<<10): "414 ",
				"/old/a/b%2Fc":                        "302 https://www.example/a/b%2Fc",
				"/old/.evil.example/":                 "302 https://www.example/.evil.example/",
				"/old/@evil.example":                  "302 https://www.example/@evil.example",
				"/old/%2F@evil.example":               "302 https://www.example/%2F@evil.example",
				"/old/":                               "302 https://www.example",
				"/same/a?b":                           "302 https://www.example/same/a?b",
				"/local//evil.example":                "302 /evil.example",
				"/local/%0d%0aSet-Cookie:%20a=b":      "302 /%0d%0aSet-Cookie:%20a=b",
				"/find/a&admin=1;b+c":                 "302 /search?q=a%26admin%3D1%3Bb%2Bc&page=1#a&admin=1;b+c",
				"/find/a%26b?x=y":                     "302 /search?q=a%26b&page=1#a%26b",
				"/dots/.x.":                           "400 ",
				"/dots/ax.":                           "302 /a/a.",
				"/host/evil.example":                  "400 ",
			} {
				req, err := http.NewRequest(http.MethodGet, p.url+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, body := doWith(t, client, req)
				got := resp.Status[:4] + resp.Header.Get("Location")
				if resp.StatusCode == http.StatusOK {
					got += body
				}
				if got != want {
					t.Errorf("%.40s by %s to %s: %.200q, want %q", path, proto, protocol, got, want)
				}
			}
		}
	}
}

// TestBadGroups: New refuses groups that the path has not, and those that would choose the host.
func TestBadGroups(t *testing.T) {
	u := newUpstream(t, "127.0.0.1:1")
	for name, r := range map[string]httpproxy.Route{
		"a group too many":             {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Upstream: u, Rewrite: "/$2"},
		"an unknown name":              {PathMatch: httpproxy.PathRegexp, Path: "/(?P<id>a)", Upstream: u, Rewrite: "/$ib"},
		"a prefix":                     {Path: "/a", Upstream: u, Rewrite: "/$1"},
		"an exact path":                {PathMatch: httpproxy.PathExact, Path: "/(a)", Upstream: u, Rewrite: "/$1"},
		"an open brace":                {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Upstream: u, Rewrite: "/${1"},
		"a dollar alone":               {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Upstream: u, Rewrite: "/$-"},
		"many groups":                  {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Upstream: u, Rewrite: "/" + strings.Repeat("$1", 17)},
		"a host":                       {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Redirect: httpproxy.Redirect{To: "https://$1"}},
		"a host of the scheme":         {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Redirect: httpproxy.Redirect{To: "{scheme}://$1.example/"}},
		"dots in a redirect":           {PathMatch: httpproxy.PathRegexp, Path: "/(a)", Redirect: httpproxy.Redirect{To: "/../$1"}},
		"an unknown group of redirect": {PathMatch: httpproxy.PathRegexp, Path: "/a", Redirect: httpproxy.Redirect{To: "/$1"}},
	} {
		if _, err := httpproxy.New(httpproxy.Config{Routes: []httpproxy.Route{r}}); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
