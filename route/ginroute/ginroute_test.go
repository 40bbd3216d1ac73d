package ginroute_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// A segment reaches the handler as the client sent it.
func TestSlashesInSegments(t *testing.T) {
	router := newRouter()
	router.UseRawPath = true
	type request struct {
		A    string `path:"a"`
		Rest string `path:"rest"`
	}
	echo := func(_ *route.Ctx, req request) (request, error) { return req, nil }
	ginroute.Handle(router, "GET /x/{a}/{rest...}", echo)
	ginroute.Handle(router, "GET /y/{name}", hello)
	for target, want := range map[string]string{"/x/%2Fb/c/d": `{"A":"/b","Rest":"c/d"}`, "/x/b/": `{"A":"b","Rest":""}`, "/y/%2Fb": `"Hello, /b"`} {
		if w := get(router, target); w.Body.String() != want {
			t.Errorf("%s: %d %s, want %s", target, w.Code, w.Body, want)
		}
	}
}

// gin.Recovery recovers from the panic that ends a response, so the connection has to be closed otherwise.
func TestAStreamThatFailsIsCutOff(t *testing.T) {
	router := newRouter()
	router.Use(gin.RecoveryWithWriter(io.Discard))
	ginroute.Handle(router, "GET /stream", func(*route.Ctx, struct{}) (route.Stream, error) {
		return route.Stream{Write: func(w io.Writer) error {
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<16))
			return errors.New("broken")
		}}, nil
	}, route.Logger(slog.New(slog.DiscardHandler)))
	server := httptest.NewServer(router)
	defer server.Close()
	resp, err := server.Client().Get(server.URL + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the response ends after %d bytes as if it were whole", len(b))
	}
}
