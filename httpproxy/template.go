package httpproxy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpwire"
)

// headerVariable is the prefix of the variables for headers of the request.
const headerVariable = "header."

// variables lists the variables of a template, except for headers.
var variables = []string{"client_ip", "host", "method", "path", "query", "request_id", "rest", "scheme", "uri"}

// Variables lists the variables of the texts in HeaderRules, Redirect and Route.Rewrite, without braces; header.NAME
// stands for a header of the request.
func Variables() []string { return append(slices.Clone(variables), headerVariable+"NAME") }

// template is a text with variables, such as "https://{host}{uri}". "{{" stands for a brace.
type template []segment

// segment is a text, a variable or a group.
type segment struct {
	variable bool
	text     string // the text, or the name of a variable, in lower case for a header; of a group "$" and its name
	group    int    // the number of a group of the route's expression, plus one; 0 = none
}

// TemplateVariables returns the names of the variables in a text, known or not. With groups, which Route.Rewrite and
// Redirect have, there are also those of groups, such as "$1". The error says what is wrong with the text.
func TemplateVariables(text string, groups bool) (names []string, err error) {
	t, err := splitTemplate(text, groups)
	for _, s := range t {
		if s.variable {
			names = append(names, s.text)
		}
	}
	return names, err
}

// splitTemplate splits a text into segments; it does not check the names of variables. With groups a dollar begins the
// name of a group.
func splitTemplate(text string, groups bool) (t template, err error) {
	special := "{"
	if groups {
		special = "{$"
	}
	for text != "" {
		i := strings.IndexAny(text, special)
		if i != 0 {
			if i < 0 {
				i = len(text)
			}
			t = append(t, segment{text: text[:i]})
			text = text[i:]
			continue
		}
		if text[0] == '$' {
			group, tail, err := cutGroup(text)
			if err != nil {
				return nil, err
			}
			t, text = append(t, group), tail
			continue
		}
		if strings.HasPrefix(text, "{{") {
			t = append(t, segment{text: "{"})
			text = text[2:]
			continue
		}
		name, tail, closed := strings.Cut(text[1:], "}")
		if !closed {
			return nil, fmt.Errorf("%.40q: a brace is not closed; a plain one is written twice", text)
		}
		t = append(t, segment{variable: true, text: name})
		text = tail
	}
	return t, nil
}

// newTemplate checks a text and makes a template of it.
func newTemplate(text string) (template, error) { return parseTemplate(text, false, nil) }

// parseTemplate is newTemplate; with groups it also knows those of a route's expression, nil = the route has none.
func parseTemplate(text string, groups bool, expression *regexp.Regexp) (template, error) {
	if !httpwire.ValidValue(text) || len(text) > maxTemplate {
		return nil, fmt.Errorf("%.40q: want a text without line breaks of up to %d bytes", text, maxTemplate)
	}
	t, err := splitTemplate(text, groups)
	for i, s := range t {
		if groups && s.variable && s.text[:min(1, len(s.text))] == "$" {
			if t[i].group, err = groupOf(s.text, expression); err != nil {
				return nil, err
			}
			continue
		}
		header, isHeader := strings.CutPrefix(s.text, headerVariable)
		if s.variable && !slices.Contains(variables, s.text) && !(isHeader && httpwire.ValidToken(header)) {
			return nil, fmt.Errorf("there is no variable {%.40s}; known are %s", s.text, strings.Join(Variables(), ", "))
		}
		if s.variable && isHeader {
			t[i].text = headerVariable + strings.ToLower(header)
		}
	}
	if t.groups() > maxGroups {
		return nil, fmt.Errorf("more than %d groups of the path", maxGroups)
	}
	return t, err
}

// maxTemplate bounds a template in bytes, so that heads stay within common servers' limits.
const maxTemplate = 4 << 10

// append appends the text for the session's request. No part of it has a line break.
func (t template) append(dst []byte, s *session) []byte {
	start := len(dst)
	for i := range t {
		part := &t[i]
		if part.group > 0 {
			dst = s.ex.captured.append(dst, start, part.group-1)
		} else if part.variable {
			dst = s.appendVariable(dst, part.text)
		} else {
			dst = append(dst, part.text...)
		}
	}
	return dst
}

func (s *session) appendVariable(dst []byte, name string) []byte {
	raw := s.req.Target
	switch name {
	case "client_ip":
		return append(dst, s.from().text...)
	case "host":
		return append(dst, requestHost(view(s.req.Host))...)
	case "method":
		return append(dst, s.req.Method...)
	case "path":
		return append(dst, raw[:pathEnd(raw)]...)
	case "query":
		return append(dst, raw[pathEnd(raw):]...)
	case "request_id":
		return append(dst, s.ex.id...)
	case "rest":
		tail := s.ex.target.tail(raw[:pathEnd(raw)])
		if len(tail) > 0 && tail[0] != '/' { // of "%2F", which does not end a host in a URL
			dst = append(dst, '/')
		}
		return append(dst, tail...)
	case "scheme":
		if s.isTLS != nil {
			return append(dst, "https"...)
		}
		return append(dst, "http"...)
	case "uri":
		return append(dst, raw...)
	}
	name = strings.TrimPrefix(name, headerVariable)
	for i := range s.req.Fields {
		if f := &s.req.Fields[i]; httpwire.EqualFold(f.Name, name) && !s.ex.target.access.withholds(f) && (!isClientCert(f.Name) || f.Known == httpwire.Forwarded && s.trusted()) {
			return append(dst, f.Value...)
		}
	}
	return dst
}

// tail returns the part of a path, as written, after the route's prefix: empty, or beginning with a slash or "%2F".
func (t *target) tail(raw []byte) []byte {
	return raw[rawIndex(raw, t.prefix):]
}

// rawIndex returns where in a path, as written, the byte with index n of the decoded path begins.
func rawIndex(raw []byte, n int) int {
	i := 0
	for ; n > 0 && i < len(raw); n-- {
		if raw[i] == '%' {
			i += 2
		}
		i++
	}
	return min(i, len(raw))
}
