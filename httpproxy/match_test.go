package httpproxy_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// conditionCases are requests and the route that each is for.
var conditionCases = []struct{ method, target, fields, want string }{
	{"GET", "/v1", "", "prefix"},
	{"GET", "/v1/models", "", "exact"},
	{"GET", "/v1/%6dodels", "", "exact"},
	{"GET", "/v1/models?x", "", "exact"},
	{"GET", "/v1/models/", "", "long prefix"},
	{"GET", "/v1/chat/12", "", "expression"},
	{"POST", "/v1/chat/12", "X-Tenant: a", "expression"},
	{"GET", "/v1/chat/12x", "", "later expression"},
	{"GET", "/v1/%C3%A9", "", "later expression"},
	{"GET", "/v1/chat/%0A12", "", "later expression"},
	{"GET", "/x/v1/chat/12", "", ""},
	{"GET", "/v1/chat/7", "", "exact before expressions"},
	{"POST", "/v1/x", "", "post"},
	{"PUT", "/v1/x", "", "post"},
	{"HEAD", "/v1/x", "", "prefix"},
	{"GET", "/v1/x", "x-tenant: a", "tenant"},
	{"GET", "/v1/x", "X-TENANT: a", "tenant"},
	{"GET", "/v1/x", "X-Tenant: b|X-Tenant: a", "tenant"},
	{"GET", "/v1/x", "X-Tenant: A", "prefix"},
	{"GET", "/v1/x", "X-Tenant: a, b", "prefix"},
	{"GET", "/v1/x", "X-Tenant: a|Connection: x-tenant", "prefix"}, // the server does not get it
	{"POST", "/v1/x", "X-Tenant: a", "post of tenant"},
	{"GET", "/v1/x", "X-Tenant: a|X-Beta: 0", "two headers"},
	{"GET", "/tenants", "", ""},
	{"GET", "/tenants", "X-Tenant: whatever", "any tenant"},
	{"GET", "/v1?version=2", "", "query"},
	{"GET", "/v1?a&version=1&version=2", "", "query"},
	{"GET", "/v1?%76ersion=%32", "", "query"},
	{"GET", "/v1?version=22", "", "prefix"},
	{"GET", "/v1?version", "", "prefix"},
	{"GET", "/v1?x;version=2", "", "prefix"},
	{"GET", "/tenants?debug", "", "any debug"},
	{"GET", "/tenants?a+b=%C3%BC%26%3D", "", "encoded"},
	{"GET", "/tenants?a+b=%C3%BC%26%3", "", ""},
	{"DELETE", "/v1/x", "Host: h.example", "host"},
	{"POST", "/v1/x", "Host: h.example", "post"}, // what the host has no route for, others may
}

// TestRouteConditions: requests go by exact paths, expressions, methods, headers and parameters, the most specific route first.
func TestRouteConditions(t *testing.T) {
	type match = []httpproxy.FieldMatch
	var routes []httpproxy.Route
	add := func(name string, r httpproxy.Route) {
		r.Upstream = echoBackend(t, name)
		routes = append(routes, r)
	}
	add("prefix", httpproxy.Route{Path: "/v1"})
	add("long prefix", httpproxy.Route{Path: "/v1/models"})
	add("exact", httpproxy.Route{Path: "/v1/models", PathMatch: httpproxy.PathExact})
	add("expression", httpproxy.Route{Path: "/v1/(chat|completions)/[0-9]+", PathMatch: httpproxy.PathRegexp})
	add("later expression", httpproxy.Route{Path: "/v1/chat/.*|/v1/é", PathMatch: httpproxy.PathRegexp})
	add("exact before expressions", httpproxy.Route{Path: "/v1/chat/7", PathMatch: httpproxy.PathExact})
	add("post", httpproxy.Route{Path: "/v1", Methods: []string{"POST", "PUT"}})
	add("tenant", httpproxy.Route{Path: "/v1", Headers: match{{Name: "X-Tenant", Value: "a"}}})
	add("any tenant", httpproxy.Route{Path: "/tenants", Headers: match{{Name: "x-tenant", Value: "*"}}})
	add("post of tenant", httpproxy.Route{Path: "/v1", Methods: []string{"POST"}, Headers: match{{Name: "X-Tenant", Value: "a"}}})
	add("two headers", httpproxy.Route{Path: "/v1", Headers: match{{Name: "x-tenant", Value: "a"}, {Name: "x-beta", Value: "*"}}})
	add("query", httpproxy.Route{Path: "/v1", Query: match{{Name: "version", Value: "2"}}})
	add("any debug", httpproxy.Route{Path: "/tenants", Query: match{{Name: "debug", Value: "*"}}})
	add("encoded", httpproxy.Route{Path: "/tenants", Query: match{{Name: "a b", Value: "ü&="}}})
	add("host", httpproxy.Route{Host: "h.example", Path: "/v1", Methods: []string{"DELETE"}})
	p := startProxy(t, httpproxy.Config{Routes: routes})
	for _, tc := range conditionCases {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			if proto == "HTTP/2.0" && strings.Contains(tc.fields, "Connection:") {
				continue // which it does not have
			}
			resp, body := doWith(t, clientFor(t, proto), requestWith(t, tc.method, p.url+tc.target, tc.fields))
			want := tc.want + " " + tc.target
			if tc.method == "HEAD" {
				want = ""
			}
			if tc.want == "" && resp.StatusCode == 404 {
				continue
			}
			if body != want || resp.StatusCode != 200 {
				t.Errorf("%s: %s %s with %q: %d %q, want %q", proto, tc.method, tc.target, tc.fields, resp.StatusCode, body, tc.want)
			}
		}
	}
}

// TestPartsOfValues: headers, cookies, parameters and fields of a body are compared in the same ways.
func TestPartsOfValues(t *testing.T) {
	ways := []struct {
		match  httpproxy.ValueMatch
		value  string
		fit    []string
		others []string
	}{
		{httpproxy.ValueExact, "beta", []string{"beta"}, []string{"beta2", "Beta", ""}},
		{httpproxy.ValueExact, "*", []string{"x", "*"}, nil},
		{httpproxy.ValuePrefix, "be", []string{"be", "beta"}, []string{"abe", "Beta", "b"}},
		{httpproxy.ValuePrefix, "*", []string{"*a"}, []string{"a"}},
		{httpproxy.ValueSuffix, "ta", []string{"beta", "ta"}, []string{"tab", "TA"}},
		{httpproxy.ValueContains, "e t", []string{"the tab", "e t"}, []string{"et", "e"}},
		{httpproxy.ValueRegexp, "b+|c.*", []string{"bb", "c", "cxx"}, []string{"abb", "bba", ""}},
		{httpproxy.ValueRegexp, "(?i).*firefox/1[2-9].*", []string{"Mozilla Firefox/12 x"}, []string{"Firefox/11"}},
	}
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		client := clientFor(t, proto)
		for _, way := range ways {
			match := []httpproxy.FieldMatch{{Name: "x-a", Value: way.value, Match: way.match}}
			p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
				{Path: "/header", Headers: match, Upstream: says(t, "fits")}, {Path: "/cookie", Cookies: match, Upstream: says(t, "fits")},
				{Path: "/query", Query: match, Upstream: says(t, "fits")}, {Path: "/body", Body: match, Upstream: says(t, "fits")}, {Upstream: says(t, "other")},
			}})
			for want, values := range map[string][]string{"fits": way.fit, "other": way.others} {
				for _, value := range values {
					req := func(path string) *http.Request {
						body, _ := json.Marshal(map[string]string{"x-a": value})
						req, _ := http.NewRequest(http.MethodPost, p.url+path, bytes.NewReader(body))
						return req
					}
					header, cookie, query, body := req("/header"), req("/cookie"), req("/query?a=b&x-a="+url.QueryEscape(value)), req("/body")
					header.Header.Set("X-A", value)
					cookie.Header.Set("Cookie", "X-A=no; b=c; x-a="+value+"; d")
					for _, one := range []*http.Request{header, cookie, query, body} {
						if _, got := doWith(t, client, one); got != want {
							t.Errorf("%s: %d %q: %q in %s goes to %q", proto, way.match, way.value, value, one.URL.Path, got)
						}
					}
				}
			}
		}
	}
}

// TestRoutesByCookie: a cookie counts wherever it is in the head, and a route with one is more specific.
func TestRoutesByCookie(t *testing.T) {
	cookie := func(name, value string) []httpproxy.FieldMatch {
		return []httpproxy.FieldMatch{{Name: name, Value: value}}
	}
	p := startProxy(t, httpproxy.Config{Routes: []httpproxy.Route{
		{Upstream: says(t, "old")}, {Cookies: cookie("canary", "always"), Upstream: says(t, "next")}, {Cookies: cookie("tester", "*"), Upstream: says(t, "test")},
	}})
	for fields, want := range map[string]string{
		"":                                      "old",
		"Cookie: canary=always":                 "next",
		"Cookie: a=b;  canary = always":         "old", // another name
		"Cookie: a=b|Cookie: canary=always":     "next",
		"Cookie: canary=never;canary=always; c": "next",
		"Cookie: canary=never":                  "old",
		"Cookie: Canary=always":                 "old",
		"Cookie: a=canary=always":               "old",
		"Cookie: tester=":                       "test",
		"Cookie: tester":                        "test",
		"Cookie: tester=1|Connection: cookie":   "old", // the server does not get it
	} {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			if proto == "HTTP/2.0" && strings.Contains(fields, "Connection") {
				continue
			}
			if _, got := doWith(t, clientFor(t, proto), requestWith(t, http.MethodGet, p.url, fields)); got != want {
				t.Errorf("%s: with %q a request goes to %q, want %q", proto, fields, got, want)
			}
		}
	}
}

// requestWith makes a request with fields that are separated by "|".
func requestWith(t *testing.T, method, url, fields string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.SplitSeq(fields, "|") {
		name, value, _ := strings.Cut(field, ": ")
		if name == "Host" {
			req.Host = value
		} else if name != "" {
			req.Header[name] = append(req.Header[name], value)
		}
	}
	return req
}

func TestRouteConditionErrors(t *testing.T) {
	u := echoBackend(t, "x")
	type match = []httpproxy.FieldMatch
	long := strings.Repeat("x", 257)
	for want, routes := range map[string][]httpproxy.Route{
		"missing closing":        {{Path: "/(", PathMatch: httpproxy.PathRegexp}},
		"unexpected )":           {{Path: "/a)|(/b", PathMatch: httpproxy.PathRegexp}},
		"longer than 1024":       {{Path: strings.Repeat("a", 1025), PathMatch: httpproxy.PathRegexp}},
		"unknown PathMatch":      {{PathMatch: 7}},
		"can be stripped":        {{Path: "/a", PathMatch: httpproxy.PathExact, StripPrefix: true}},
		"begin with /":           {{PathMatch: httpproxy.PathExact}},
		`"a b" is not a token`:   {{Methods: []string{"a b"}}},
		`header "a:" is not`:     {{Headers: match{{Name: "a:", Value: "b"}}}},
		"Route.Host":             {{Headers: match{{Name: "HOST", Value: "b"}}}},
		"cannot be one":          {{Headers: match{{Name: "a", Value: "b\r\nc: d"}}}},
		"a name has 1 to 256":    {{Query: match{{Value: "b"}}}},
		"cookie \"a b\" is not":  {{Cookies: match{{Name: "a b", Value: "c"}}}},
		"cookie \"a\": unknown":  {{Cookies: match{{Name: "a", Value: "c", Match: 7}}}},
		"query \"a\": error par": {{Query: match{{Name: "a", Value: "(", Match: httpproxy.ValueRegexp}}}},
		"a Value is missing":     {{Headers: match{{Name: "a", Match: httpproxy.ValuePrefix}}}},
		"a value at most":        {{Headers: match{{Name: "a", Value: long}}}},
		"33 conditions; at most": {{Query: slices.Repeat(match{{Name: "a", Value: "b"}}, 33)}},
		"route 1 repeats": {
			{Methods: []string{"GET", "PUT"}, Headers: match{{Name: "a", Value: "b"}, {Name: "c", Value: "d"}}},
			{Methods: []string{"PUT", "GET"}, Headers: match{{Name: "C", Value: "d"}, {Name: "A", Value: "b"}}},
		},
	} {
		for i := range routes {
			routes[i].Upstream = u
		}
		if _, err := httpproxy.New(httpproxy.Config{Routes: routes}); !errors.Is(err, httpproxy.ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	two := []httpproxy.Route{{Upstream: u}, {Upstream: u, Methods: []string{"GET"}}, {Upstream: u, Cookies: match{{Name: "a", Value: "b"}}}, {Upstream: u, Cookies: match{{Name: "a", Value: "b", Match: httpproxy.ValuePrefix}}}, {Upstream: u, PathMatch: httpproxy.PathExact, Path: "/"}}
	if err := (httpproxy.Config{Routes: two}).Verify(); err != nil {
		t.Errorf("routes that differ in conditions alone: %v", err)
	}
}

// FuzzQueryCondition compares the reading of queries with package net/url.
func FuzzQueryCondition(f *testing.F) {
	for _, query := range []string{"", "a", "a=", "a=b&a=c", "%61=%62", "a+b=c%20d", "&&a&=b", "a=b=c", "%zz=1&a=b", "a=%", "é=ü", "a;b=c"} {
		f.Add(query, "a", "b")
		f.Add(query, "a b", "*")
	}
	f.Fuzz(func(t *testing.T, query, name, value string) {
		parsed, err := url.ParseQuery(query)
		if err != nil || name == "" {
			return
		}
		want := slices.Contains(parsed[name], value)
		if value == httpproxy.AnyValue {
			want = parsed.Has(name)
		}
		if got := httpproxy.QueryHas(query, name, value); got != want {
			t.Errorf("%q in %q: %t, want %t", name+"="+value, query, got, want)
		}
	})
}

// FuzzCookieCondition compares the reading of cookies with package net/http, which leaves out names that are no tokens.
func FuzzCookieCondition(f *testing.F) {
	for _, cookies := range []string{"", "a=b", "a=c; a=b", "x; a=b", "a=", "a", ";;a=b;", " a=b ", "a=b=c", "A=b", "a =b"} {
		f.Add(cookies, "b")
		f.Add(cookies, "*")
	}
	f.Fuzz(func(t *testing.T, cookies, value string) {
		if strings.ContainsAny(cookies, "\"\t\v\f\r\n\x85\xa0") {
			return // quotes are a part of the value here
		}
		want := false
		for _, c := range (&http.Request{Header: http.Header{"Cookie": {cookies}}}).CookiesNamed("a") {
			want = want || value == httpproxy.AnyValue || c.Value == value
		}
		if got := httpproxy.CookiesHave(cookies, httpproxy.FieldMatch{Name: "a", Value: value}); want && !got {
			t.Errorf("%q does not have a=%q", cookies, value)
		} else if got && !strings.Contains(cookies, "a") {
			t.Errorf("%q has a=%q", cookies, value)
		}
	})
}
