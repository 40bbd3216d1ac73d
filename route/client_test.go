package route_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/route"
)

type everything struct {
	everySource
	Names []string       `json:"names"`
	Map   map[string]int `json:"map"`
	When  *time.Time     `json:"when,omitempty"`
}

// client starts a server with one handler and returns a Client of it.
func client[Req, Resp any](t *testing.T, pattern string, fn func(*route.Ctx, Req) (Resp, error), opts ...route.Option) *route.Client {
	t.Helper()
	mux := http.NewServeMux()
	route.Handle(mux, pattern, fn, opts...)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.Client().CloseIdleConnections()
		server.Close()
	})
	return &route.Client{BaseURL: server.URL, HTTP: server.Client(), Header: http.Header{"X-Client": {"test"}}}
}

// Handle binds the value that Call sends.
func TestCallIsTheOtherSideOfHandle(t *testing.T) {
	const pattern = "PUT /things/{id}/{rest...}"
	var got everything
	c := client(t, pattern, func(c *route.Ctx, req everything) (everything, error) {
		if c.Request().Header.Get("X-Client") != "test" {
			t.Error("the client's header is missing")
		}
		got = req
		return req, nil
	}, route.RefuseUnknown())
	when := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	req := everything{
		everySource: everySource{
			paging: paging{Page: 3, Size: 7}, ID: -5, Rest: "a b/c?/ü", Tags: []string{"x&y", "z="}, Level: "high", Since: &when, Wait: 90 * time.Second,
			Exact: true, Tenant: "acme", Accepts: []string{"a", "b"}, Session: "s1", Ratio: 0.25, Small: 200,
		},
		Names: []string{"<&>", "é"}, Map: map[string]int{"a": 1}, When: &when,
	}
	if _, err := route.Call[everything, struct{}](t.Context(), c, pattern, req); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, req) {
		t.Errorf("bound %+v\nsent  %+v", got, req)
	}
	got = everything{}
	if _, err := route.Call[everything, struct{}](t.Context(), c, pattern, everything{everySource: everySource{ID: 1, Rest: "x", Tenant: "t"}}); err != nil {
		t.Fatal(err)
	}
	if got.Page != 1 || got.Size != 20 || got.Wait != time.Second {
		t.Errorf("defaults do not apply: %+v", got)
	}
}

func TestCallReturnsProblems(t *testing.T) {
	const pattern = "POST /teams/{team}/users"
	c := client(t, pattern, func(_ *route.Ctx, req createUser) (user, error) { return user{Team: req.Team, Name: req.Name}, nil })
	u, err := route.Call[createUser, user](t.Context(), c, pattern, createUser{"math", "Ada", 36})
	if err != nil || u != (user{"math", "Ada"}) {
		t.Errorf("%+v, %v", u, err)
	}
	_, err = route.Call[createUser, user](t.Context(), c, pattern, createUser{Team: "math"})
	p, ok := errors.AsType[*route.Problem](err)
	if !ok || p.Status != 422 || len(p.Errors) != 2 || p.Errors[0].Pointer != "#/name" {
		t.Errorf("%v", err)
	}
	_, err = route.Call[struct{}, user](t.Context(), c, "GET /none", struct{}{})
	if p, ok := errors.AsType[*route.Problem](err); !ok || p.Status != 404 || !strings.Contains(p.Detail, "not found") {
		t.Errorf("%v", err)
	}
}

func TestCallFails(t *testing.T) {
	if _, err := route.Call[struct{ Next *endless }, int](t.Context(), &route.Client{BaseURL: "http://127.0.0.1:1"}, "POST /", struct{ Next *endless }{}); err == nil || !strings.Contains(err.Error(), "to nothing but itself") {
		t.Errorf("a type that no plan can be made of: %v", err)
	}
	c := client(t, "GET /{id}", func(_ *route.Ctx, req struct {
		ID string `path:"id"`
	}) (string, error) {
		return strings.Repeat("x", 100), nil
	})
	type id struct {
		ID string `path:"id"`
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := route.Call[id, string](ctx, c, "GET /{id}", id{"1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := route.Call[id, string](t.Context(), c, "GET /{id}", id{}); err == nil {
		t.Error("an empty value in the path was sent")
	}
	if _, err := route.Call[struct{}, string](t.Context(), c, "GET /{id}", struct{}{}); err == nil || !strings.Contains(err.Error(), "{id}") {
		t.Errorf("a wildcard was sent: %v", err)
	}
	if _, err := route.Call[id, string](t.Context(), c, "/{id}", id{"1"}); err == nil {
		t.Error("a pattern without method was sent")
	}
	if _, err := route.Call[id, int](t.Context(), c, "GET /{id}", id{"1"}); err == nil {
		t.Error("a string was taken for a number")
	}
	if _, err := route.Call[id, route.Events](t.Context(), c, "GET /{id}", id{"1"}); err == nil {
		t.Error("a stream was read as a value")
	}
	c.MaxResponse = 50
	if _, err := route.Call[id, string](t.Context(), c, "GET /{id}", id{"1"}); !errors.Is(err, route.ErrResponseTooLarge) {
		t.Errorf("%v", err)
	}
}

func TestCallStreams(t *testing.T) {
	c := client(t, "GET /", func(*route.Ctx, struct{}) (route.Stream, error) {
		return route.Stream{ContentType: "text/csv", Body: strings.NewReader("a,b"), Size: 3}, nil
	})
	s, err := route.Call[struct{}, route.Stream](t.Context(), c, "GET /", struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(s.Body)
	s.Body.(io.Closer).Close()
	if err != nil || string(b) != "a,b" || s.ContentType != "text/csv" || s.Size != 3 {
		t.Errorf("%+v, %q, %v", s, b, err)
	}
}

// Files go the way other values do: by the types of the handler.
func TestCallSendsFiles(t *testing.T) {
	text := func(f *multipart.FileHeader) string {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return f.Filename + " " + f.Header.Get("Content-Type") + " " + string(b)
	}
	file := func(name, content string) *multipart.FileHeader {
		f, err := route.FileOf(name, []byte(content))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	c := client(t, "POST /", func(c *route.Ctx, req avatar) ([]string, error) {
		got := slices.Concat(req.Tags, []string{req.Name, text(req.Photo), fmt.Sprint(c.Request().ContentLength > 0)})
		for _, f := range req.Others {
			got = append(got, text(f))
		}
		return got, nil
	})
	got, err := route.Call[avatar, []string](t.Context(), c, "POST /", avatar{
		Name: "Ada", Tags: []string{"x", "y\r\nz"}, Photo: file(`a "ü".png`, strings.Repeat("p", 3)), Others: []*multipart.FileHeader{file("b.unknown", ""), nil, file("c", "3")},
	})
	if want := []string{"x", "y\r\nz", "Ada", `a "ü".png image/png ppp`, "true", "b.unknown application/octet-stream ", "c application/octet-stream 3"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	if _, err := route.Call[avatar, []string](t.Context(), c, "POST /", avatar{Name: "Ada"}); err == nil || !strings.Contains(err.Error(), "file photo is required") {
		t.Errorf("without files: %v", err)
	}
	if _, err := route.FileOf("", nil); err == nil {
		t.Error("a file without a name was made")
	}
}

func TestCallStreamsFiles(t *testing.T) {
	type upload struct {
		Name  string         `form:"name"`
		Depth int            `query:"depth"`
		Map   map[string]int `json:"map"`
		Files route.Files
	}
	c := client(t, "POST /", func(c *route.Ctx, req upload) (string, error) {
		got := fmt.Sprintf("%s %d %t", req.Name, req.Depth, c.Request().ContentLength > 0)
		for f, err := range req.Files.All() {
			if err != nil {
				return "", err
			}
			b, err := io.ReadAll(f)
			if err != nil {
				return "", err
			}
			got += fmt.Sprint(" ", f.Field, " ", f.Name, " ", f.ContentType, " ", len(b))
		}
		return got, nil
	})
	for sized, reader := range map[string]io.Reader{"true": strings.NewReader(strings.Repeat("x", 1<<20)), "false": io.LimitReader(neverEnding{}, 1<<20)} {
		got, err := route.Call[upload, string](t.Context(), c, "POST /", upload{Name: "Ada", Depth: 3, Files: route.FilesOf(
			&route.Upload{Field: "a", Name: "a.txt", Reader: reader}, &route.Upload{Field: "b", Name: "b", ContentType: "x/y", Reader: strings.NewReader("")})})
		if want := "Ada 3 " + sized + " a a.txt text/plain; charset=utf-8 1048576 b b x/y 0"; err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	if _, err := route.Call[upload, string](t.Context(), c, "POST /", upload{Map: map[string]int{"a": 1}}); err == nil || !strings.Contains(err.Error(), "field Map") {
		t.Errorf("a map in a form: %v", err)
	}
	broken := route.FilesOf(&route.Upload{Field: "a", Name: "a", Reader: failingReader{}})
	if _, err := route.Call[upload, string](t.Context(), c, "POST /", upload{Files: broken}); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("a file that cannot be read: %v", err)
	}
	for f, err := range route.FilesOf(&route.Upload{Field: "a"}).All() { // for tests of handlers
		if err != nil || f.Field != "a" {
			t.Errorf("%+v, %v", f, err)
		}
	}
}

type neverEnding struct{}

func (neverEnding) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

// mark has its text by methods of its pointer.
type mark struct{ s string }

func (m *mark) MarshalText() ([]byte, error) { return []byte("mark " + m.s), nil }
func (m *mark) UnmarshalText(b []byte) error {
	m.s = strings.TrimPrefix(string(b), "mark ")
	return nil
}

// A value that cannot be sent unchanged is refused.
func TestCallPlacesValuesWhole(t *testing.T) {
	type request struct {
		ID     string `path:"id"`
		Rest   string `path:"rest"`
		Mark   mark   `query:"mark"`
		Cookie string `cookie:"c"`
	}
	const pattern = "GET 127.0.0.1/{id}/{rest...}"
	var got request
	c := client(t, pattern, func(_ *route.Ctx, req request) (struct{}, error) { got = req; return struct{}{}, nil })
	for _, req := range []request{{ID: "a/b", Rest: ""}, {ID: "..x", Rest: "a/b c", Mark: mark{"m&m"}, Cookie: "a, b"}} {
		if _, err := route.Call[request, struct{}](t.Context(), c, pattern, req); err != nil || got != req {
			t.Errorf("bound %+v, sent %+v: %v", got, req, err)
		}
	}
	for _, req := range []request{{ID: "..", Rest: "x"}, {ID: ".", Rest: "x"}, {ID: "x", Rest: "a/../b"}, {ID: "x", Cookie: "a;b"}, {ID: "x", Cookie: "ü"}} {
		if _, err := route.Call[request, struct{}](t.Context(), c, pattern, req); err == nil {
			t.Errorf("%+v was sent", req)
		}
	}
	c = client(t, "GET /", func(c *route.Ctx, _ struct{}) (struct{}, error) { c.SetStatus(304); return struct{}{}, nil })
	if _, err := route.Call[struct{}, struct{}](t.Context(), c, "GET /", struct{}{}); err == nil {
		t.Error("304 was taken for a response")
	}
}
