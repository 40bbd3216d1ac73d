package protocols

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

// Redirect is a route's answer with another address; see httpproxy.Redirect.
type Redirect struct {
	To     string `conf:"to" required:"true" groups:"true"` // a path or URL, with variables
	Status int    `conf:"status" default:"308" min:"301" max:"308"`
}

// Respond is a route's own answer; see httpproxy.Respond.
type Respond struct {
	Status      int    `conf:"status" default:"200" min:"200" max:"599"`
	Body        string `conf:"body"`
	ContentType string `conf:"content_type" default:"text/plain; charset=utf-8"`
}

// HeaderRules change headers; see httpproxy.HeaderRules.
type HeaderRules struct {
	Set    []Match  `conf:"set" key:"Name" scalar:"Value" maxlen:"64"`
	Add    []Match  `conf:"add" key:"Name" scalar:"Value" maxlen:"64"`
	Remove []string `conf:"remove" maxlen:"64"`
}

// settings returns the proxy's form.
func (h *HeaderRules) settings() (rules httpproxy.HeaderRules) {
	if h == nil {
		return rules
	}
	fields := func(all []Match) (list []httpproxy.HeaderField) {
		for _, m := range all {
			list = append(list, httpproxy.HeaderField{Name: m.Name, Value: m.Value})
		}
		return list
	}
	return httpproxy.HeaderRules{Set: fields(h.Set), Add: fields(h.Add), Remove: h.Remove}
}

// settings returns the proxy's form.
func (r *Redirect) settings() httpproxy.Redirect {
	if r == nil {
		return httpproxy.Redirect{}
	}
	return httpproxy.Redirect{To: r.To, Status: r.Status}
}

// settings returns the proxy's form.
func (r *Respond) settings() httpproxy.Respond {
	if r == nil {
		return httpproxy.Respond{}
	}
	return httpproxy.Respond{Status: r.Status, Body: r.Body, ContentType: r.ContentType}
}

// answersItself reports whether the route has its own answer, and no upstream.
func (r *Route) answersItself() bool { return r.Redirect != nil || r.Respond != nil }

// checkAnswers reports problems of a route's own answers, and of its changes to messages.
func checkAnswers(c *config.Checker, r *Route) {
	if r.Redirect != nil && r.Respond != nil {
		c.Report(c.Mark(&r.Respond), "respond: the route has a \"redirect\" already")
	}
	if r.answersItself() {
		for key, field := range map[string]any{"upstream": &r.Upstream, "groups": &r.Groups, "affinity": &r.Affinity, "canary": &r.Canary, "retries": &r.Retries, "rewrite": &r.Rewrite} {
			if c.Written(field) {
				c.Report(c.Mark(field), "%s: a route with \"redirect\" or \"respond\" sends no request to an upstream", key)
			}
		}
		if r.StripPrefix {
			c.Report(c.Mark(&r.StripPrefix), "strip_prefix: a route with \"redirect\" or \"respond\" sends no request to an upstream")
		}
		if r.MaxBody != 0 {
			c.Report(c.Mark(&r.MaxBody), "max_body_kib: a route with \"redirect\" or \"respond\" sends no request to an upstream")
		}
	}
	if d := r.Redirect; d != nil {
		if !slices.Contains(httpproxy.RedirectStatuses(), d.Status) && c.NoProblemAt(&d.Status) {
			c.Report(c.Mark(&d.Status), "status: %d: want one of 301, 302, 303, 307 and 308", d.Status)
		}
		if c.NoProblemAt(&d.To, &r.Redirect) {
			checkPathTemplate(c, r, "to", d.To, &d.To, httpproxy.CheckRedirect, httpproxy.Variables())
		}
	}
	if o := r.Respond; o != nil {
		if len(o.Body) > httpproxy.MaxOwnBody {
			c.Report(c.Mark(&o.Body), "body: longer than %d bytes", httpproxy.MaxOwnBody)
		}
		if err := httpproxy.CheckContentType(o.ContentType); err != nil {
			c.Report(c.Mark(&o.ContentType), "content_type: %q: %v", config.Clip(o.ContentType), err)
		}
	}
	if o := r.Respond; o != nil && !httpproxy.MayHaveBody(o.Status) && o.Body != "" {
		c.Report(c.Mark(&o.Body), "body: an answer with status %d has none", o.Status)
	}
	if r.Rewrite != "" {
		checkPathTemplate(c, r, "rewrite", r.Rewrite, &r.Rewrite, httpproxy.CheckRewrite, []string{"path", "rest"})
		if r.StripPrefix {
			c.Report(c.Mark(&r.Rewrite), "rewrite: with strip_prefix there would be two new paths; /x{rest} begins behind the prefix")
		}
	}
	checkHeaderRules(c, r.RequestHeaders, true)
	checkHeaderRules(c, r.ResponseHeaders, false)
	if h := r.ResponseHeaders; h != nil && r.Redirect != nil {
		is := func(name string) bool { return strings.EqualFold(name, "location") }
		if slices.ContainsFunc(slices.Concat(h.Set, h.Add), func(m Match) bool { return is(m.Name) }) || slices.ContainsFunc(h.Remove, is) {
			c.Report(c.Mark(&r.ResponseHeaders), "response_headers: Location is what \"redirect\" says")
		}
	}
}

func checkHeaderRules(c *config.Checker, h *HeaderRules, request bool) {
	if h == nil {
		return
	}
	fields := func(key string, all []Match) {
		for i := range all {
			m := &all[i]
			sets := request && key == "set" && strings.EqualFold(m.Name, "host")
			if err := httpproxy.CheckHeaderRule(m.Name, request); err != nil && !sets {
				c.Report(c.Mark(&m.Name), "%s: %v", key, err)
			}
			if m.Value == "" && c.NoProblemAt(&m.Value) { // {} in place of a value
				c.Report(c.Mark(&m.Value, &m.Name), "%s: %s: want a value", key, config.Clip(m.Name))
			}
			checkTemplate(c, key+": "+config.Clip(m.Name), m.Value, &m.Value, func(string) error { return nil }, httpproxy.Variables(), &m.Name)
		}
	}
	fields("set", h.Set)
	fields("add", h.Add)
	for i := range h.Remove {
		if err := httpproxy.CheckHeaderRule(h.Remove[i], request); err != nil {
			c.Report(c.Mark(&h.Remove[i]), "remove: %v", err)
		}
	}
}

// checkPathTemplate is checkTemplate for a text that may have groups of the route's path.
func checkPathTemplate(c *config.Checker, r *Route, key, text string, at any, check func(string, *regexp.Regexp) error, known []string) {
	var expression *regexp.Regexp
	if r.PathMatch == PathRegex {
		var err error
		if expression, err = httpproxy.CompilePath(r.Path); err != nil {
			return // reported with the path
		}
	}
	names, err := httpproxy.TemplateVariables(text, true)
	groups := httpproxy.PathGroups(expression)
	for i, name := range names {
		if !strings.HasPrefix(name, "$") {
			continue
		}
		hint := "; known are " + strings.Join(groups, ", ")
		if closest := config.Closest(name, groups); closest != "" && strings.Trim(name, "$0123456789") != "" {
			hint = fmt.Sprintf("; did you mean %s?", closest)
		}
		switch {
		case expression == nil:
			c.Report(c.Mark(at), "%s: %s: only a path with path_match: regex has groups; a plain dollar is written $$", key, config.Clip(name))
			return
		case !slices.Contains(groups, name):
			c.Report(c.Mark(at), "%s: there is no group %s in the path%s", key, config.Clip(name), hint)
			return
		}
		names[i] = ""
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	checkNames(c, key, names, err, c.Mark(at), func() error { return check(text, expression) }, known)
}

// checkTemplate reports unknown variables of a text, with similar known ones, and the error that check returns.
func checkTemplate(c *config.Checker, key, text string, at any, check func(string) error, known []string, or ...any) {
	names, err := httpproxy.TemplateVariables(text, false)
	checkNames(c, key, names, err, c.Mark(append([]any{at}, or...)...), func() error { return check(text) }, known)
}

// checkNames reports the first name that is not known, err, or the error of check.
func checkNames(c *config.Checker, key string, names []string, err error, pos config.Position, check func() error, known []string) {
	for _, name := range names {
		if slices.Contains(known, name) || strings.HasPrefix(name, "header.") && slices.Contains(known, "header.NAME") && len(name) > len("header.") {
			continue
		}
		hint := "; known are " + strings.Join(known, ", ")
		if closest := config.Closest(name, known); closest != "" {
			hint = fmt.Sprintf("; did you mean {%s}?", closest)
		}
		c.Report(pos, "%s: there is no variable {%s} here%s", key, config.Clip(name), hint)
		return
	}
	if err == nil {
		err = check()
	}
	if err != nil {
		c.Report(pos, "%s: %v", key, err)
	}
}
