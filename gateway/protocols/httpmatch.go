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

// Match is a condition on a header, query parameter or field. In the file its name is the key.
type Match struct {
	Name  string `conf:"-"`
	Value string `conf:"value"` // "*": any
}

func matchesOf(all []Match) (fields []httpproxy.FieldMatch) {
	for _, m := range all {
		fields = append(fields, httpproxy.FieldMatch{Name: m.Name, Value: m.Value})
	}
	return fields
}

// unconditional reports whether a route takes every request.
func (r *Route) unconditional() bool {
	return r.Host == "" && r.Path == "/" && (r.PathMatch == PathPrefix || r.PathMatch == "") && len(r.Methods)+len(r.Headers)+len(r.Query)+len(r.Body)+len(r.Groups) == 0
}

// key identifies routes: of two with the same key only the first would be used. Routes with groups are a set, of
// different upstreams.
func (r *Route) key() string {
	set := func(all []Match, name func(string) string) []string {
		var texts []string
		for _, m := range all {
			texts = append(texts, name(m.Name)+"="+m.Value)
		}
		slices.Sort(texts)
		return texts
	}
	upstream := ""
	if len(r.Groups) > 0 {
		upstream = r.Upstream
	}
	return fmt.Sprintf("%q %q %q %q %q %q %q %q", upstream, strings.ToLower(r.Host), r.PathMatch, r.Path, slices.Sorted(slices.Values(r.Methods)),
		set(r.Headers, strings.ToLower), set(r.Query, strings.Clone), set(r.Body, strings.Clone))
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
		case !httpwire.ValidValue(h.Value):
			c.Report(c.Mark(&h.Value, &h.Name), "headers: %s: no header has such a value", config.Clip(h.Name))
		}
	}
	checkLengths(c, "headers", r.Headers)
	checkLengths(c, "query", r.Query)
	for i := range r.Body {
		if f := &r.Body[i]; jsonfield.CheckPath(f.Name) != nil {
			c.Report(c.Mark(&f.Name), "body: %q: %v", config.Clip(f.Name), jsonfield.CheckPath(f.Name))
		}
	}
	checkLengths(c, "body", r.Body)
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

// checkLengths reports names and values that no request could have, or that are missing.
func checkLengths(c *config.Checker, key string, all []Match) {
	const most = 256 // package httpproxy's
	for i := range all {
		m := &all[i]
		switch {
		case !c.NoProblemAt(&m.Name):
		case m.Name == "" || len(m.Name) > most:
			c.Report(c.Mark(&m.Name), "%s: a name has 1 to %d bytes", key, most)
		case len(m.Value) > most:
			c.Report(c.Mark(&m.Value, &m.Name), "%s: %s: a value has at most %d bytes", key, config.Clip(m.Name), most)
		case m.Value == "" && c.NoProblemAt(&m.Value):
			c.Report(c.Mark(&m.Value, &m.Name), "%s: %s: want a value, or \"*\" for any", key, config.Clip(m.Name))
		}
	}
}

// Beyond says what happens to a request whose body has no field that routes look at within peek_bytes.
type Beyond string

// The values of Beyond.
const (
	BeyondDefault Beyond = "default" // a route that does not ask for one
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
