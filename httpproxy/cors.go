package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// CORS lets pages of other origins use a route (the Fetch standard, "CORS protocol"). The proxy answers preflight requests,
// before it asks for passwords and without counting them for a limit, and it writes the fields for the answers to all other
// requests, its own errors too, in place of the server's. It refuses no other request: browsers do, by these fields.
//
// A preflight request belongs to the route if the request would that it is about, by its method; conditions on headers,
// cookies and the body do not hold for it, as it has none of the page's.
type CORS struct {
	// Origins are the origins that may read answers: "https://app.example", with its port if that is not the scheme's own,
	// "https://*.app.example" for all names below app.example, or "*" for all. Not empty.
	Origins []string
	// Methods are the methods that pages may use. Empty = those of Route.Methods, or else GET, HEAD, POST, PUT, PATCH and DELETE.
	Methods []string
	// RequestHeaders are the names of headers that pages may send. Empty = all.
	RequestHeaders []string
	// ResponseHeaders are the names of headers that pages may read besides the common ones.
	ResponseHeaders []string
	// Credentials lets pages send cookies and passwords of the user. It excludes "*" in Origins.
	Credentials bool
	// MaxAge is how long browsers remember the answer to a preflight request. 0 = ten minutes.
	MaxAge time.Duration
}

// Bounds of a CORS.
const (
	maxOrigins    = 256
	maxCORSNames  = 64
	defaultMaxAge = 10 * time.Minute
)

// anyOrigin stands for all origins.
const anyOrigin = "*"

// CheckOrigin returns an error if text cannot be one of CORS.Origins.
func CheckOrigin(text string) error {
	scheme, host, ok := strings.Cut(text, "://")
	name := strings.TrimPrefix(host, "*.")
	switch {
	case text == anyOrigin:
		return nil
	case !ok || !httpwire.ValidToken(scheme) || name == "" || strings.ContainsAny(name, "*/?#@") || !httpwire.ValidHost([]byte(name)):
		return fmt.Errorf("%.60q: want an origin such as https://app.example, https://*.app.example or *, without a path", text)
	case text != strings.ToLower(text):
		return fmt.Errorf("%.60q: browsers write origins in lower case", text)
	case scheme == "https" && strings.HasSuffix(name, ":443") || scheme == "http" && strings.HasSuffix(name, ":80"):
		return fmt.Errorf("%.60q: browsers leave out the port of the scheme", text)
	}
	return nil
}

func (c *CORS) verify() error {
	if c == nil {
		return nil
	}
	if len(c.Origins) == 0 || len(c.Origins) > maxOrigins {
		return fmt.Errorf("CORS: want 1 to %d origins", maxOrigins)
	}
	for _, o := range c.Origins {
		if err := CheckOrigin(o); err != nil {
			return fmt.Errorf("CORS: %w", err)
		}
	}
	if c.Credentials && slices.Contains(c.Origins, anyOrigin) {
		return errors.New(`CORS: the origin "*" excludes Credentials, which any page could use then`)
	}
	for _, names := range [][]string{c.Methods, c.RequestHeaders, c.ResponseHeaders} {
		if len(names) > maxCORSNames {
			return fmt.Errorf("CORS: more than %d names", maxCORSNames)
		}
		for _, name := range names {
			if !httpwire.ValidToken(name) {
				return fmt.Errorf("CORS: %.40q is not a token", name)
			}
		}
	}
	if c.MaxAge < 0 {
		return errors.New("CORS: negative MaxAge")
	}
	return nil
}

// cors is a route's CORS prepared for use. It is immutable. A nil cors does nothing.
type cors struct {
	all         bool
	origins     []string // with "*." in some
	credentials bool
	methods     string // fields of answers; "" = left out
	request     string
	response    string
	maxAge      string
}

func newCORS(r Route) *cors {
	c := r.CORS
	if c == nil {
		return nil
	}
	methods := c.Methods
	if len(methods) == 0 {
		methods = r.Methods
	}
	if len(methods) == 0 {
		methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	}
	age := c.MaxAge
	if age == 0 {
		age = defaultMaxAge
	}
	return &cors{
		all: slices.Contains(c.Origins, anyOrigin), origins: slices.Clone(c.Origins), credentials: c.Credentials, methods: strings.Join(methods, ", "),
		request: strings.Join(c.RequestHeaders, ", "), response: strings.Join(c.ResponseHeaders, ", "), maxAge: strconv.Itoa(int(age / time.Second)),
	}
}

// allows returns what an answer says for a request of that origin; "" = nothing.
func (c *cors) allows(origin []byte) string {
	if c.all {
		return anyOrigin
	}
	for _, o := range c.origins {
		before, after, wild := strings.Cut(o, "*")
		if !wild && view(origin) == o {
			return o
		}
		if wild && len(origin) > len(before)+len(after) && bytes.HasPrefix(origin, []byte(before)) && bytes.HasSuffix(origin, []byte(after)) &&
			httpwire.ValidHost(origin[len(before):]) {
			return string(origin)
		}
	}
	return ""
}

// fieldOf returns the value of a request's field, whose name is in lower case; nil = there is none, or more than one.
func fieldOf(r *httpwire.Request, name string) (value []byte) {
	n := 0
	for i := range r.Fields {
		if f := &r.Fields[i]; len(f.Name) == len(name) && httpwire.EqualFold(f.Name, name) {
			value = f.Value
			n++
		}
	}
	if n != 1 {
		return nil
	}
	return value
}

// preflights returns the method that a preflight request is about; nil = r is another request.
func preflights(r *httpwire.Request) []byte {
	if string(r.Method) != http.MethodOptions || fieldOf(r, "origin") == nil {
		return nil
	}
	return fieldOf(r, "access-control-request-method")
}

// preflight answers a preflight request. The status is 0 if the request is another one.
func (s *session) preflight() (no refusal) {
	c := s.ex.target.cors
	if c == nil || preflights(&s.req) == nil {
		return no
	}
	if c.allows(fieldOf(&s.req, "origin")) == "" {
		return refusal{status: http.StatusForbidden, why: "cors of this route does not allow the origin"}
	}
	h := http.Header{"Access-Control-Allow-Methods": {c.methods}, "Access-Control-Max-Age": {c.maxAge}}
	request := c.request
	if request == "" {
		request = string(fieldOf(&s.req, "access-control-request-headers"))
	}
	if request != "" {
		h.Set("Access-Control-Allow-Headers", request)
	}
	return refusal{status: http.StatusNoContent, header: h}
}

// Names of the fields of an answer, and the prefix of all fields about it.
const (
	allowOrigin      = "Access-Control-Allow-Origin"
	allowCredentials = "Access-Control-Allow-Credentials"
	exposeHeaders    = "Access-Control-Expose-Headers"
	corsPrefix       = "access-control-"
)

// replaces reports whether a field of the server's answer is replaced by the proxy's own.
func (c *cors) replaces(f *httpwire.Field) bool {
	return c != nil && len(f.Name) > len(corsPrefix) && httpwire.EqualFold(f.Name[:len(corsPrefix)], corsPrefix)
}

// replace drops the fields of an authentication server's answer that the proxy's own replace.
func (c *cors) replace(h http.Header) {
	if c != nil {
		maps.DeleteFunc(h, func(name string, _ []string) bool { return strings.HasPrefix(strings.ToLower(name), corsPrefix) })
	}
}

// each calls add for each field of an answer to r.
func (c *cors) each(r *httpwire.Request, add func(name, value string)) {
	if !c.all {
		add("Vary", "Origin")
	}
	origin := fieldOf(r, "origin")
	if origin == nil {
		return
	}
	allowed := c.allows(origin)
	if allowed == "" {
		return
	}
	add(allowOrigin, allowed)
	if c.credentials {
		add(allowCredentials, "true")
	}
	if c.response != "" {
		add(exposeHeaders, c.response)
	}
}

// write appends the fields to the head of an answer for the client.
func (c *cors) write(w *headWriter, r *httpwire.Request, rules *headerRules) {
	if c == nil {
		return
	}
	c.each(r, func(name, value string) {
		if !rules.drops([]byte(name)) {
			w.line(name, value)
		}
	})
}
