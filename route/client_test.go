package route_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
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

// What Call sends, Handle binds: the same value.
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
	if _, err := route.Call[id, string](t.Context(), c, "/{id}", id{"1"}); err == nil {
		t.Error("a pattern without method was sent")
	}
	if _, err := route.Call[id, int](t.Context(), c, "GET /{id}", id{"1"}); err == nil {
		t.Error("a string was taken for a number")
	}
	if _, err := route.Call[avatar, int](t.Context(), c, "POST /", avatar{}); err == nil {
		t.Error("files were sent")
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
