package route_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
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

// chi's own patterns work as they are: a path of several segments is *, and segments may have a form.
func TestPatternsOfChi(t *testing.T) {
	type request struct {
		ID   int    `path:"id"`
		Rest string `path:"*"`
	}
	r := chi.NewRouter()
	api := route.NewAPI(r, route.Info{})
	route.Handle(api, "GET /files/{id:[0-9]{1,3}}/*", func(_ *route.Ctx, req request) (request, error) { return req, nil })
	api.ServeDocs("/docs")
	server := httptest.NewServer(r)
	defer server.Close()
	c := &route.Client{BaseURL: server.URL, HTTP: server.Client()}
	req := request{7, "a/b c"}
	if got, err := route.Call[request, request](t.Context(), c, "GET /files/{id:[0-9]{1,3}}/*", req); err != nil || got != req {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := route.Call[request, request](t.Context(), c, "GET /files/{id:[0-9]{1,3}}/*", request{7777, "x"}); err == nil {
		t.Error("a segment of another form was taken")
	}
	if !strings.Contains(string(api.OpenAPI()), `"/files/{id}/{*}"`) {
		t.Errorf("%s", api.OpenAPI())
	}
}
