// Package ginroute registers handlers of package route with gin. It is a separate module, so that
// programs that use route without gin do not depend on gin.
//
//	package main
//
//	import (
//		"log"
//
//		"github.com/gin-gonic/gin"
//
//		"github.com/headpond/headpond/route"
//		"github.com/headpond/headpond/route/ginroute"
//	)
//
//	type Greet struct {
//		Name string `path:"name" validate:"max=100"`
//	}
//
//	func main() {
//		router := gin.New()
//		ginroute.Handle(router, "GET /hello/{name}", func(c *route.Ctx, req Greet) (string, error) {
//			return "Hello, " + req.Name, nil
//		})
//		log.Fatal(router.Run("127.0.0.1:8080"))
//	}
//
// Patterns have the syntax of http.ServeMux but match like gin's: a path that ends with a slash matches only itself,
// and GET does not match HEAD. gin's groups prepend their path, and gin's middleware runs as for other handlers.
// Middleware passes values to a handler in the context of the request (c.Request = c.Request.WithContext(…)), not in
// gin's context, which gin pools.
package ginroute

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/headpond/headpond/route"
)

// Handle makes a handler of fn and registers it, like route.Handle. It panics in the same cases, and for patterns that
// gin cannot express, such as one with a host or a wildcard within a segment.
func Handle[Req, Resp any](router gin.IRoutes, pattern string, fn func(c *route.Ctx, req Req) (Resp, error), opts ...route.Option) *route.Endpoint {
	return route.Handle(mux{router}, pattern, fn, opts...)
}

// Mux returns router as a route.Mux, for route.NewAPI.
func Mux(router gin.IRoutes) route.Mux { return mux{router} }

// mux registers with gin.
type mux struct{ router gin.IRoutes }

// Handle implements route.Mux.
func (m mux) Handle(pattern string, handler http.Handler) {
	method, path, _ := strings.Cut(pattern, " ")
	m.router.Handle(method, ginPath(path), wrap(handler))
}

// wrap returns the handler for gin.
func wrap(handler http.Handler) gin.HandlerFunc {
	e, ok := handler.(*route.Endpoint)
	if !ok {
		return gin.WrapH(handler)
	}
	if strings.HasSuffix(e.Pattern(), "...}") {
		return func(c *gin.Context) { e.ServePath(c.Writer, c.Request, (*restParams)(&c.Params)) }
	}
	return func(c *gin.Context) { e.ServePath(c.Writer, c.Request, (*params)(&c.Params)) }
}

// params are the values of gin's wildcards, in the form that route reads.
type params gin.Params

// PathValue implements route.PathValuer.
func (p *params) PathValue(name string) string { return gin.Params(*p).ByName(name) }

// restParams are params of a path that ends with a catch-all wildcard. gin's value for that begins with a slash.
type restParams gin.Params

// PathValue implements route.PathValuer.
func (p *restParams) PathValue(name string) string {
	value := gin.Params(*p).ByName(name)
	if last := (*p)[len(*p)-1]; last.Key == name {
		return strings.TrimPrefix(value, "/")
	}
	return value
}

// ginPath converts a path of http.ServeMux to gin's: {name} becomes :name, {name...} becomes *name.
func ginPath(path string) string {
	if !strings.HasPrefix(path, "/") {
		panic(fmt.Sprintf("ginroute: the path %q does not begin with /: gin has no patterns with a host", path))
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		name, ok := strings.CutPrefix(s, "{")
		switch {
		case s == "{$}":
			segments[i] = ""
		case !ok && !strings.ContainsAny(s, "{}:*"):
		case ok && strings.HasSuffix(name, "...}"):
			segments[i] = "*" + strings.TrimSuffix(name, "...}")
		case ok && strings.HasSuffix(name, "}"):
			segments[i] = ":" + strings.TrimSuffix(name, "}")
		default:
			panic(fmt.Sprintf("ginroute: gin has no form for the segment %q of %q", s, path))
		}
	}
	return strings.Join(segments, "/")
}
