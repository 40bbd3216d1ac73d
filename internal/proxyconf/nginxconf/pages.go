package nginxconf

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/proxyconf"
	"github.com/headpond/headpond/internal/yamltext"
)

// paged gives the route of a rule the pages of error_page.
func (v *view) paged(s scope, r *proxyconf.Rule) *proxyconf.Rule {
	text, at := v.pages(s)
	if text == "" {
		return r
	}
	do := r.Do
	r.Do = func(st *proxyconf.State, k *proxyconf.Known) string {
		st.Settings.Set("error_pages", text, at.at)
		return do(st, k)
	}
	return r
}

// pages returns error_pages of a route, and where they come from; "" if there are none.
func (v *view) pages(s scope) (text string, at *directive) {
	var all []string
	seen := map[string]bool{}
	of := ""
	if d := s.find("proxy_intercept_errors"); d != nil && d.arg(1) == "on" {
		of = ", of: both"
	}
	for _, d := range s.list("error_page") {
		if len(d.words) < 3 {
			continue // nginx refuses it
		}
		var codes []string
		why := ""
		for _, w := range d.words[1 : len(d.words)-1] {
			n, err := strconv.Atoi(w)
			switch {
			case strings.HasPrefix(w, "="):
				why = "the status stays"
			case err != nil || n < 400 || n > 599:
				why = w + " is no status of a page"
			case !seen[w]:
				codes = append(codes, w)
			}
		}
		file := ""
		if why == "" {
			file, why = v.page(s, d.words[len(d.words)-1])
		}
		if why != "" {
			v.missing(d, "error_pages of a route are texts and files for the same status: %s; clients get the answer as it is%s", why, s.login(d))
			continue
		}
		for _, code := range codes {
			seen[code] = true
		}
		kind := ""
		if !slices.Contains([]string{".html", ".htm", ".txt", ".json", ".xml"}, strings.ToLower(filepath.Ext(file))) {
			kind = ", content_type: text/html"
		}
		if at = d; len(codes) > 0 {
			all = append(all, fmt.Sprintf("{status: [%s], file: %s%s%s}", strings.Join(codes, ", "), yamltext.Quote(file), kind, of))
		}
	}
	if len(all) == 0 {
		return "", nil
	}
	return "[" + strings.Join(all, ", ") + "]", at
}

// login says what to do where an error_page leads clients to a login.
func (s scope) login(d *directive) string {
	if s.asks() != nil && (slices.Contains(d.words, "401") || slices.Contains(d.words, "403")) {
		return ", here the auth server's own: let that redirect them to the login"
	}
	return ""
}

// page returns the file of an error_page, or why it has none.
func (v *view) page(s scope, uri string) (file, why string) {
	if !strings.HasPrefix(uri, "/") || strings.ContainsAny(uri, "$?") {
		return "", fmt.Sprintf("%q is no file", uri)
	}
	l, ok := v.serving(s, uri)
	if !ok {
		l = location{scope: s, d: &directive{words: []string{"location"}}}
	}
	if l.d.pass() != nil || slices.ContainsFunc(l.d.block, func(d *directive) bool { return d.name() == "return" || strings.HasSuffix(d.name(), "_pass") }) {
		return "", fmt.Sprintf("%q is no file", uri)
	}
	if alias := l.d.all("alias"); len(alias) > 0 {
		file = v.path(alias[0].arg(1))
		if l.modifier != "=" {
			file += strings.TrimPrefix(uri, l.path)
		}
	} else if root := l.find("root"); root != nil {
		file = strings.TrimSuffix(v.path(v.constant(l.scope, root.arg(1))), "/") + uri
	} else {
		file = v.path("html" + uri)
	}
	text, err := v.opt.Read(file)
	switch {
	case err != nil || !plain(file):
		return "", fmt.Sprintf("cannot read %q", file)
	case len(text) > httpproxy.MaxOwnBody || !utf8.Valid(text) || httpproxy.CheckPage(string(text)) != nil || len(text) == 0:
		return "", fmt.Sprintf("%q is no page of up to %d bytes", file, httpproxy.MaxOwnBody)
	}
	return file, ""
}

// isPage reports whether a location is there for an error_page.
func (v *view) isPage(l location) bool {
	var within func(d *directive) bool
	within = func(d *directive) bool {
		if uri := d.words[len(d.words)-1]; d.name() == "error_page" && strings.HasPrefix(uri, "/") {
			if o, ok := v.serving(l.scope, uri); ok && o.d == l.d {
				return true
			}
		}
		return d.name() != "server" && d.open && slices.ContainsFunc(d.block, within)
	}
	return slices.ContainsFunc(l.scope, func(block *directive) bool { return slices.ContainsFunc(block.block, within) })
}
