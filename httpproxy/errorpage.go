package httpproxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// ErrorPage is the content of answers with some statuses, in place of the Proxy's text or of the server's content. The
// status and the other fields stay.
//
// Answers to gRPC calls have no page, nor do errors of token limits, 401 of BearerAuth on routes with LLM, and answers of a ForwardAuth
// server. Clients whose Accept field prefers JSON get a page in place of an error only if it is JSON.
type ErrorPage struct {
	// Statuses are the statuses of the page, from 400 to 599; 4 and 5 stand for all of their class. A page with the status
	// itself comes before one for its class.
	Statuses []int
	// Content is the page, up to MaxOwnBody bytes. The names of PageVariables in braces stand for values, which are escaped
	// for HTML or JSON; other braces have no meaning.
	Content string
	// ContentType is required. In JSON and text/plain the variables are escaped for these, and for HTML in all others.
	ContentType string
	// Of says whose answers have the page.
	Of PageOf
}

// PageOf says whose answers have an ErrorPage.
type PageOf int

const (
	// PageOfGateway: the answers of the Proxy, and of Route.Respond without a Body. The default.
	PageOfGateway PageOf = iota
	// PageOfBackend: the answers of servers, except to gRPC calls and requests for an upgrade.
	PageOfBackend
	// PageOfBoth: those of the Proxy and of servers.
	PageOfBoth
)

// PageVariables lists the variables of ErrorPage.Content, without braces.
func PageVariables() []string { return slices.Clone(pageVariables) }

var pageVariables = []string{"client_ip", "host", "method", "path", "request_id", "status", "status_text"}

// Bounds of pages.
const (
	maxErrorPages    = 64
	maxPageVariables = 32      // of one page: each may insert maxPageValue
	maxPageValue     = 2 << 10 // bytes of a value, before it is escaped; as in access logs
)

// pageClass returns the class that stands for a status in ErrorPage.Statuses.
func pageClass(status int) int { return status / 100 }

func verifyErrorPages(pages []ErrorPage) error {
	if len(pages) > maxErrorPages {
		return fmt.Errorf("more than %d error pages", maxErrorPages)
	}
	seen := map[[2]int]bool{}
	for _, p := range pages {
		if err := p.verify(); err != nil {
			return fmt.Errorf("an error page: %w", err)
		}
		for _, status := range p.Statuses {
			for _, of := range []PageOf{PageOfGateway, PageOfBackend} {
				key := [2]int{status, int(of)}
				if p.Of != of && p.Of != PageOfBoth {
					continue
				}
				if seen[key] {
					return fmt.Errorf("two error pages for %d", status)
				}
				seen[key] = true
			}
		}
	}
	return nil
}

func (p ErrorPage) verify() error {
	switch {
	case len(p.Statuses) == 0:
		return errors.New("no statuses")
	case slices.ContainsFunc(p.Statuses, func(s int) bool { return s != 4 && s != 5 && (s < 400 || s > 599) }):
		return errors.New("the statuses are 400 to 599, and 4 and 5 for a class")
	case len(p.Content) > MaxOwnBody:
		return fmt.Errorf("longer than %d bytes", MaxOwnBody)
	case p.ContentType == "" || CheckContentType(p.ContentType) != nil:
		return errors.New("no content type, or one that cannot be one")
	case p.Of < PageOfGateway || p.Of > PageOfBoth:
		return errors.New("unknown Of")
	}
	return CheckPage(p.Content)
}

// CheckPage reports what is wrong with ErrorPage.Content.
func CheckPage(content string) error {
	n := 0
	for _, part := range splitPage(content) {
		if part.variable {
			n++
		}
	}
	if n > maxPageVariables {
		return fmt.Errorf("%d variables; at most %d are possible", n, maxPageVariables)
	}
	return nil
}

// splitPage splits a page into texts and variables.
func splitPage(content string) (t template) {
	text := 0 // where the current text begins
	for i := 0; i < len(content); i++ {
		if content[i] != '{' {
			continue
		}
		name, _, closed := strings.Cut(content[i+1:], "}")
		if !closed {
			break
		}
		if slices.Contains(pageVariables, name) {
			t = append(t, segment{text: content[text:i]}, segment{variable: true, text: name})
			i += len(name) + 1
			text = i + 1
		}
	}
	return append(t, segment{text: content[text:]})
}

// errorPages are ErrorPages prepared for use. They are immutable.
type errorPages struct {
	all     []errorPage
	backend bool // some are for the answers of servers
}

type errorPage struct {
	ErrorPage
	parts template
	json  bool // the page is JSON
	plain bool // text/plain
}

// newErrorPages returns nil if there are none.
func newErrorPages(pages []ErrorPage) *errorPages {
	if len(pages) == 0 {
		return nil
	}
	e := &errorPages{}
	for _, p := range pages {
		media, _, _ := strings.Cut(strings.ToLower(p.ContentType), ";")
		media = strings.TrimSpace(media)
		e.all = append(e.all, errorPage{p, splitPage(p.Content), media == "application/json" || strings.HasSuffix(media, "+json"), media == "text/plain"})
		e.backend = e.backend || p.Of != PageOfGateway
	}
	return e
}

// forServers reports whether some pages are for the answers of servers.
func (e *errorPages) forServers() bool { return e != nil && e.backend }

// find returns the page for a status of the Proxy or of a server; nil = none.
func (e *errorPages) find(status int, server bool) *errorPage {
	if e == nil {
		return nil
	}
	without := PageOfBackend
	if server {
		without = PageOfGateway
	}
	for _, wanted := range []int{status, pageClass(status)} {
		for i := range e.all {
			if p := &e.all[i]; p.Of != without && slices.Contains(p.Statuses, wanted) {
				return p
			}
		}
	}
	return nil
}

// append appends the page for an answer of the session; nil = the request could not be read.
func (p *errorPage) append(dst []byte, s *session, status int) []byte {
	for i := range p.parts {
		part := &p.parts[i]
		if !part.variable {
			dst = append(dst, part.text...)
			continue
		}
		value := pageValue(s, part.text, status)
		if len(value) > maxPageValue {
			value = value[:maxPageValue] + "…"
		}
		switch {
		case p.json:
			quoted, _ := json.Marshal(value) // no error: it is a string
			dst = append(dst, quoted[1:len(quoted)-1]...)
		case p.plain:
			dst = append(dst, value...)
		default:
			dst = append(dst, html.EscapeString(value)...)
		}
	}
	return dst
}

func pageValue(s *session, name string, status int) string {
	switch name {
	case "status":
		return strconv.Itoa(status)
	case "status_text":
		return http.StatusText(status)
	}
	if s == nil {
		return ""
	}
	switch name {
	case "client_ip":
		return s.from().text
	case "host":
		return requestHost(string(s.req.Host))
	case "method":
		return string(s.req.Method)
	case "path":
		return string(s.req.Target[:pathEnd(s.req.Target)])
	}
	if s.ex.id == nil { // of a request that was refused
		s.identify()
	}
	return string(s.ex.id)
}

// pageForOwn gives an answer of the proxy its error page. known says that the request's head could be read.
func (s *session) pageForOwn(w *answer, known bool) {
	pages, of := s.p.table.Load().pages, s
	if t := s.ex.target; t != nil {
		pages = t.pages
	}
	if !known {
		of = nil
	}
	if pages == nil || w.grpc || w.status < http.StatusBadRequest {
		return
	}
	p := pages.find(w.status, false)
	if p == nil || !p.json && strings.HasPrefix(w.header.Get("Content-Type"), "application/json") {
		return
	}
	content := p.append(nil, of, w.status)
	w.header["Content-Type"] = []string{p.ContentType}
	w.header["Content-Length"] = []string{strconv.Itoa(len(content))}
	w.header["X-Content-Type-Options"] = []string{"nosniff"}
	if w.body.Reset(); !known || !s.asksHead() {
		_, _ = w.body.Write(content)
	}
}

// pageForServer returns the error page in place of the content of the server's answer; nil = none.
func (s *session) pageForServer() *errorPage {
	if !s.ex.target.pages.forServers() || s.resp.Status < http.StatusBadRequest || s.ex.tunnel != nil || s.asksGRPC() {
		return nil
	}
	p := s.ex.target.pages.find(s.resp.Status, true)
	if p != nil && !p.json && httppool.PrefersJSON(s.request().Header["Accept"]) {
		return nil
	}
	return p
}

// ofContent are the fields of an answer that say something of its content, which a page replaces.
var ofContent = []string{
	"accept-ranges", "content-digest", "content-disposition", "content-encoding", "content-language", "content-length", "content-location", "content-md5",
	"content-range", "content-type", "digest", "etag", "last-modified", "repr-digest",
}

// respondPage passes on the final response, whose head takes n bytes of the server's buffer, with a page in place of its
// content. The server's connection stays usable if all content has arrived.
func (s *session) respondPage(p *errorPage, n int) error {
	r, x := &s.resp, &s.ex
	content, left := p.append(nil, s, r.Status), r.Length
	r.Fields = slices.DeleteFunc(r.Fields, func(f httpwire.Field) bool {
		return slices.ContainsFunc(ofContent, func(name string) bool { return httpwire.EqualFold(f.Name, name) })
	})
	r.Fields = append(r.Fields,
		httpwire.Field{Name: []byte("Content-Type"), Value: []byte(p.ContentType)},
		httpwire.Field{Name: []byte("Content-Length"), Value: strconv.AppendInt(nil, int64(len(content)), 10), Known: httpwire.ContentLength})
	if s.asksHead() {
		content = nil
	}
	r.Length, x.paged = int64(len(content)), true
	s.held.add(len(content))
	defer s.held.add(-len(content))
	head := s.beginResponse()
	s.dropInline()
	s.server.take(n)
	s.dropContent(left)
	out, err := s.headToClient(head)
	if err == nil {
		err = s.toClient(append(bytes.Clone(out), content...))
	}
	if err != nil {
		return s.fail("body", err)
	}
	x.result.BytesOut += int64(len(content))
	return nil
}

// dropContent drops content of the given length, as in Response.Length, as far as it has arrived.
func (s *session) dropContent(left int64) {
	s.chunks.Reset(s.serverCarrier())
	for done := left == 0; !done; {
		_, n, last, err := s.nextContent(&left)
		if s.server.take(n); err != nil || n == 0 && !last {
			s.resp.Reusable = false
			return
		}
		done = last
	}
}
