package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/listener"
)

// maxGroups bounds the groups in a text, because each may insert the whole path of a request.
const maxGroups = 16

// cutGroup cuts the name of a group from the start of a text that begins with a dollar. "$$" stands for a dollar. A name
// without braces is a number, or ends before the first byte that no name has: "$1x" is the group 1 before an "x".
func cutGroup(text string) (group segment, tail string, err error) {
	const digits = "0123456789"
	name := text[1:]
	switch {
	case strings.HasPrefix(name, "$"):
		return segment{text: "$"}, name[1:], nil
	case strings.HasPrefix(name, "{"):
		name, tail, closed := strings.Cut(name[1:], "}")
		if !closed || name == "" {
			return segment{}, "", fmt.Errorf("%.40q: want the name of a group between braces, such as ${1}; a plain dollar is written twice", text)
		}
		return segment{variable: true, text: "$" + name}, tail, nil
	}
	tail = strings.TrimLeft(name, digits)
	if tail == name {
		tail = strings.TrimLeftFunc(name, func(r rune) bool {
			return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		})
	}
	if tail == name {
		return segment{}, "", fmt.Errorf("%.40q: a group is written $1, ${1} or $name, and a plain dollar $$", text)
	}
	return segment{variable: true, text: "$" + strings.TrimSuffix(name, tail)}, tail, nil
}

// PathGroups returns the names by which texts refer to the groups of a route's expression: "$0" for the whole path, "$1"
// and so on, and the names of named groups. A nil expression has none.
func PathGroups(expression *regexp.Regexp) (names []string) {
	if expression == nil {
		return nil
	}
	for i := range expression.SubexpNames() {
		names = append(names, "$"+strconv.Itoa(i))
	}
	for _, name := range expression.SubexpNames() {
		if name != "" {
			names = append(names, "$"+name)
		}
	}
	return names
}

// groupOf returns the number of a group, plus one. The name begins with a dollar. Of groups of the same name it is the
// first.
func groupOf(name string, expression *regexp.Regexp) (int, error) {
	if expression == nil {
		return 0, fmt.Errorf("%.40s: only a path that is an expression has groups; a plain dollar is written $$", name)
	}
	number, err := strconv.Atoi(name[1:])
	if err != nil {
		number = expression.SubexpIndex(name[1:])
	}
	if number < 0 || number > expression.NumSubexp() {
		return 0, fmt.Errorf("there is no group %.40s in the path; known are %s", name, strings.Join(PathGroups(expression), ", "))
	}
	return number + 1, nil
}

// groups returns how many groups the text has.
func (t template) groups() (n int) {
	for i := range t {
		if t[i].group > 0 {
			n++
		}
	}
	return n
}

// checkGroups checks the text of a redirection with groups.
func (t template) checkGroups() error {
	if t.groups() == 0 {
		return nil
	}
	static := ""
	for i := range t {
		if t[i].group > 0 && strings.HasSuffix(static, "://") {
			return errors.New("a group cannot be the host of a URL: the client would choose where it is sent")
		}
		if static += t[i].text; t[i].variable {
			static += "x"
		}
	}
	if static, _, _ = strings.Cut(static, "?"); httpwire.HasDotSegment(static) {
		return errors.New("a redirect with groups has no . or .. segments")
	}
	return nil
}

// captured is what the groups of a route's expression have matched, and the text that was made with it.
type captured struct {
	path  []byte // the request's path as written; valid while made is made
	match []int  // where the groups begin and end in the decoded path; -1 = they have matched nothing
	made  []byte // the new path, or the target of the redirection
}

// append appends what a group has matched, as the client wrote it: with its escapes, and so without line breaks, "?" and
// "#". The text begins at dst[start]. In the host of a URL the group begins the path, with a slash before it. In a query it
// stays in its parameter.
func (c *captured) append(dst []byte, start, group int) []byte {
	from, to := c.match[2*group], c.match[2*group+1]
	if from < 0 || from == to {
		return dst
	}
	from = rawIndex(c.path, from)
	value := c.path[from : from+rawIndex(c.path[from:], to-c.match[2*group])]
	before := dst[start:]
	switch {
	case bytes.IndexByte(before, '#') >= 0:
	case bytes.IndexByte(before, '?') >= 0:
		return appendParameter(dst, value)
	case inAuthority(before) && value[0] != '/':
		dst = append(dst, '/')
	}
	return append(dst, value...)
}

// inAuthority reports whether what follows text would belong to the host of a URL.
func inAuthority(text []byte) bool {
	if len(text) == 0 || text[0] == '/' {
		return false
	}
	_, authority, ok := bytes.Cut(text, []byte("://"))
	return ok && !bytes.ContainsAny(authority, `/\`)
}

// appendParameter appends a part of a path to the value of a parameter. What ends a parameter, or means a space there, is
// escaped.
func appendParameter(dst, value []byte) []byte {
	for _, c := range value {
		switch c {
		case '&', ';', '=', '+':
			dst = append(dst, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// capture makes the route's new path, or the target of its redirection, with the groups of its expression. The request is
// refused if a server or a client would resolve the result to another path, or if it is too long.
func (s *session) capture() (no refusal) {
	x := &s.ex
	path, raw, _ := s.path()
	if x.target.redirect == nil && raw[0] != '/' { // "*"
		return no
	}
	c := &captured{path: raw[:pathEnd(raw)], match: x.target.expression.FindStringSubmatchIndex(path)}
	x.captured = c
	if x.target.redirect == nil {
		c.made = s.appendRewritten(nil)
	} else {
		if x.id == nil {
			s.identify() // for {request_id}
		}
		c.made = []byte(s.location())
	}
	bad := func(status int, why string) refusal {
		return refusal{status: status, reason: listener.ReasonProtocol, why: why}
	}
	made, _, _ := strings.Cut(view(c.made), "?")
	made, _, _ = strings.Cut(made, "#")
	if decoded, err := unescape(made); err == nil {
		made = decoded
	}
	switch _, authority, _ := strings.Cut(made, "://"); {
	case httpwire.HasDotSegment(made):
		return bad(http.StatusBadRequest, "with the groups of this path the new path has a . or .. segment")
	case made[0] != '/' && (authority == "" || authority[0] == '/' || authority[0] == '\\'):
		return bad(http.StatusBadRequest, "the redirect of this path has no host")
	case len(c.made) > s.p.limits.Load().head:
		return bad(http.StatusRequestURITooLong, "with the groups of this path the new path is too long")
	}
	return no
}
