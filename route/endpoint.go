package route

import (
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"unsafe"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/check"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

// Mux is a router that handlers are registered with: http.ServeMux, chi's Router, an [API]. Patterns are those of
// http.ServeMux, such as "POST /users/{id}".
type Mux interface {
	Handle(pattern string, handler http.Handler)
}

// Handle makes a handler of fn and registers it. It panics when the types cannot be bound, with the field
// and the reason, and when the pattern has no method.
func Handle[Req, Resp any](mux Mux, pattern string, fn func(c *Ctx, req Req) (Resp, error), opts ...Option) *Endpoint {
	if api, ok := mux.(*API); ok {
		opts = append(append([]Option(nil), api.opts...), opts...)
	}
	method, path, ok := strings.Cut(pattern, " ")
	if !ok || method == "" {
		panic(fmt.Sprintf("route: the pattern %q has no method: write \"GET %s\"", pattern, pattern))
	}
	e := newEndpoint(fn, method, strings.TrimSpace(path), opts)
	mux.Handle(pattern, e)
	return e
}

// New makes a handler of fn, for routers that are not a Mux. Fields from the path are read with
// http.Request.PathValue, which chi sets, too; for other routers there is [Endpoint.ServePath]. New
// panics if the types cannot be bound, with the field and the reason.
func New[Req, Resp any](fn func(c *Ctx, req Req) (Resp, error), opts ...Option) *Endpoint {
	return newEndpoint(fn, "", "", opts)
}

// Endpoint is a handler made by Handle or New. It may serve any number of requests at once.
type Endpoint struct {
	settings
	pattern      string // method and path
	method, path string // path in the form of http.ServeMux
	reqType      reflect.Type
	respType     reflect.Type

	pool  sync.Pool // of *exchange
	make  func() *exchange
	clear func(*exchange)
	call  func(*Ctx, *exchange) error // runs the function

	bind    *bind.Plan // nil if the request type is not a struct: it is the body
	check   *check.Plan
	decode  *jsonplan.Plan
	encode  *jsonplan.Plan
	answer  func(*exchange) // for streams, files and events; nil for values
	hasPath bool
	hasHead bool // fields from headers or cookies
	hasBody bool
	created bool // in a handler for any method, a POST is answered with 201

	takesJSON, takesForm, takesMultipart bool // kinds of body
	hasFiles                             bool // fields for files
	needsBody                            bool // a request without a body is never valid

	statusOf func(*exchange) int // for response types that know their status
}

// name is the handler's name in logs and panics.
func (e *Endpoint) name() string {
	if e.pattern == "" {
		return "handler of " + e.reqType.String()
	}
	return e.pattern
}

// Pattern returns the pattern the handler was registered with, "" for one made by New.
func (e *Endpoint) Pattern() string { return e.pattern }

// values is an exchange together with its request and response values, in one allocation.
type values[Req, Resp any] struct {
	exchange
	req  Req
	resp Resp
}

// newEndpoint compiles a handler.
func newEndpoint[Req, Resp any](fn func(*Ctx, Req) (Resp, error), method, path string, opts []Option) *Endpoint {
	e := &Endpoint{
		settings: newSettings(opts), method: method, path: plainPath(path),
		reqType: reflect.TypeFor[Req](), respType: reflect.TypeFor[Resp](),
	}
	if method != "" {
		e.pattern = method + " " + path
	}
	e.make = func() *exchange {
		v := new(values[Req, Resp])
		v.exchange.req, v.exchange.resp = unsafe.Pointer(&v.req), unsafe.Pointer(&v.resp)
		return &v.exchange
	}
	e.clear = func(x *exchange) {
		var req Req
		var resp Resp
		*(*Req)(x.req), *(*Resp)(x.resp) = req, resp
	}
	e.call = func(c *Ctx, x *exchange) (err error) {
		*(*Resp)(x.resp), err = fn(c, *(*Req)(x.req))
		return err
	}
	if fn == nil {
		panic(fmt.Sprintf("route: %s has no function", e.name()))
	}
	if err := e.compile(); err != nil {
		panic(fmt.Sprintf("route: %s: %v", e.name(), err))
	}
	return e
}

// plainPath converts a path of chi to that of http.ServeMux: {id:[0-9]+} becomes {id}, and a * at the end {*...}.
func plainPath(path string) string {
	if before, ok := strings.CutSuffix(path, "/*"); ok {
		path = before + "/{*...}"
	}
	var plain strings.Builder
	depth, skip := 0, false
	for _, c := range path {
		switch c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				skip = false
			}
		case ':':
			skip = skip || depth == 1
		}
		if !skip {
			plain.WriteRune(c)
		}
	}
	return plain.String()
}

// ServeHTTP implements http.Handler.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.ServePath(w, r, r) }

// PathValuer returns the values of a pattern's wildcards, like http.Request.
type PathValuer interface {
	PathValue(name string) string
}

// PathFunc is a function as a PathValuer, such as the Param method of an echo.Context.
type PathFunc func(name string) string

// PathValue implements PathValuer.
func (f PathFunc) PathValue(name string) string { return f(name) }

// ServePath is ServeHTTP with path values from another source than the request, for routers that store them elsewhere.
func (e *Endpoint) ServePath(w http.ResponseWriter, r *http.Request, path PathValuer) {
	x := e.get(w, r)
	sound := false
	defer func() {
		if sound {
			x.release(true)
			return
		}
		abort := x.panicked(recover())
		x.release(false)
		if abort {
			panic(http.ErrAbortHandler)
		}
	}()
	x.serve(path)
	sound = true
}

// serve binds, calls and answers.
func (x *exchange) serve(path PathValuer) {
	e := x.ep
	if len(e.codecs) > 0 || x.r.Header["Accept"] != nil {
		if !x.acceptable() {
			if len(e.codecs) > 0 {
				x.w.Header().Add("Vary", "Accept")
			}
			x.fail(&Problem{Status: http.StatusNotAcceptable, Detail: "the response can be " + e.mediaTypes()})
			return
		}
	}
	if p := x.bindRequest(path); p != nil {
		x.fail(p)
		return
	}
	if err := e.call(x.handle(), x); err != nil {
		x.fail(e.problem(err))
		return
	}
	if e.answer != nil {
		e.answer(x)
		return
	}
	x.respond()
}

// panicked logs and answers a panic; v is nil if the handler has called runtime.Goexit. It reports whether the
// connection must be closed: because the handler asked for that, or because a part of the response has been sent.
func (x *exchange) panicked(v any) (abort bool) {
	if v == http.ErrAbortHandler { //nolint:errorlint // a panic with this very value is net/http's protocol
		return true
	}
	x.ep.log().Error("route: a handler panicked", "route", x.ep.name(), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if x.wrote {
		x.cutOff()
		return true
	}
	x.send(&Problem{Status: http.StatusInternalServerError, Detail: internalDetail})
	return false
}
