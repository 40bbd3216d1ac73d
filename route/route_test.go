package route_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/route"
)

type paging struct {
	Page int `query:"page" default:"1" validate:"min=1"`
	Size int `query:"size" default:"20" validate:"max=100"`
}

type level string

func (l *level) UnmarshalText(b []byte) error {
	if string(b) != "low" && string(b) != "high" {
		return errors.New("low or high")
	}
	*l = level(b)
	return nil
}

type everySource struct {
	paging
	ID      int64         `path:"id"`
	Rest    string        `path:"rest"`
	Tags    []string      `query:"tag"`
	Level   level         `query:"level"`
	Since   *time.Time    `query:"since"`
	Wait    time.Duration `query:"wait" default:"1s"`
	Exact   bool          `query:"exact"`
	Tenant  string        `header:"x-tenant" validate:"required"`
	Accepts []string      `header:"X-Accepts"`
	Session string        `cookie:"session"`
	Ratio   float32       `query:"ratio"`
	Small   uint8         `query:"small"`
}

func TestBindsFromEverySource(t *testing.T) {
	var got everySource
	send := serve(t, "GET /things/{id}/{rest...}", func(c *route.Ctx, req everySource) (struct{}, error) {
		got = req
		if c.Route() != "GET /things/{id}/{rest...}" || c.Request().Method != http.MethodGet || c.Context() != c.Request().Context() {
			t.Error("the Ctx does not describe the request")
		}
		return struct{}{}, nil
	})
	send("GET", "/things/7/a/b?tag=x&tag=y%20z&level=high&since=2026-01-02T03:04:05Z&exact=true&size=5&size=6&ratio=0.5&small=255&unknown=1", "", "",
		"X-Tenant", "acme", "X-Accepts", "a, b", "X-Accepts", "c", "Cookie", "session=s1").want(t, 204)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := everySource{
		paging: paging{Page: 1, Size: 5}, ID: 7, Rest: "a/b", Tags: []string{"x", "y z"}, Level: "high", Since: &since, Wait: time.Second,
		Exact: true, Tenant: "acme", Accepts: []string{"a", "b", "c"}, Session: "s1", Ratio: 0.5, Small: 255,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	a := send("GET", "/things/seven/x?level=mid&page=0&size=1000&small=256&exact=maybe&wait=long&since=today&ratio=NaN", "", "")
	a.want(t, 422, `"in":"path","name":"id"`, `"name":"level"`, `"name":"page","rule":"min"`, `"name":"size","rule":"max"`, `"name":"small"`,
		`"name":"exact"`, `"name":"wait"`, `"name":"since"`, `"name":"ratio"`, `"in":"header","name":"X-Tenant","rule":"required"`, `"detail":"10 values are invalid"`)
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("Content-Type %q", ct)
	}
	send("GET", "/things/7/x?page=%zz", "", "").want(t, 400, "query")
	send("GET", "/things/7/x?a=1;b=2", "", "").want(t, 400, "semicolon")
}

type item struct {
	Name  string `json:"name" validate:"required"`
	Count int    `json:"count" form:"n" validate:"gte=0"`
}

type order struct {
	ID    string            `path:"id" validate:"uuid"`
	Email string            `json:"email" form:"mail" validate:"required,email"`
	Items []item            `json:"items" validate:"required,min=1,dive"`
	Notes map[string]string `json:"notes" validate:"dive,max=3"`
	Kind  string            `json:"kind" default:"plain" validate:"oneof=plain fancy"`
}

func TestBindsAndValidatesJSON(t *testing.T) {
	send := serve(t, "PUT /orders/{id}", func(_ *route.Ctx, req order) (order, error) { return req, nil })
	const path = "/orders/12345678-1234-1234-1234-123456789abc"
	const good = `{"email":"a@example.com","items":[{"name":"x","count":1}],"ID":"evil","unknown":[1,{}]}`
	a := send("PUT", path, jsonType, good)
	a.want(t, 200, `"ID":"12345678-1234-1234-1234-123456789abc"`, `"kind":"plain"`)
	if a.header.Get("Content-Length") != fmt.Sprint(len(a.body)) || a.header.Get("Content-Type") != jsonType {
		t.Errorf("header %v", a.header)
	}
	send("PUT", path, "application/json; charset=utf-8", good).want(t, 200)
	send("PUT", path, "application/merge-patch+json", good).want(t, 200)
	send("PUT", path, "", good).want(t, 415, "no Content-Type", "application/json")
	send("PUT", path, "", "").want(t, 415, "the body is missing")
	send("PUT", "/orders/1", jsonType, `{"email":"x","items":[{"name":"a"},{"count":-1}],"notes":{"a/b":"long"},"kind":"odd"}`).want(t, 422,
		`"in":"path","name":"id","rule":"uuid"`, `"pointer":"#/email","rule":"email","detail":"must be an e-mail address"`, `"pointer":"#/items/1/name","rule":"required"`,
		`"pointer":"#/items/1/count","rule":"gte"`, `"pointer":"#/notes/a~1b","rule":"max"`, `"pointer":"#/kind"`, `"detail":"6 values are invalid"`)
	send("PUT", path, jsonType, "").want(t, 422, `#/email`, `#/items`)
	for _, bad := range []string{`{`, `[]`, `{"email":1}`, `{} x`, `{"items":[{"name":{}}]}`, `{"email":"a","email":"b"}`, "{\"email\":\"\xff\"}"} {
		send("PUT", path, jsonType, bad).want(t, 400, "the JSON cannot be read", "pointer")
	}
	send("PUT", path, jsonType, `{"items":[{"name":{}}]}`).want(t, 400, `"#/items/0/name"`)
	send("PUT", path, "text/plain", good).want(t, 415, "application/json")
	send("PUT", path, "x;;", good).want(t, 415)
}

func TestBindsForms(t *testing.T) {
	type form struct {
		Email string   `json:"email" form:"mail" validate:"required,email"`
		Age   int      `json:"age"`
		Tags  []string `form:"tag"`
		Agree bool     `form:"agree"`
	}
	send := serve(t, "POST /", func(_ *route.Ctx, req form) (form, error) { return req, nil }, route.MaxFields(6))
	send("POST", "/", formType, "mail=a%40example.com&age=3&tag=x&tag=y+z&agree=true").want(t, 201, `{"email":"a@example.com","age":3,"Tags":["x","y z"],"Agree":true}`)
	send("POST", "/", formType, "mail=a%40example.com&age=&mail=b&tag=").want(t, 201, `{"email":"a@example.com","age":0,"Tags":[""],"Agree":false}`)
	send("POST", "/", formType, "m%61il=a@example.com").want(t, 201)
	send("POST", "/", formType, "mail=x&age=y").want(t, 422, `"#/mail"`, `"#/age"`)
	send("POST", "/", formType, "mail=%4").want(t, 400)
	send("POST", "/", formType, "a;b").want(t, 400)
	send("POST", "/", formType, "a=1&b=1&c=1&d=1&e=1&f=1&g=1").want(t, 413)
}

func TestOtherBodies(t *testing.T) {
	list := serve(t, "POST /", func(_ *route.Ctx, req []item) (int, error) { return len(req), nil })
	list("POST", "/", jsonType, `[{"name":"a"},{"name":"b"}]`).want(t, 201, "2")
	list("POST", "/", formType, `a=b`).want(t, 415)
	dict := serve(t, "POST /", func(_ *route.Ctx, req map[string]int) (map[string]int, error) { return req, nil })
	dict("POST", "/", jsonType, `{"a":1}`).want(t, 201, `{"a":1}`)
	none := serve(t, "DELETE /", func(*route.Ctx, struct{}) (struct{}, error) { return struct{}{}, nil })
	none("DELETE", "/", jsonType, `not looked at`).want(t, 204)
	standard := serve(t, "POST /", func(_ *route.Ctx, req struct {
		N int `json:"n,string"`
	}) (int, error) {
		return req.N, nil
	})
	standard("POST", "/", jsonType, `{"n":"5"}`).want(t, 201, "5")
}

type teapot struct {
	Short bool `json:"short"`
}

func (teapot) HTTPStatus() int { return http.StatusTeapot }

func TestStatuses(t *testing.T) {
	value := func(*route.Ctx, struct{}) (int, error) { return 1, nil }
	serve(t, "GET /", value)("GET", "/", "", "").want(t, 200, "1")
	serve(t, "POST /", value)("POST", "/", "", "").want(t, 201, "1")
	serve(t, "POST /", value, route.Status(202))("POST", "/", "", "").want(t, 202, "1")
	serve(t, "GET /", func(*route.Ctx, struct{}) (teapot, error) { return teapot{true}, nil })("GET", "/", "", "").want(t, 418, `{"short":true}`)
	serve(t, "GET /", func(*route.Ctx, struct{}) (*teapot, error) { return &teapot{true}, nil })("GET", "/", "", "").want(t, 418)
	set := serve(t, "GET /", func(c *route.Ctx, _ struct{}) (*teapot, error) {
		c.SetStatus(203)
		c.Header().Set("X-Mine", "yes")
		return nil, nil
	})("GET", "/", "", "")
	set.want(t, 203, "null")
	if set.header.Get("X-Mine") != "yes" {
		t.Error("the header is missing")
	}
}

var errGone = errors.New("gone")

type conflict struct{}

func (conflict) Error() string   { return "in conflict" }
func (conflict) StatusCode() int { return http.StatusConflict }

func TestErrorsBecomeProblems(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	fail := func(err error) answer {
		return serve(t, "GET /", func(*route.Ctx, struct{}) (int, error) { return 0, err }, route.Logger(logger), route.MapError(func(err error) *route.Problem {
			if errors.Is(err, errGone) {
				return &route.Problem{Type: "https://example.com/gone", Status: http.StatusGone}
			}
			return nil
		}))("GET", "/", "", "")
	}
	fail(route.Errorf(404, "no user %d", 7)).want(t, 404, `{"title":"Not Found","status":404,"detail":"no user 7"}`)
	fail(fmt.Errorf("wrapped: %w", route.Errorf(402, "pay"))).want(t, 402)
	fail(fmt.Errorf("wrapped: %w", conflict{})).want(t, 409, "in conflict")
	fail(fmt.Errorf("wrapped: %w", errGone)).want(t, 410, "https://example.com/gone")
	fail(context.DeadlineExceeded).want(t, 503)
	fail(&http.MaxBytesError{Limit: 1}).want(t, 413)
	fail(&route.Problem{}).want(t, 500)
	if log.Len() > 0 && strings.Contains(log.String(), "no user") {
		t.Errorf("errors of clients are logged: %s", log.String())
	}
	a := fail(errors.New("password is hunter2"))
	a.want(t, 500, "its log says why")
	if strings.Contains(a.body, "hunter2") || !strings.Contains(log.String(), "hunter2") {
		t.Errorf("body %s, log %s", a.body, log.String())
	}
	var none *route.Problem
	fail(none).want(t, 500, "its log says why")
	if !strings.Contains(log.String(), "nil *Problem") {
		t.Errorf("the log does not say what is wrong with a nil *Problem: %s", log.String())
	}
	if p := route.Errorf(400, "%w", errGone); !errors.Is(p, errGone) || !strings.Contains(p.Error(), "400 Bad Request: gone") {
		t.Errorf("%v does not wrap its cause", p)
	}
}

func TestPanicsAreAnsweredAndLogged(t *testing.T) {
	var log bytes.Buffer
	send := serve(t, "GET /", func(*route.Ctx, struct{}) (int, error) { panic("secret reason") }, route.Logger(slog.New(slog.NewTextHandler(&log, nil))))
	a := send("GET", "/", "", "")
	a.want(t, 500)
	if strings.Contains(a.body, "secret") || !strings.Contains(log.String(), "secret reason") || !strings.Contains(log.String(), "route_test.go") {
		t.Errorf("body %s, log %s", a.body, log.String())
	}
	unencodable := serve(t, "GET /", func(*route.Ctx, struct{}) (float64, error) { return 0, nil }, route.Logger(slog.New(slog.DiscardHandler)))
	unencodable("GET", "/", "", "").want(t, 200, "0")
}

func TestLimits(t *testing.T) {
	type body struct {
		Name string `json:"name"`
		Next *body  `json:"next"`
	}
	send := serve(t, "POST /", func(_ *route.Ctx, req body) (string, error) { return req.Name, nil }, route.MaxBody(1000), route.MaxDepth(3), route.RefuseUnknown())
	exact := `{"name":"` + strings.Repeat("x", 1000-11) + `"}`
	send("POST", "/", jsonType, exact).want(t, 201)
	send("POST", "/", jsonType, exact+" ").want(t, 413)
	send("POST", "/", jsonType, `{"next":{"next":{"next":{}}}}`).want(t, 400, "deeper than 3")
	send("POST", "/", jsonType, `{"nam":1}`).want(t, 400, `#/nam"`)

	h := route.New(func(_ *route.Ctx, req body) (string, error) { return req.Name, nil }, route.MaxBody(1000))
	for size, want := range map[int]int{900: 201, 1500: 413, 5000: 413} { // of unknown length
		r := httptest.NewRequest("POST", "/", struct{ *strings.Reader }{strings.NewReader(`{"name":"` + strings.Repeat("x", size) + `"}`)})
		r.ContentLength = -1
		r.Header.Set("Content-Type", jsonType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("a chunked body of %d bytes: status %d, want %d", size, w.Code, want)
		}
	}
	large := route.New(func(_ *route.Ctx, req body) (int, error) { return len(req.Name), nil }, route.MaxBody(1<<50))
	claim := httptest.NewRequest("POST", "/", strings.NewReader(`{"name":"`+strings.Repeat("x", 1<<20)+`"}`))
	claim.ContentLength = 1 << 49 // no machine has the memory for that
	claim.Header.Set("Content-Type", jsonType)
	w := httptest.NewRecorder()
	if large.ServeHTTP(w, claim); w.Body.String() != "1048576" {
		t.Errorf("a body that claims to be large: %d %s", w.Code, w.Body)
	}
	r := httptest.NewRequest("POST", "/", failingReader{})
	r.Header.Set("Content-Type", jsonType)
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 400 {
		t.Errorf("a broken body: status %d", w.Code)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// impossible are registrations that panic, and texts of the panics.
var impossible = map[string]struct {
	make func()
	says string
}{
	"path": {func() {
		handle[struct {
			A int `path:"a"`
		}]("GET /x")
	}, `no {a}`},
	"two sources": {func() {
		handle[struct {
			A int `path:"a" query:"a"`
		}]("GET /{a}")
	}, "both"},
	"body of GET": {func() { handle[struct{ A int }]("GET /") }, "GET has none of"},
	"map in query": {func() {
		handle[struct {
			A map[string]int `query:"a"`
		}]("GET /")
	}, "not made of text"},
	"bytes in query": {func() {
		handle[struct {
			A []byte `query:"a"`
		}]("GET /")
	}, "not made of text"},
	"slice in path": {func() {
		handle[struct {
			A []int `path:"a"`
		}]("GET /{a}")
	}, "one value"},
	"slice in cookie": {func() {
		handle[struct {
			A []string `cookie:"a"`
		}]("GET /")
	}, "one value"},
	"func": {func() { handle[struct{ A func() }]("POST /") }, "cannot be filled"},
	"rule": {func() {
		handle[struct {
			A int `query:"a" validate:"requierd"`
		}]("GET /")
	}, `"requierd" is not known`},
	"rule and type": {func() {
		handle[struct {
			A int `query:"a" validate:"email"`
		}]("GET /")
	}, "needs a string"},
	"parameter": {func() {
		handle[struct {
			A int `query:"a" validate:"min=x"`
		}]("GET /")
	}, "bound"},
	"other field": {func() {
		handle[struct {
			A int `query:"a" validate:"eqfield=B"`
		}]("GET /")
	}, `"B"`},
	"default": {func() {
		handle[struct {
			A int `query:"a" default:"x"`
		}]("GET /")
	}, "must be an integer"},
	"twice": {func() {
		handle[struct {
			A int `query:"a"`
			B int `query:"a"`
		}]("GET /")
	}, "one source"},
	"unexported": {func() {
		handle[struct {
			a int `query:"a"`
		}]("GET /")
	}, "not exported"},
	"int": {func() { handle[int]("POST /") }, "neither a struct"},
	"endless pointer": {func() {
		handle[struct {
			Next endless `json:"next"`
		}]("POST /")
	}, "route_test.endless, which is a pointer to nothing but itself"},
	"endless pointer in the query": {func() {
		handle[struct {
			Next *endless `query:"next"`
		}]("POST /")
	}, "to nothing but itself"},
	"endless pointer in a map": {func() { handle[map[string][]endless]("POST /") }, "to nothing but itself"},
	"endless response":         {func() { route.New(func(*route.Ctx, struct{}) (endless, error) { return nil, nil }) }, "to nothing but itself"},
	"mixed": {func() {
		handle[struct {
			A int `query:"a"`
			B int `json:"b,string"`
		}]("POST /")
	}, "struct of their own"},
	"decodes itself":   {func() { handle[selfMadeBeside]("POST /{id}") }, "a method that decodes it"},
	"embedded pointer": {func() { handle[struct{ *paging }]("POST /") }, "embed the struct itself"},
	"func within":      {func() { handle[struct{ A []struct{ F func() } }]("POST /") }, "it holds a func()"},
	"status":           {func() { route.New(func(*route.Ctx, struct{}) (int, error) { return 0, nil }, route.Status(100)) }, "not the status"},
	"chan within": {func() {
		route.New(func(*route.Ctx, struct{}) (map[string]struct{ C chan int }, error) { return nil, nil })
	}, "cannot be encoded"},
	"Host": {func() {
		handle[struct {
			A string `header:"host"`
		}]("GET /")
	}, "Request.Host"},
	"one form name": {func() {
		handle[struct {
			A int `json:"a" form:"x"`
			B int `json:"b" form:"x"`
		}]("POST /")
	}, "one name in forms"},
	"no method":   {func() { handle[struct{}]("/") }, "no method"},
	"response":    {func() { route.New(func(*route.Ctx, struct{}) (chan int, error) { return nil, nil }) }, "cannot be encoded"},
	"no function": {func() { route.New[struct{}, int](nil) }, "no function"},
	"unique": {func() {
		handle[struct {
			A []struct{ B any } `validate:"unique"`
		}]("POST /")
	}, "cannot compare"},
	"both tags": {func() {
		handle[struct {
			A int `query:"a" validate:"min=1" binding:"min=2"`
		}]("GET /")
	}, "differ"},
	"file": {func() {
		handle[struct {
			A string `file:"a"`
		}]("POST /")
	}, "neither *multipart.FileHeader"},
}

// endless has no value but a pointer.
type endless **endless

func TestImpossibleTypesPanic(t *testing.T) {
	for name, register := range impossible {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if v := fmt.Sprint(recover()); !strings.Contains(v, register.says) || !strings.HasPrefix(v, "route: ") {
					t.Errorf("panics with %q, want something about %q", v, register.says)
				}
			}()
			register.make()
		})
	}
}

func handle[Req any](pattern string) {
	route.Handle(http.NewServeMux(), pattern, func(*route.Ctx, Req) (struct{}, error) { return struct{}{}, nil })
}

func TestCustomRules(t *testing.T) {
	type request struct {
		Code string `query:"code" validate:"required,checksum=7"`
	}
	send := serve(t, "GET /", func(_ *route.Ctx, req request) (string, error) { return req.Code, nil },
		route.Rule("checksum", func(v any, param string) bool { return strings.HasSuffix(v.(string), param) }))
	send("GET", "/?code=17", "", "").want(t, 200)
	send("GET", "/?code=18", "", "").want(t, 422, `"rule":"checksum"`)
}

func TestNegotiation(t *testing.T) {
	type body struct {
		Name string `json:"name" xml:"name"`
	}
	send := serve(t, "PUT /", func(_ *route.Ctx, req body) (body, error) { return req, nil }, route.Codecs(route.XML))
	send("PUT", "/", "application/xml", "<body><name>x</name></body>", "Accept", "application/xml").want(t, 200, "<body><name>x</name></body>")
	send("PUT", "/", "application/xml", "<body>").want(t, 400)
	type mixed struct {
		ID   int    `path:"id"`
		Name string `json:"name" xml:"name"`
	}
	mix := serve(t, "PUT /{id}", func(_ *route.Ctx, req mixed) (mixed, error) { return req, nil }, route.Codecs(route.XML))
	mix("PUT", "/7", "application/xml", "<mixed><ID>8</ID><name>x</name></mixed>").want(t, 200, `"ID":7,"name":"x"`)
	for accept, want := range map[string]string{
		"*/*": jsonType, "application/*;q=0.5": jsonType, "application/xml": "application/xml", "application/json;q=0.1, application/xml;q=0.2": "application/xml",
		"text/html, */*;q=0.1": jsonType, "application/json;q=0, */*": "application/xml",
	} {
		a := send("PUT", "/", jsonType, `{"name":"x"}`, "Accept", accept)
		if a.status != 200 || a.header.Get("Content-Type") != want || a.header.Get("Vary") != "Accept" {
			t.Errorf("Accept %s: status %d, header %v", accept, a.status, a.header)
		}
	}
	send("PUT", "/", jsonType, `{"name":"x"}`, "Accept", "text/html").want(t, 406, "application/xml")
	plain := serve(t, "GET /", func(*route.Ctx, struct{}) (int, error) { return 1, nil })
	plain("GET", "/", "", "", "Accept", "text/html;q=0.9, application/json").want(t, 200)
	plain("GET", "/", "", "", "Accept", "image/png").want(t, 406)
}

func TestETags(t *testing.T) {
	send := serve(t, "GET /", func(*route.Ctx, struct{}) (string, error) { return "hello", nil }, route.ETag())
	a := send("GET", "/", "", "")
	tag := a.header.Get("ETag")
	if a.want(t, 200, "hello"); tag == "" {
		t.Fatal("no ETag")
	}
	for _, header := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
		if b := send("GET", "/", "", "", "If-None-Match", header); b.status != 304 || b.body != "" || b.header.Get("ETag") != tag {
			t.Errorf("If-None-Match %s: %+v", header, b)
		}
	}
	send("GET", "/", "", "", "If-None-Match", `"x"`).want(t, 200)
	own := serve(t, "GET /", func(c *route.Ctx, _ struct{}) (string, error) { c.Header().Set("ETag", `"v1"`); return "hello", nil }, route.ETag())
	own("GET", "/", "", "", "If-None-Match", `"v1"`).want(t, 304)
}
