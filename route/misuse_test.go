package route_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/headpond/headpond/route"
)

func request(h http.Handler, method, target, contentType, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// caught returns the panic value of f.
func caught(f func()) (message string) {
	defer func() { message = fmt.Sprint(recover()) }()
	f()
	return ""
}

// Every documented misuse of a Ctx is detected, even if its exchange already serves another request.
func TestMisuseIsCaught(t *testing.T) {
	var kept *route.Ctx
	release := make(chan struct{})
	inside := make(chan struct{})
	mux := http.NewServeMux()
	route.Handle(mux, "GET /users/{id}", func(c *route.Ctx, req struct {
		ID int `path:"id"`
	}) (int, error) {
		if req.ID == 1 {
			kept = c
		} else {
			close(inside)
			<-release
		}
		return req.ID, nil
	})
	request(mux, "GET", "/users/1", "", "")
	var wg sync.WaitGroup
	wg.Go(func() { request(mux, "GET", "/users/2", "", "") }) // has the exchange of the first, where it is reused
	<-inside
	for name, use := range map[string]func(){
		"Context": func() { kept.Context() }, "Request": func() { kept.Request() }, "Header": func() { kept.Header() }, "SetStatus": func() { kept.SetStatus(200) },
		"Route": func() { kept.Route() }, "Detach": func() { kept.Detach() },
	} {
		var message string
		var late sync.WaitGroup
		late.Go(func() { message = caught(use) })
		late.Wait()
		if !strings.Contains(message, `the Ctx of "GET /users/{id}" was used after its handler had returned`) || !strings.Contains(message, "misuse_test.go") {
			t.Errorf("%s of a stale Ctx: %q", name, message)
		}
	}
	close(release)
	wg.Wait()
}

// A Ctx that a panicking handler leaves behind is stale, too.
func TestMisuseAfterAPanicIsCaught(t *testing.T) {
	var kept *route.Ctx
	h := route.New(func(c *route.Ctx, _ struct{}) (int, error) {
		kept = c
		panic(http.ErrAbortHandler)
	})
	if caught(func() { request(h, "GET", "/", "", "") }) != http.ErrAbortHandler.Error() {
		t.Error("http.ErrAbortHandler does not reach net/http")
	}
	if !strings.Contains(caught(func() { kept.Context() }), "used after") {
		t.Error("the Ctx is not stale")
	}
}

func TestDetachedOutlivesTheHandler(t *testing.T) {
	type key struct{}
	var d *route.Detached
	h := route.New(func(c *route.Ctx, _ struct{}) (int, error) {
		d = c.Detach()
		return 1, nil
	})
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
	r := httptest.NewRequestWithContext(ctx, "GET", "/x", nil)
	r.Header.Set("X-A", "1")
	h.ServeHTTP(httptest.NewRecorder(), r)
	cancel()
	if d.Context().Err() != nil || d.Context().Value(key{}) != "trace" || d.Request().Header.Get("X-A") != "1" || d.Request().URL.Path != "/x" || d.Route() != "" {
		t.Errorf("%+v", d)
	}
}

func TestACtxIsNoContext(t *testing.T) {
	if _, ok := any(&route.Ctx{}).(context.Context); ok {
		t.Error("a Ctx is a context.Context: something will keep it")
	}
}

// Values kept by a handler do not change when other requests reuse the memory.
func TestRequestsDoNotShareMemory(t *testing.T) {
	type body struct {
		Name  string   `json:"name" form:"name"`
		Tags  []string `json:"tags"`
		Next  *body    `json:"next"`
		Query string   `query:"q"`
	}
	var mu sync.Mutex
	kept := map[string]body{}
	h := route.New(func(_ *route.Ctx, req body) (body, error) {
		mu.Lock()
		defer mu.Unlock()
		kept[req.Query] = req
		return req, nil
	})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("%d-%d", g, i)
				contentType, text := jsonType, fmt.Sprintf(`{"name":"n%s","tags":["t%s","\u0074%s"],"next":{"name":"m%s"}}`, id, id, id, id)
				if i%2 == 1 {
					contentType, text = formType, "name=n"+id+"&tags=t"+id+"&tags=%74"+id
				}
				want := fmt.Sprintf(`{"name":"n%s","tags":["t%s","t%s"],`, id, id, id)
				if w := request(h, "POST", "/?q="+id, contentType, text); !strings.HasPrefix(w.Body.String(), want) {
					t.Errorf("got %s, want %s", w.Body, want)
				}
			}
		})
	}
	wg.Wait()
	for id, b := range kept {
		if b.Name != "n"+id || len(b.Tags) != 2 || b.Tags[0] != "t"+id || b.Tags[1] != "t"+id || b.Next != nil && b.Next.Name != "m"+id {
			t.Errorf("%s became %+v", id, b)
		}
	}
}

// A request sees nothing of the one before it.
func TestNothingIsLeftOver(t *testing.T) {
	type body struct {
		A string `json:"a"`
		B *int   `json:"b"`
		C []int  `json:"c"`
	}
	h := route.New(func(c *route.Ctx, req body) (body, error) {
		if req.A == "first" {
			c.SetStatus(299)
		}
		return req, nil
	})
	for range 3 {
		if w := request(h, "POST", "/", jsonType, `{"a":"first","b":1,"c":[1,2,3]}`); w.Code != 299 {
			t.Errorf("status %d", w.Code)
		}
		request(h, "POST", "/", jsonType, `{"a":"x","b":2,"c":[9,`)
		if w := request(h, "POST", "/", jsonType, `{}`); w.Code != 201 || w.Body.String() != `{"a":"","b":null,"c":null}` {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}

func TestPooledRequestsAllocateLittle(t *testing.T) {
	if route.Poisoning {
		return // then nothing is pooled
	}
	type body struct {
		Name    string `json:"name" form:"name" validate:"required,min=2,max=600"`
		Email   string `json:"email" form:"email" validate:"required,email"`
		Age     int    `json:"age" form:"age" validate:"min=1,max=150"`
		Country string `json:"country" form:"country" validate:"required"`
	}
	post := route.New(func(_ *route.Ctx, req body) (body, error) { return req, nil })
	get := route.New(func(*route.Ctx, struct{}) (body, error) { return body{Name: "x"}, nil })
	w := &discard{header: http.Header{}}
	for name, c := range map[string]struct {
		h                 http.Handler
		contentType, body string
		most              float64
	}{
		"JSON": {post, jsonType, `{"name":"Ada","email":"ada@example.com","age":36,"country":"GB"}`, 3},
		"form": {post, formType, `name=Ada+L&email=ada%40example.com&age=36&country=GB`, 3},
		"GET":  {get, "", "", 0},
	} {
		body := strings.NewReader(c.body)
		r := httptest.NewRequest("POST", "/", body)
		r.Header.Set("Content-Type", c.contentType)
		if n := testing.AllocsPerRun(200, func() {
			body.Reset(c.body)
			clear(w.header)
			c.h.ServeHTTP(w, r)
		}); n > c.most || w.status >= 300 {
			t.Errorf("%s: %v allocations, want at most %v; status %d", name, n, c.most, w.status)
		}
	}
}

// discard is a ResponseWriter that costs nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// The files of a form are part of the request and end with it.
func TestFilesAfterTheHandlerAreCaught(t *testing.T) {
	type upload struct{ Files route.Files }
	var kept upload
	h := route.New(func(_ *route.Ctx, req upload) (int, error) {
		kept = req
		return 0, nil
	})
	contentType, body := form(t, "@a", "1")
	request(h, "POST", "/", contentType, body)
	message := caught(func() {
		for range kept.Files.All() {
			break
		}
	})
	if !strings.Contains(message, "used after its handler had returned") {
		t.Errorf("%q", message)
	}
}

// An ended stream of events sends nothing to another client.
func TestSendingAfterTheEndIsCaught(t *testing.T) {
	var kept func(route.Event) error
	h := route.New(func(*route.Ctx, struct{}) (route.Events, error) {
		return func(_ context.Context, send func(route.Event) error) error { kept = send; return nil }, nil
	})
	request(h, "GET", "/", "", "")
	if message := caught(func() { _ = kept(route.Event{Data: "late"}) }); !strings.Contains(message, "used after its handler had returned") {
		t.Errorf("%q", message)
	}
}

// Without pooling everything is the same except the cost.
func TestUnpooled(t *testing.T) {
	h := route.New(func(c *route.Ctx, req createUser) (string, error) { return req.Name + c.Route(), nil }, route.Unpooled())
	for _, name := range []string{"Ada", "Eve"} {
		if w := request(h, "POST", "/", jsonType, `{"name":"`+name+`","age":3}`); w.Body.String() != `"`+name+`"` {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	}
}
