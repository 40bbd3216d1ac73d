package route_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/headpond/headpond/route"
)

var quiet = route.Logger(slog.New(slog.DiscardHandler))

// pointers sends a body and returns the pointers, or sources, of its violations, with their rules.
func pointers[Req any](t *testing.T, contentType, target, body string) string {
	t.Helper()
	h := route.New(func(*route.Ctx, Req) (struct{}, error) { return struct{}{}, nil })
	w := request(h, "POST", target, contentType, body)
	var p route.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("%d, %v: %s", w.Code, err, w.Body)
	}
	var list []string
	for _, e := range p.Errors {
		list = append(list, strings.TrimSpace(e.Pointer+e.In+" "+e.Name+" "+e.Rule))
	}
	return fmt.Sprint(w.Code, " ", strings.Join(list, ", "))
}

type Base struct {
	X string `json:"x" validate:"required"`
}

type Nickname string

// A pointer is where encoding/json has the value, however the types are put together.
func TestPointersSayWhere(t *testing.T) {
	type named struct {
		Base `json:"base"`
	}
	type promoted struct{ *Base }
	type scalar struct {
		Nickname `validate:"required"`
	}
	type maps struct {
		M map[netip.Addr]Base       `json:"m" validate:"dive"`
		N map[string]map[string]int `json:"n"`
		A [2]int                    `json:"a"`
		T time.Time                 `json:"t"`
	}
	type lists struct {
		Tags  []string `query:"tags" validate:"max=1,dive,max=2"`
		Odd   string   `query:"a/b~c" validate:"required"`
		Count int      `header:"x-count" validate:"min=1"`
	}
	type forms struct {
		Tags []string `json:"tags" form:"tag" validate:"dive,max=2"`
		N    int      `json:"n" form:"no/1" validate:"min=1"`
	}
	for name, c := range map[string][2]string{
		"in a form":                    {pointers[forms](t, formType, "/", "tag=abc&no%2F1=x"), "422 #/no~11, #/tag/0  max"},
		"in JSON":                      {pointers[forms](t, jsonType, "/", `{"tags":["abc"]}`), "422 #/tags/0  max, #/n  min"},
		"embedded with a name":         {pointers[named](t, jsonType, "/", `{"base":{}}`), "422 #/base/x  required"},
		"embedded pointer":             {pointers[promoted](t, jsonType, "/", `{"x":""}`), "422 #/x  required"},
		"embedded scalar":              {pointers[scalar](t, jsonType, "/", `{}`), "422 #/Nickname  required"},
		"map with keys of its own":     {pointers[maps](t, jsonType, "/", `{"m":{"::1":{},"1.2.3.4":{}}}`), "422 #/m/1.2.3.4/x  required, #/m/::1/x  required"},
		"in a map":                     {pointers[maps](t, jsonType, "/", `{"n":{"k":{"z":"x"}}}`), "400 #/n/k/z"},
		"in an array":                  {pointers[maps](t, jsonType, "/", `{"a":[1,"x"]}`), "400 #/a/1"},
		"too large for its type":       {pointers[maps](t, jsonType, "/", `{"n":{"k":{"z":1e99}}}`), "400 #/n/k/z"},
		"time":                         {pointers[maps](t, jsonType, "/", `{"t":"x"}`), "400 #/t"},
		"elements and names elsewhere": {pointers[lists](t, "", "/?tags=abc", ""), "422 query tags max, query a/b~c required, header X-Count min"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %s, want %s", name, c[0], c[1])
		}
	}
}

type selfMade struct{ N int }

func (s *selfMade) UnmarshalJSON([]byte) error { s.N = 42; return nil }

type selfMadeBeside struct {
	ID string `path:"id"`
	N  int
}

func (*selfMadeBeside) UnmarshalJSON([]byte) error { return nil }

// A request type that decodes itself does so.
func TestOwnUnmarshalers(t *testing.T) {
	h := route.New(func(_ *route.Ctx, req selfMade) (int, error) { return req.N, nil })
	if w := request(h, "POST", "/", jsonType, `{"N":1}`); w.Body.String() != "42" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Whatever middleware has read of a form is bound.
func TestFormsThatMiddlewareHasRead(t *testing.T) {
	type values struct {
		A string   `form:"a" validate:"required"`
		B []string `form:"b"`
	}
	h := route.New(func(_ *route.Ctx, req values) (values, error) { return req, nil }, route.MaxFields(4))
	middleware := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = r.FormValue("csrf"); h.ServeHTTP(w, r) })
	multi, body := form(t, "a", "1", "a", "2", "b", "3", "b", "4")
	for contentType, body := range map[string]string{formType: "a=1&a=2&b=3&b=4", multi: body} {
		if w := request(middleware, "POST", "/?a=query", contentType, body); w.Body.String() != `{"A":"1","B":["3","4"]}` {
			t.Errorf("%s: %d %s", contentType, w.Code, w.Body)
		}
	}
	if w := request(middleware, "POST", "/", formType, "a=1&b=2&b=3&b=4&b=5"); w.Code != 413 {
		t.Errorf("more fields than MaxFields: %d", w.Code)
	}
	// A query that is malformed has nothing to do with a form.
	if w := request(h, "POST", "/?x=%zz", multi, body); w.Code != 201 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Browsers send a part without a file name for a file that was not chosen.
func TestFilesThatWereNotChosen(t *testing.T) {
	const empty = "--x\r\nContent-Disposition: form-data; name=\"none\"; filename=\"\"\r\nContent-Type: application/octet-stream\r\n\r\n\r\n"
	const body = empty + "--x\r\nContent-Disposition: form-data; name=\"a\"; filename=\"a.txt\"\r\n\r\nhello\r\n" + empty + empty + "--x--\r\n"
	h := route.New(func(_ *route.Ctx, req struct{ Files route.Files }) (string, error) {
		got := ""
		for f, err := range req.Files.All() {
			if err != nil {
				return "", err
			}
			b, _ := io.ReadAll(f)
			got += f.Field + ":" + string(b)
		}
		return got, nil
	})
	if w := request(h, "POST", "/", "multipart/form-data; boundary=x", body); w.Body.String() != `"a:hello"` {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type anyStatus struct{ code int }

func (s anyStatus) HTTPStatus() int { return s.code }

// A status that is none is the server's fault, and never a success.
func TestStatusesThatAreNone(t *testing.T) {
	for code, want := range map[int]int{-1: 500, 1: 500, 100: 500, 103: 500, 199: 500, 1000: 500, 200: 200, 299: 299, 599: 599} {
		for name, h := range map[string]http.Handler{
			"SetStatus":  route.New(func(c *route.Ctx, _ struct{}) (int, error) { c.SetStatus(code); return 1, nil }, quiet),
			"HTTPStatus": route.New(func(*route.Ctx, struct{}) (anyStatus, error) { return anyStatus{code}, nil }, quiet),
			"Problem":    route.New(func(*route.Ctx, struct{}) (int, error) { return 1, route.Errorf(code, "x") }, quiet),
		} {
			server := httptest.NewServer(h)
			resp, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			server.Close()
			if resp.StatusCode != want {
				t.Errorf("%s %d: status %d, want %d", name, code, resp.StatusCode, want)
			}
		}
	}
	anyMethod := route.New(func(*route.Ctx, struct{}) (int, error) { return 1, nil })
	for method, want := range map[string]int{"GET": 200, "PUT": 200, "POST": 201} { // as in Handle
		if w := request(anyMethod, method, "/", "", ""); w.Code != want {
			t.Errorf("%s: %d", method, w.Code)
		}
	}
	serve(t, "GET /", func(c *route.Ctx, _ struct{}) (int, error) { c.SetStatus(205); return 1, nil })("GET", "/", "", "").want(t, 205)
}

// exchangeRaw sends text on a new connection and returns the first response.
func exchangeRaw(t *testing.T, address, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// A body with too large a Content-Length is refused without waiting for any of it.
func TestLargeBodiesAreRefusedBeforeTheyCome(t *testing.T) {
	server := httptest.NewServer(route.New(func(_ *route.Ctx, req struct {
		A string `json:"a" form:"a"`
	}) (string, error) {
		return req.A, nil
	}))
	defer server.Close()
	for _, header := range []string{"", "Expect: 100-continue\r\n"} {
		for _, contentType := range []string{jsonType, formType, "multipart/form-data; boundary=x"} {
			got := exchangeRaw(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\n"+header+"Content-Type: "+contentType+"\r\nContent-Length: 500000000\r\n\r\n")
			if got != "HTTP/1.1 413 Request Entity Too Large" {
				t.Errorf("%q, %s: %s", header, contentType, got)
			}
		}
	}
	if got := exchangeRaw(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"); got != "HTTP/1.1 100 Continue" {
		t.Errorf("a body that may come: %s", got)
	}
}

func TestMediaTypes(t *testing.T) {
	csv := route.Codec{ContentType: "text/csv; charset=utf-8", Marshal: func(dst []byte, _ any) ([]byte, error) { return append(dst, "1,2"...), nil }}
	in := route.Codec{ContentType: "text/x-in", Unmarshal: func([]byte, any) error { return nil }}
	send := serve(t, "POST /", func(*route.Ctx, struct{ A string }) (int, error) { return 1, nil }, route.Codecs(csv, in))
	for accept, want := range map[string]string{"": jsonType, "*": jsonType, "*; q=.2, text/html": jsonType, "text/csv": "text/csv; charset=utf-8", "text/*": "text/csv; charset=utf-8"} {
		if a := send("POST", "/", jsonType, "{}", "Accept", accept); a.status != 201 || a.header.Get("Content-Type") != want {
			t.Errorf("Accept %q: %d %s %s", accept, a.status, a.header.Get("Content-Type"), a.body)
		}
	}
	refused := send("POST", "/", jsonType, "{}", "Accept", "text/x-in")
	if refused.want(t, 406); refused.header.Get("Vary") != "Accept" {
		t.Errorf("header %v", refused.header)
	}
	send("POST", "/", "text/x-in; a=b", "x").want(t, 201)
	send("POST", "/", "text/csv", "x").want(t, 415, "text/x-in")
	send("POST", "/", jsonType, "\x1f\x8b", "Content-Encoding", "gzip").want(t, 415, "gzip")
	send("POST", "/", jsonType, "{}", "Content-Encoding", "identity").want(t, 201)
	if message := caught(func() {
		route.New(func(*route.Ctx, struct{}) (int, error) { return 0, nil }, route.Codecs(route.Codec{}))
	}); !strings.HasPrefix(message, "route: a codec") {
		t.Errorf("%q", message)
	}
}

// Deliberate problems of the server's are in its log too.
func TestServerErrorsAreLogged(t *testing.T) {
	var log bytes.Buffer
	h := route.New(func(*route.Ctx, struct{}) (int, error) { return 0, route.Errorf(503, "in maintenance") }, route.Logger(slog.New(slog.NewTextHandler(&log, nil))))
	if request(h, "GET", "/", "", ""); !strings.Contains(log.String(), "in maintenance") {
		t.Errorf("log %q", log.String())
	}
}

func TestEventsWithoutData(t *testing.T) {
	h := route.New(func(*route.Ctx, struct{}) (route.Events, error) {
		return func(_ context.Context, send func(route.Event) error) error {
			if err := send(route.Event{Retry: time.Second}); err != nil {
				return err
			}
			return send(route.Event{Data: ""})
		}, nil
	})
	if w := request(h, "GET", "/", "", ""); w.Body.String() != "retry: 1000\n\ndata: \n\n" {
		t.Errorf("%q", w.Body.String())
	}
}

func TestETagsWithCommas(t *testing.T) {
	h := route.New(func(c *route.Ctx, _ struct{}) (int, error) { c.Header().Set("ETag", `"a,b"`); return 1, nil }, route.ETag())
	for header, want := range map[string]int{`"a,b"`: 304, `"x", W/"a,b"`: 304, `"a`: 200, `b"`: 200, `"a", "b"`: 200, `W/`: 200} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("If-None-Match", header)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("If-None-Match %s: %d, want %d", header, w.Code, want)
		}
	}
}

func TestDocsAtTheRoot(t *testing.T) {
	mux := http.NewServeMux()
	route.NewAPI(mux, route.Info{}).ServeDocs("/")
	for target, want := range map[string]int{"/": 200, "/page.js": 200, "/openapi.json": 200, "/else": 404} {
		if w := request(mux, "GET", target, "", ""); w.Code != want {
			t.Errorf("%s: %d", target, w.Code)
		}
	}
}

// Files that are still to come have the server's time, whatever the time for the rest was.
func TestBodyTimeoutLeavesFilesTheServersTime(t *testing.T) {
	server := httptest.NewUnstartedServer(route.New(func(_ *route.Ctx, req struct{ Files route.Files }) (int, error) {
		for f, err := range req.Files.All() {
			if err != nil {
				return 0, err
			}
			if _, err := io.ReadAll(f); err != nil {
				return 0, err
			}
		}
		return 1, nil
	}, route.BodyTimeout(time.Minute)))
	server.Config.ReadTimeout = time.Second
	server.Start()
	defer server.Close()
	got := exchangeRaw(t, server.Listener.Addr().String(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000\r\n\r\n"+
		"--x\r\nContent-Disposition: form-data; name=\"a\"; filename=\"a\"\r\n\r\nhello")
	if got != "HTTP/1.1 408 Request Timeout" {
		t.Error(got)
	}
}

// A part of a form may have a head of 10 MiB at most, whether its files are kept or streamed.
func TestHeadsOfPartsAreBounded(t *testing.T) {
	body := "--x\r\nContent-Disposition: form-data; name=\"A\"\r\nX-Long: " + strings.Repeat("y", 11<<20) + "\r\n\r\nhello\r\n--x--\r\n"
	for name, h := range map[string]http.Handler{
		"kept": route.New(func(*route.Ctx, struct {
			A string                `form:"a"`
			F *multipart.FileHeader `file:"f"`
		}) (int, error) {
			return 1, nil
		}),
		"streamed": route.New(func(*route.Ctx, struct{ F route.Files }) (int, error) { return 1, nil }),
	} {
		if w := request(h, "POST", "/", "multipart/form-data; boundary=x", body); w.Code != 413 {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// Errors in a body do not lead to a larger response.
func TestViolationsAreBounded(t *testing.T) {
	type lists struct {
		A []int          `json:"a" validate:"dive,min=1"`
		B []Base         `json:"b" validate:"dive"`
		C map[string]int `json:"c" validate:"dive,min=1"`
	}
	h := route.New(func(*route.Ctx, lists) (int, error) { return 1, nil })
	for _, body := range []string{
		`{"a":[` + strings.Repeat("0,", 300000) + `0]}`, `{"b":[` + strings.Repeat("{},", 300000) + `{}]}`, `{"c":{` + members(20000) + `},"a":[0]}`,
	} {
		w := request(h, "POST", "/", jsonType, body)
		var p route.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != 422 || len(p.Errors) != 100 || !strings.HasPrefix(p.Detail, "many") {
			t.Errorf("%d, %v, %d errors in %d bytes: %s", w.Code, err, len(p.Errors), w.Body.Len(), p.Detail)
		}
	}
}

func members(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":0`, i)
	}
	return b.String()[1:]
}

type (
	forest map[string]forest
	list   []list
	twigs  []*twigs
	branch struct {
		Name string    `json:"name"`
		Kids []*branch `json:"kids"`
		All  *[]branch `json:"all,omitempty"`
	}
)

// Types may hold themselves, with a struct in between or without.
func TestTypesThatHoldThemselves(t *testing.T) {
	echoes[forest](t, `{"a":{"b":{}}}`)
	echoes[list](t, `[[],[[],[]]]`)
	echoes[twigs](t, `[[],[null,[]]]`)
	echoes[branch](t, `{"name":"a","kids":[{"name":"b","kids":[{"name":"c","kids":null,"all":[]}]}]}`)
	echoes[struct {
		Forest forest    `json:"forest"`
		List   []list    `json:"list"`
		Kids   []*branch `json:"kids"`
	}](t, `{"forest":{"a":{}},"list":[[[]]],"kids":[{"name":"b","kids":null}]}`)
}

func echoes[T any](t *testing.T, body string) {
	t.Helper()
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{})
	route.Handle(api, "PUT /", func(_ *route.Ctx, req T) (T, error) { return req, nil })
	if w := request(mux, "PUT", "/", jsonType, body); w.Code != 200 || w.Body.String() != body {
		t.Errorf("%T: %d, %s", *new(T), w.Code, w.Body)
	}
	if !json.Valid(api.OpenAPI()) {
		t.Errorf("%T: %s", *new(T), api.OpenAPI())
	}
}

// A member that the type does not have is refused wherever it is.
func TestRefuseUnknownInside(t *testing.T) {
	type inner struct {
		X int `json:"x"`
	}
	type outer struct {
		Plain inner            `json:"plain"`
		List  []inner          `json:"list"`
		Map   map[string]inner `json:"map"`
		Array [1]inner         `json:"array"`
		Deep  map[string]map[string][]inner
		Any   any             `json:"any"`
		Raw   json.RawMessage `json:"raw"`
	}
	send := serve(t, "PUT /", func(_ *route.Ctx, req outer) (outer, error) { return req, nil }, route.RefuseUnknown())
	for body, pointer := range map[string]string{
		`{"y":1}`:                           "#/y",
		`{"plain":{"y":1}}`:                 "#/plain/y",
		`{"list":[{"y":1}]}`:                "#/list/0/y",
		`{"map":{"a":{"x":1,"y":1}}}`:       "#/map/a/y",
		`{"array":[{"y":1}]}`:               "#/array/0/y",
		`{"Deep":{"a":{"b":[{},{"y":1}]}}}`: "#/Deep/a/b/1/y",
	} {
		send("PUT", "/", jsonType, body).want(t, 400, `"pointer":"`+pointer+`"`, "the member is not known")
	}
	send("PUT", "/", jsonType, `{"map":{"a":{"x":1}},"array":[{"x":1}],"any":{"y":1},"raw":{"y":1}}`).want(t, 200)
}

// A problem of Errorf wraps the errors that fmt.Errorf would, one or several.
func TestErrorfKeepsItsCauses(t *testing.T) {
	one, other := errors.New("one"), errors.New("other")
	if p := route.Errorf(409, "%w", one); !errors.Is(p, one) || p.Detail != "one" {
		t.Errorf("%v", p)
	}
	if p := route.Errorf(409, "%w and %w", one, other); !errors.Is(p, one) || !errors.Is(p, other) || p.Detail != "one and other" {
		t.Errorf("%v, because of %v", p, p.Err)
	}
	if p := route.Errorf(409, "%v", one); p.Err != nil {
		t.Errorf("%v, because of %v", p, p.Err)
	}
}
