package route_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/headpond/headpond/route"
)

func TestDocumentOfEverything(t *testing.T) {
	w := httptest.NewRecorder()
	described().ServeHTTP(w, httptest.NewRequest("GET", "/docs/openapi.json", nil))
	var doc map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	want := func(want string, keys ...string) {
		t.Helper()
		if got, err := json.Marshal(at(t, doc, keys...)); err != nil || string(got) != want {
			t.Errorf("%v is %s, want %s", keys, got, want)
		}
	}
	want(`{"key":{"in":"header","name":"X-Key","type":"apiKey"}}`, "components", "securitySchemes")
	want(`[{"key":[]},{}]`, "paths", "/ages", "post", "security")
	want(`{"text/csv":{"schema":{"format":"binary","type":"string"}}}`, "paths", "/export", "get", "responses", "200", "content")
	want(`{"description":"Street and number.","examples":["Mill Lane 3"],"maxLength":50,"minLength":1,"type":"string"}`, "components", "schemas", "addressInput", "properties", "street")
	want(`{"anyOf":[{"minLength":2},{"const":""},{"type":"null"}],"type":["string","null"]}`, "components", "schemas", "addressInput", "properties", "city")
	want(`["street"]`, "components", "schemas", "addressInput", "required")
	want(`["title","main"]`, "paths", "/files", "post", "requestBody", "content", "multipart/form-data", "schema", "required")
	content := at(t, doc, "paths", "/files", "post", "requestBody", "content").(map[string]any)
	if len(content) != 1 {
		t.Errorf("a required file cannot be sent as anything but multipart: %v", content)
	}
	want(`false`, "components", "schemas", "addressStrictInput", "additionalProperties")
}

func TestProblemsForWhatIsNotRouted(t *testing.T) {
	h := described()
	for target, want := range map[string]int{"GET /nothing": 404, "PATCH /people": 405, "GET /export": 200} {
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want || want != 200 && (w.Header().Get("Content-Type") != "application/problem+json" || !json.Valid(w.Body.Bytes())) {
			t.Errorf("%s: %d %v %s", target, w.Code, w.Header(), w.Body)
		}
		if want == 405 && w.Header().Get("Allow") != "POST" {
			t.Errorf("%s: Allow %q", target, w.Header().Get("Allow"))
		}
	}
	for want, f := range map[int]http.HandlerFunc{404: route.NotFound, 405: route.MethodNotAllowed} {
		w := httptest.NewRecorder()
		if f(w, httptest.NewRequest("GET", "/", nil)); w.Code != want || !strings.Contains(w.Body.String(), `"status":`) {
			t.Errorf("%d: %d %s", want, w.Code, w.Body)
		}
	}
}

func TestSetCookie(t *testing.T) {
	send := serve(t, "GET /", func(c *route.Ctx, _ struct{}) (int, error) {
		c.SetCookie(&http.Cookie{Name: "a", Value: "1", HttpOnly: true, Secure: true, SameSite: http.SameSiteStrictMode})
		c.SetCookie(&http.Cookie{Name: "b", Value: "2"})
		return 1, nil
	})
	if got := send("GET", "/", "", "").header["Set-Cookie"]; len(got) != 2 || got[0] != "a=1; HttpOnly; Secure; SameSite=Strict" || got[1] != "b=2" {
		t.Errorf("Set-Cookie: %q", got)
	}
	bad := serve(t, "GET /", func(c *route.Ctx, _ struct{}) (int, error) {
		c.SetCookie(&http.Cookie{Name: "not a name"})
		return 1, nil
	})
	bad("GET", "/", "", "").want(t, 500)
}

// TestElementsOfABodyAreChecked, as their fields would be alone, and the keys of maps by keys and endkeys.
func TestElementsOfABodyAreChecked(t *testing.T) {
	list := serve(t, "POST /", func(_ *route.Ctx, req []address) (int, error) { return len(req), nil })
	list("POST", "/", jsonType, `[{"street":"x"}]`).want(t, 201, "1")
	list("POST", "/", jsonType, `[{"street":"x"},{"city":"y"}]`).want(t, 422, `"#/1/street"`, `"#/1/city"`)
	list("POST", "/", jsonType, `[null]`).want(t, 422, `"#/0/street"`)
	list("POST", "/", jsonType, "").want(t, 400, "empty")
	byName := serve(t, "POST /", func(_ *route.Ctx, req map[string]address) (int, error) { return len(req), nil })
	byName("POST", "/", jsonType, `{"a":{}}`).want(t, 422, `"#/a/street"`)
	keys := serve(t, "POST /", func(_ *route.Ctx, req struct {
		Labels map[string]string `json:"labels" validate:"dive,keys,min=2,max=3,endkeys,required"`
	}) (int, error) {
		return len(req.Labels), nil
	})
	keys("POST", "/", jsonType, `{"labels":{"ab":"x"}}`).want(t, 201, "1")
	keys("POST", "/", jsonType, `{"labels":{"a":"x","abcd":"x","abc":""}}`).want(t, 422, `"#/labels/a","rule":"min"`, `"#/labels/abcd","rule":"max"`, `"#/labels/abc","rule":"required"`)
}

func TestValueInPlaceOfAFile(t *testing.T) {
	send := serve(t, "POST /", func(_ *route.Ctx, req attachments) (int64, error) { return req.Main.Size, nil })
	contentType, body := form(t, "title", "x", "main", "text")
	send("POST", "/", contentType, body).want(t, 422, "must be a file")
}

// Trunk is embedded by pointer below.
type Trunk struct {
	ID   int    `json:"id" validate:"required"`
	Note string `json:"note"`
}

type holder struct {
	*Trunk
	Size int `json:"size"`
}

// TestDocumentOfAlternativesAndEmbeddedPointers demands no more than the handler: values that a handler accepts are
// valid by it.
func TestDocumentOfAlternativesAndEmbeddedPointers(t *testing.T) {
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{Title: "t"})
	type request struct {
		*Trunk
		Word  string `json:"word" validate:"eq=a|eq=b"`
		Mail  string `json:"mail" validate:"oneof=x y|email"`
		Comma string `json:"comma" validate:"oneof=0x2C 0x7C"`
		Any   any    `json:"any" validate:"required"`
		In    holder `json:"in"`
	}
	route.Handle(api, "POST /x", func(_ *route.Ctx, req request) (request, error) { return req, nil })
	send := func(body string, want int) {
		t.Helper()
		r := httptest.NewRequest("POST", "/x", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: %d %s, want %d", body, w.Code, w.Body, want)
		}
	}
	send(`{"word":"b","mail":"y","comma":"|","any":1,"in":{"size":1}}`, 201)
	send(`{"word":"b","mail":"y","comma":"|","any":null}`, 422)
	var doc map[string]any
	if err := json.Unmarshal(api.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	body := []string{"paths", "/x", "post", "requestBody", "content", "application/json", "schema"}
	for want, keys := range map[string][]string{
		`{"type":"string"}`: append(body, "properties", "word"), `{"not":{"type":"null"}}`: append(body, "properties", "any"),
		`{"enum":[",","|"],"type":"string"}`:                    append(body, "properties", "comma"),
		`["word","mail","comma","any"]`:                         append(body, "required"),
		`{"format":"int64","not":{"const":0},"type":"integer"}`: append(body, "properties", "id"),
		`["size"]`: {"components", "schemas", "holder", "required"},
	} {
		if got, err := json.Marshal(at(t, doc, keys...)); err != nil || string(got) != want {
			t.Errorf("%v is %s, want %s", keys, got, want)
		}
	}
	if text := string(api.OpenAPI()); strings.Contains(text, `"Trunk":{`) || strings.Contains(text, `"required":["id"]`) {
		t.Errorf("the members of an embedded pointer are those of the struct around it, and none is required: %s", text)
	}
}

// TestProblemsLeavesOtherAnswersToTheMux, such as the redirect to a clean path.
func TestProblemsLeavesOtherAnswersToTheMux(t *testing.T) {
	for _, target := range []string{"//nothing", "*"} {
		r, mux := httptest.NewRequest("OPTIONS", target, nil), http.NewServeMux()
		want, got := httptest.NewRecorder(), httptest.NewRecorder()
		mux.ServeHTTP(want, r)
		route.Problems(mux).ServeHTTP(got, r)
		if got.Code != want.Code || got.Header().Get("Location") != want.Header().Get("Location") || got.Body.String() != want.Body.String() {
			t.Errorf("%s: %d %v %s, want %d %v %s", target, got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
		}
	}
}
