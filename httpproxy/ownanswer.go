package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// Redirect answers the requests of a route with a redirection.
type Redirect struct {
	// To is an absolute path or a URL, with variables and, as in Route.Rewrite, groups: "https://{host}{uri}". A group is
	// never a part of the host, and no parameter of the query beside that in which it is. "" = no redirection.
	To string
	// Status is 301, 302, 303, 307 or 308. 0 = 308: the client repeats the request unchanged.
	Status int
}

// RedirectStatuses returns the values allowed for Redirect.Status.
func RedirectStatuses() []int { return []int{301, 302, 303, 307, 308} }

// Respond answers the requests of a route with a text.
type Respond struct {
	Status      int    // 200 to 599; 0 = no fixed answer
	Body        string // up to 64 KiB
	ContentType string // "" = text/plain; charset=utf-8
}

// MaxOwnBody bounds Respond.Body, in bytes: it is sent in one write.
const MaxOwnBody = 64 << 10

// answersItself reports whether the route answers requests itself, without an upstream.
func (r Route) answersItself() bool { return r.Redirect.To != "" || r.Respond.Status != 0 }

// verifyOwn checks Redirect and Respond.
func (r Route) verifyOwn() error {
	switch status := r.Respond.Status; {
	case r.Redirect.To != "" && status != 0:
		return errors.New("Redirect and Respond exclude each other")
	case r.Upstream != nil:
		return errors.New("a route with Redirect or Respond has no upstream")
	case len(r.Groups) > 0 || r.Affinity != Affinity{} || r.Rewrite != "" || r.StripPrefix || r.Canary != Canary{}:
		return errors.New("Groups, Affinity, Canary, Rewrite and StripPrefix need an upstream")
	case r.Redirect.To != "":
		if r.Redirect.Status != 0 && !slices.Contains(RedirectStatuses(), r.Redirect.Status) {
			return fmt.Errorf("a redirect with status %d", r.Redirect.Status)
		}
		if r.ResponseHeaders.names("location") {
			return errors.New("the header Location of a redirect is Redirect.To")
		}
		return CheckRedirect(r.Redirect.To, r.expression())
	case status < 200 || status > 599:
		return fmt.Errorf("an answer with status %d", status)
	case !MayHaveBody(status) && r.Respond.Body != "":
		return fmt.Errorf("an answer with status %d has no body", status)
	case len(r.Respond.Body) > MaxOwnBody || CheckContentType(r.Respond.ContentType) != nil:
		return fmt.Errorf("the body has more than %d bytes, or the content type cannot be one", MaxOwnBody)
	}
	return nil
}

// MayHaveBody reports whether answers with a final status may have a body: all but 204, 205 and 304 (RFC 9110, section 15).
func MayHaveBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusResetContent && status != http.StatusNotModified
}

// CheckContentType returns an error if text cannot be Respond.ContentType.
func CheckContentType(text string) error {
	if !httpwire.ValidValue(text) || strings.TrimSpace(text) != text {
		return errors.New("want a media type, without blanks at its ends")
	}
	return nil
}

// CheckRedirect reports what is wrong with Redirect.To. expression is that of the route's path; nil = it has none.
func CheckRedirect(to string, expression *regexp.Regexp) error {
	scheme, _, ok := strings.Cut(to, "://")
	if scheme = strings.ToLower(scheme); !strings.HasPrefix(to, "/") && (!ok || scheme != "http" && scheme != "https" && scheme != "{scheme}") {
		return errors.New("want a path or a URL such as https://{host}{uri}")
	}
	if strings.HasPrefix(to, "//") || strings.HasPrefix(to, `/\`) {
		return errors.New("a redirect to another host begins with https:// or http://")
	}
	t, err := parseTemplate(to, true, expression)
	if err == nil {
		err = t.checkGroups()
	}
	return err
}

// CheckRewrite reports what is wrong with Route.Rewrite. expression is that of the route's path; nil = it has none.
func CheckRewrite(text string, expression *regexp.Regexp) error {
	notInPath := func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(`?#%\`, r) }
	if !strings.HasPrefix(text, "/") || strings.ContainsFunc(text, notInPath) || httpwire.HasDotSegment(text) {
		return errors.New(`want a path that begins with /, without ?, #, %, \, spaces, other than ASCII characters and "." segments, such as /v2{rest}`)
	}
	for _, tail := range []string{"", "/"} {
		if httpwire.HasDotSegment(strings.NewReplacer("{rest}", tail, "{path}", tail).Replace(text)) {
			return errors.New(`a "." beside a variable may become a segment`)
		}
	}
	names, err := TemplateVariables(text, true)
	for _, name := range names {
		if name != "path" && name != "rest" && !strings.HasPrefix(name, "$") { // the values of other variables need not be valid in a path
			return fmt.Errorf("the variables of a path are {path} and {rest}, not {%.40s}", name)
		}
	}
	if err == nil {
		_, err = parseTemplate(text, true, expression)
	}
	return err
}

// location returns the target of a redirection. A path from the client must not become the name of a host. Browsers
// skip tabs.
func (s *session) location() string {
	if c := s.ex.captured; c != nil && c.made != nil {
		return string(c.made)
	}
	to := bytes.ReplaceAll(s.ex.target.redirect.append(nil, s), []byte{'\t'}, nil)
	slash := func(c byte) bool { return c == '/' || c == '\\' } // as browsers see it
	for len(to) > 1 && slash(to[0]) && slash(to[1]) {
		to = to[1:]
		to[0] = '/'
	}
	return string(to)
}

// answerItself sends the route's own answer; false ends the session.
func (s *session) answerItself() bool {
	x := &s.ex
	own := x.target.route.Respond
	x.close = s.closesAfter() || !s.skips(own.Status)
	w := s.newAnswer(x.close)
	w.grpc = false
	if x.target.redirect != nil {
		own = Respond{Status: x.target.redirectStatus}
		w.header["Location"] = []string{s.location()}
	}
	if own.Body != "" {
		w.header["Content-Type"] = []string{own.ContentType}
	}
	if own.Status != http.StatusNoContent && own.Status != http.StatusNotModified {
		w.header["Content-Length"] = []string{strconv.Itoa(len(own.Body))}
	}
	w.rules, w.of = x.target.responseRules, s
	w.WriteHeader(own.Status)
	if !s.asksHead() {
		_, _ = w.Write([]byte(own.Body))
	}
	if own.Body == "" {
		s.pageForOwn(w, true)
	}
	x.result = httppool.Result{Status: own.Status, BytesOut: int64(w.body.Len())}
	s.held.add(2 * w.body.Len())
	err := s.reply(w, s.replyTime())
	s.held.add(-2 * w.body.Len())
	s.served = true
	s.measure(nil)
	if err != nil {
		s.logDone(fmt.Errorf("%w: %w", httppool.ErrClientGone, err))
	} else {
		s.logDone(nil)
	}
	if s.accesses() {
		x.result.Duration = time.Since(s.now)
		s.p.done(s.request(), x.target, x.user, x.result)
	}
	if err != nil {
		return false
	}
	return s.keepAlive()
}
