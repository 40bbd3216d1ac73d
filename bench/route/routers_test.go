package route_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/labstack/echo/v4"

	"github.com/headpond/headpond/route"
	"github.com/headpond/headpond/route/ginroute"
)

type pathRequest struct {
	ID   int    `path:"id"`
	Name string `query:"name" validate:"required"`
}

// TestOnEveryRouter serves the same handler below each router, path and middleware included.
func TestOnEveryRouter(t *testing.T) {
	handler := func(_ *route.Ctx, req pathRequest) (pathRequest, error) { return req, nil }
	mark := func(w http.ResponseWriter) { w.Header().Set("X-Middleware", "yes") }
	gin.SetMode(gin.ReleaseMode)
	for name, router := range map[string]func() http.Handler{
		"net/http": func() http.Handler {
			mux := http.NewServeMux()
			route.Handle(mux, "GET /users/{id}", handler)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mark(w); mux.ServeHTTP(w, r) })
		},
		"chi": func() http.Handler {
			r := chi.NewRouter()
			r.Use(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { mark(w); next.ServeHTTP(w, r) })
			})
			route.Handle(r, "GET /users/{id}", handler)
			return r
		},
		"gin": func() http.Handler {
			r := gin.New()
			r.Use(func(c *gin.Context) { mark(c.Writer) })
			ginroute.Handle(r, "GET /users/{id}", handler)
			return r
		},
		"echo": func() http.Handler {
			e := echo.New()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error { mark(c.Response()); return next(c) }
			})
			users := route.New(handler)
			e.GET("/users/:id", func(c echo.Context) error {
				users.ServePath(c.Response(), c.Request(), route.PathFunc(c.Param))
				return nil
			})
			e.POST("/users", echo.WrapHandler(users)) // for paths without parameters this is enough
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := router()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/users/7?name=x", nil))
			if w.Code != 200 || w.Body.String() != `{"ID":7,"Name":"x"}` || w.Header().Get("X-Middleware") != "yes" {
				t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
			}
			w = httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/users/seven", nil))
			if w.Code != 422 || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}
