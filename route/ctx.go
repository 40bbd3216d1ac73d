package route

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
)

// Ctx gives a handler access to its request, in addition to the request value. It is valid until
// the handler, or a stream that it returned, has ended. After that each method panics with the
// route and the stack. It is deliberately not a context.Context, because code keeps those for
// longer: pass on Context().
//
// Goroutines that the handler waits for may call its methods. Header and SetStatus must not be called concurrently with
// each other.
type Ctx struct {
	x      *exchange
	gen    uint64
	status int // that the handler set, or 0
}

// live returns the exchange, and panics when it is another request's by now.
func (c *Ctx) live() *exchange {
	if c.x.gen.Load() != c.gen {
		c.stale()
	}
	return c.x
}

func (c *Ctx) stale() {
	panic(fmt.Sprintf("route: the Ctx of %q was used after its handler had returned: copy what a goroutine needs, or call Detach before starting it\n%s",
		c.x.ep.name(), debug.Stack()))
}

// request returns the request. It checks twice: a goroutine that comes too late could get the next request.
func (c *Ctx) request() *http.Request {
	r := c.live().r
	c.live()
	return r
}

// Context returns the context of the http.Request: it is done when the client goes away or the handler
// has returned. It is not pooled and may be kept.
func (c *Ctx) Context() context.Context { return c.request().Context() }

// Request returns the http.Request. It is not pooled, but its body has been read where the request type has
// fields from the body, and net/http closes it when the handler has returned.
func (c *Ctx) Request() *http.Request { return c.request() }

// Header returns the header of the response, to be changed before the handler returns.
func (c *Ctx) Header() http.Header {
	w := c.live().w
	c.live() // see request
	return w.Header()
}

// SetCookie adds a cookie to the response. It panics when the cookie is not valid, which net/http would drop silently.
func (c *Ctx) SetCookie(cookie *http.Cookie) {
	if err := cookie.Valid(); err != nil {
		panic(fmt.Sprintf("route: SetCookie: %v", err))
	}
	http.SetCookie(struct{ http.ResponseWriter }{c.live().w}, cookie)
}

// SetStatus sets the status of the response, unless the handler returns an error. It panics when code is no
// status of a response: below 200 or above 999.
func (c *Ctx) SetStatus(code int) {
	c.live()
	if !finalStatus(code) {
		panic(fmt.Sprintf("route: %d is not the status of a response", code))
	}
	c.status = code
}

// finalStatus reports whether net/http takes code as the status of a final response, not of an interim one.
func finalStatus(code int) bool { return 200 <= code && code <= 999 }

// Route returns the pattern the handler was registered with, "" for one made by New.
func (c *Ctx) Route() string { return c.live().ep.pattern }

// Detach returns a copy that may be used after the handler has returned. Call it in the handler, not in
// the goroutine that uses it.
func (c *Ctx) Detach() *Detached {
	r := c.request()
	r = r.Clone(context.WithoutCancel(r.Context()))
	r.Body = http.NoBody
	return &Detached{route: c.x.ep.pattern, r: r}
}

// Detached is the copy of a Ctx that may be kept after the handler has returned.
type Detached struct {
	route string
	r     *http.Request
}

// Context returns a context with the values of the request's (its trace, say), which is never done.
func (d *Detached) Context() context.Context { return d.r.Context() }

// Request returns a copy of the request, with no body.
func (d *Detached) Request() *http.Request { return d.r }

// Route returns the pattern the handler was registered with, "" for one made by New.
func (d *Detached) Route() string { return d.route }
