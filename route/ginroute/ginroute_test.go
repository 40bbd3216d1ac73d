package ginroute_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/headpond/headpond/route"
	"github.com/headpond/headpond/route/ginroute"
)

type greet struct {
	Name string `path:"name" validate:"max=10"`
}

func hello(_ *route.Ctx, req greet) (string, error) { return "Hello, " + req.Name, nil }

func get(h http.Handler, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
	return w
}

func newRouter() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	return gin.New()
}

func Example() {
	router := newRouter()
	ginroute.Handle(router, "GET /hello/{name}", hello)
	w := get(router, "/hello/Ada")
	fmt.Println(w.Code, w.Body)
	// Output: 200 "Hello, Ada"
}

func TestGroupsMiddlewareAndWildcards(t *testing.T) {
	router := newRouter()
	group := router.Group("/api", func(c *gin.Context) {
		if c.GetHeader("X-Deny") != "" {
			c.AbortWithStatus(http.StatusForbidden)
		}
	})
	e := ginroute.Handle(group, "GET /hello/{name}", hello)
	if e.Pattern() != "GET /hello/{name}" {
		t.Errorf("pattern %q", e.Pattern())
	}
	ginroute.Handle(group, "GET /files/{name...}", hello)
	ginroute.Mux(group).Handle("GET /plain/{$}", http.NotFoundHandler())
	for target, want := range map[string]string{
		"/api/hello/Ada": `200 "Hello, Ada"`, "/api/hello/abcdefghijkl": "422 ", "/api/files/a/b.txt": `200 "Hello, a/b.txt"`, "/api/plain/": "404 404 page not found", "/hello/Ada": "404 ",
	} {
		w := get(router, target)
		if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", target, got, want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/api/hello/Ada", nil)
	r.Header.Set("X-Deny", "1")
	w := httptest.NewRecorder()
	if router.ServeHTTP(w, r); w.Code != http.StatusForbidden {
		t.Errorf("status %d in spite of the middleware", w.Code)
	}
}

func TestPatternsGinDoesNotHave(t *testing.T) {
	for _, pattern := range []string{"GET example.com/x", "GET /a{name}", "GET /a:b"} {
		func() {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.HasPrefix(v, "ginroute: ") {
					t.Errorf("%s: %s", pattern, v)
				}
			}()
			ginroute.Handle(newRouter(), pattern, func(*route.Ctx, struct{}) (int, error) { return 0, nil })
		}()
	}
}
