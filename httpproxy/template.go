package httpproxy

import (
	"fmt"
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

// segment is a text or a variable.
type segment struct {
	variable bool
	text     string // the text, or the name of a variable, in lower case for a header
}

// TemplateVariables returns the names of the variables in a text, known or not. The error says what is wrong with the
// text.
func TemplateVariables(text string) (names []string, err error) {
	t, err := splitTemplate(text)
	for _, s := range t {
		if s.variable {
			names = append(names, s.text)
		}
	}
	return names, err
}

// splitTemplate splits a text into segments; it does not check the names of variables.
func splitTemplate(text string) (t template, err error) {
	for text != "" {
		i := strings.IndexByte(text, '{')
		if i != 0 {
			if i < 0 {
				i = len(text)
			}
			t = append(t, segment{text: text[:i]})
			text = text[i:]
			continue
		}
		if strings.HasPrefix(text, "{{") {
			t = append(t, segment{text: "{"})
			text = text[2:]
			continue
		}
		name, rest, closed := strings.Cut(text[1:], "}")
		if !closed {
			return nil, fmt.Errorf("%.40q: a brace is not closed; a plain one is written twice", text)
		}
		t = append(t, segment{true, name})
		text = rest
	}
	return t, nil
}

// newTemplate checks a text and makes a template of it.
func newTemplate(text string) (template, error) {
	if !httpwire.ValidValue(text) || len(text) > maxTemplate {
		return nil, fmt.Errorf("%.40q: want a text without line breaks of up to %d bytes", text, maxTemplate)
	}
	t, err := splitTemplate(text)
	for i, s := range t {
		header, isHeader := strings.CutPrefix(s.text, headerVariable)
		if s.variable && !slices.Contains(variables, s.text) && !(isHeader && httpwire.ValidToken(header)) {
			return nil, fmt.Errorf("there is no variable {%.40s}; known are %s", s.text, strings.Join(Variables(), ", "))
		}
		if s.variable && isHeader {
			t[i].text = headerVariable + strings.ToLower(header)
		}
	}
	return t, err
}

// maxTemplate bounds a template in bytes, so that heads stay within common servers' limits.
const maxTemplate = 4 << 10

// append appends the text for the session's request. No part of it has a line break.
func (t template) append(dst []byte, s *session) []byte {
	for _, part := range t {
		if part.variable {
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
		rest := s.ex.target.rest(raw[:pathEnd(raw)])
		if len(rest) > 0 && rest[0] != '/' { // of "%2F", which does not end a host in a URL
			dst = append(dst, '/')
		}
		return append(dst, rest...)
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

// rest returns the part of a path, as written, after the route's prefix: empty, or beginning with a slash or "%2F".
func (t *target) rest(raw []byte) []byte {
	i := 0
	for n := t.prefix; n > 0 && i < len(raw); n-- { // skip n bytes of the decoded path
		if raw[i] == '%' {
			i += 2
		}
		i++
	}
	return raw[min(i, len(raw)):]
}
