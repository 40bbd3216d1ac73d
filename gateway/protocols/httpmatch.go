package protocols

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/identity"
	"github.com/headpond/headpond/internal/jsonfield"
)

// PathMatch says how a route's path is compared.
type PathMatch string

// The values of PathMatch.
const (
	PathPrefix PathMatch = "prefix" // by whole path segments
	PathExact  PathMatch = "exact"
	PathRegex  PathMatch = "regex" // RE2, the whole path
)

// Values implements config.Enum.
func (PathMatch) Values() []string { return []string{"prefix", "exact", "regex"} }

// matchOf returns package httpproxy's form.
func (m PathMatch) matchOf() httpproxy.PathMatch {
	return map[PathMatch]httpproxy.PathMatch{PathExact: httpproxy.PathExact, PathRegex: httpproxy.PathRegexp}[m]
}

// Match is a name with a value. In the file its name is the key.
type Match struct {
	Name  string `conf:"-"`
	Value string `conf:"value"` // of a condition "*": any
}

func matchesOf(all []Match) (fields []httpproxy.FieldMatch) {
	for _, m := range all {
		fields = append(fields, httpproxy.FieldMatch{Name: m.Name, Value: m.Value})
	}
	return fields
}

// Condition is a condition on a header, cookie, query parameter or field. In the file its name is the key. One of the other
// fields is given.
type Condition struct {
	Name     string `conf:"-"`
	Value    string `conf:"value"`    // the whole value; "*": any
	Prefix   string `conf:"prefix"`   // its beginning
	Suffix   string `conf:"suffix"`   // its end
	Contains string `conf:"contains"` // a part
	Regex    string `conf:"regex"`    // RE2, the whole value
}

// given returns the keys that have a value, and their fields.
func (n *Condition) given() (keys []string, fields []*string, last httpproxy.FieldMatch) {
	for i, field := range []*string{&n.Value, &n.Prefix, &n.Suffix, &n.Contains, &n.Regex} { // in the order of httpproxy.ValueMatch
		if *field != "" {
			keys, fields = append(keys, [...]string{"value", "prefix", "suffix", "contains", "regex"}[i]), append(fields, field)
			last = httpproxy.FieldMatch{Name: n.Name, Value: *field, Match: httpproxy.ValueMatch(i)}
		}
	}
	return keys, fields, last
}

func conditionsOf(all []Condition) (list []httpproxy.FieldMatch) {
	for i := range all {
		_, _, match := all[i].given()
		list = append(list, match)
	}
	return list
}

// unconditional reports whether a route takes every request.
func (r *Route) unconditional() bool {
	return r.Host == "" && r.Path == "/" && (r.PathMatch == PathPrefix || r.PathMatch == "") && len(r.Methods)+len(r.Headers)+len(r.Cookies)+len(r.Query)+len(r.Body)+len(r.Groups) == 0
}

// key identifies routes: of two with the same key only the first would be used. Routes with groups are a set, of
// different upstreams.
func (r *Route) key() string {
	set := func(all []Condition, name func(string) string) []string {
		var texts []string
		for _, m := range conditionsOf(all) {
			texts = append(texts, fmt.Sprintf("%s=%d%s", name(m.Name), m.Match, m.Value))
		}
		slices.Sort(texts)
		return texts
	}
	upstream := ""
	if len(r.Groups) > 0 {
		upstream = r.Upstream
	}
	return fmt.Sprintf("%q %q %q %q %q %q %q %q %q", upstream, strings.ToLower(r.Host), r.PathMatch, r.Path, slices.Sorted(slices.Values(r.Methods)),
		set(r.Headers, strings.ToLower), set(r.Cookies, strings.Clone), set(r.Query, strings.Clone), set(r.Body, strings.Clone))
}

// methods are the methods of RFC 9110 and WebDAV, for hints.
var methods = []string{
	http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodTrace,
	"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH",
}

// checkConditions reports problems of a route's conditions besides host and path.
func checkConditions(c *config.Checker, r *Route) {
	for i := range r.Methods {
		m := &r.Methods[i]
		hint := ""
		if closest := config.Closest(*m, methods); closest != "" {
			hint = fmt.Sprintf("; did you mean %q?", closest)
		}
		switch {
		case *m == http.MethodConnect:
			c.Report(c.Mark(m), "methods: CONNECT is refused before any route is looked for")
		case !httpwire.ValidToken(*m), strings.ToUpper(*m) != *m:
			c.Report(c.Mark(m), "methods: %q: want a method such as GET, in upper case%s", config.Clip(*m), hint)
		case hint != "" && !slices.Contains(methods, *m):
			c.Warn(c.Mark(m), "methods: %q is no common method%s", config.Clip(*m), hint)
		}
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		switch {
		case strings.EqualFold(h.Name, "host"):
			c.Report(c.Mark(&h.Name), "headers: a route has \"host\" for that")
		case !httpwire.ValidToken(h.Name):
			c.Report(c.Mark(&h.Name), "headers: %q: a header's name has letters, digits and \"-\"", config.Clip(h.Name))
		case !httpwire.ValidValue(h.Value + h.Prefix + h.Suffix + h.Contains):
			c.Report(c.Mark(&h.Value, &h.Prefix, &h.Suffix, &h.Contains, &h.Name), "headers: %s: no header has such a value", config.Clip(h.Name))
		}
	}
	checkValues(c, "headers", r.Headers)
	for i := range r.Cookies {
		if k := &r.Cookies[i]; !httpwire.ValidToken(k.Name) {
			c.Report(c.Mark(&k.Name), "cookies: %q: a cookie's name has letters, digits, \"-\" and \"_\"", config.Clip(k.Name))
		}
	}
	checkValues(c, "cookies", r.Cookies)
	checkValues(c, "query", r.Query)
	for i := range r.Body {
		if f := &r.Body[i]; jsonfield.CheckPath(f.Name) != nil {
			c.Report(c.Mark(&f.Name), "body: %q: %v", config.Clip(f.Name), jsonfield.CheckPath(f.Name))
		}
	}
	checkValues(c, "body", r.Body)
	for i := range r.Groups {
		g, err := identity.Parse(r.Groups[i])
		if err == nil && g.Key != "" {
			err = jsonfield.CheckPath(g.Key)
		}
		if err != nil {
			c.Report(c.Mark(&r.Groups[i]), "groups: %v", err)
		}
	}
}

// checkValues reports names and values that no request could have, or that are missing.
func checkValues(c *config.Checker, key string, all []Condition) {
	const most = 256 // package httpproxy's
	for i := range all {
		m := &all[i]
		keys, fields, match := m.given()
		switch {
		case !c.NoProblemAt(&m.Name, &m.Value, &m.Prefix, &m.Suffix, &m.Contains, &m.Regex):
		case m.Name == "" || len(m.Name) > most:
			c.Report(c.Mark(&m.Name), "%s: a name has 1 to %d bytes", key, most)
		case len(keys) == 0:
			c.Report(c.Mark(&m.Value, &m.Name), "%s: %s: want a value, or \"*\" for any", key, config.Clip(m.Name))
		case len(keys) > 1:
			c.Report(c.Mark(fields[1]), "%s: %s: %s and %s: want one of value, prefix, suffix, contains and regex", key, config.Clip(m.Name), keys[0], keys[1])
		case match.Match == httpproxy.ValueRegexp:
			if _, err := httpproxy.CompileWhole(match.Value); err != nil {
				c.Report(c.Mark(&m.Regex), "%s: %s: regex: %q: %v; want a regular expression (RE2) for the whole value", key, config.Clip(m.Name), config.Clip(m.Regex), err)
			}
		case len(match.Value) > most:
			c.Report(c.Mark(fields[0], &m.Name), "%s: %s: a value has at most %d bytes", key, config.Clip(m.Name), most)
		}
	}
}

// Beyond says what happens to a request if a field of the body that routes look at is not found within peek_bytes.
type Beyond string

// The values of Beyond.
const (
	BeyondDefault Beyond = "default" // the field matches no condition
	BeyondRefuse  Beyond = "refuse"  // 413
)

// Values implements config.Enum.
func (Beyond) Values() []string { return []string{"default", "refuse"} }

// checkBodies reports problems of the fields of bodies that all routes of a listener look at.
func checkBodies(c *config.Checker, h *HTTPListener) {
	var fields []string
	add := func(name string, at any) {
		if slices.Contains(fields, name) {
			return
		}
		if fields = append(fields, name); len(fields) == jsonfield.MaxFields+1 {
			c.Report(c.Mark(at), "the routes of a listener look at %d fields of bodies at most", jsonfield.MaxFields)
		}
	}
	for i := range h.Routes {
		r := &h.Routes[i]
		if r.LLM != nil && r.LLM.Enabled {
			add("model", &r.LLM)
			if r.LLM.IncludeUsage {
				for _, name := range []string{"stream", "stream_options", "stream_options.include_usage"} {
					add(name, &r.LLM.IncludeUsage)
				}
			}
		}
		for j := range r.Body {
			add(r.Body[j].Name, &r.Body[j].Name)
		}
		for j := range r.Groups {
			if g, err := identity.Parse(r.Groups[j]); err == nil && g.Key != "" {
				add(g.Key, &r.Groups[j])
			}
		}
	}
	if len(fields) == 0 && (h.PeekBytes != httpproxy.DefaultPeekBytes && c.Written(&h.PeekBytes) || h.PeekBeyond == BeyondRefuse) {
		c.Warn(c.Mark(&h.PeekBytes, &h.PeekBeyond), "peek_bytes and peek_beyond have no effect: no route has \"body\", \"groups\" or \"llm\"")
	}
}
