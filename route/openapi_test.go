package route_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/route"
)

type tree struct {
	Name     string    `json:"name" validate:"required,min=1,max=10"`
	Kind     string    `json:"kind" default:"oak" validate:"oneof=oak fir"`
	Email    *string   `json:"email,omitempty" validate:"omitempty,email"`
	Heights  []float64 `json:"heights" validate:"max=3,unique,dive,gt=0"`
	Branches []*tree   `json:"branches"`
	Planted  time.Time `json:"planted"`
	Raw      []byte
	Any      any               `json:"any"`
	Labels   map[string]string `json:"labels"`
	Hidden   string            `json:"-"`
	Wait     time.Duration     `json:"wait" default:"1.5s"`
	Tags     []string          `json:"tags" validate:"required,min=1"`
}

type numbered struct {
	Number int           `json:"number,string"`
	Wait   time.Duration `json:"wait" form:"w" default:"1s"`
	Deep   map[string]int
}

func newAPI() (*route.API, *http.ServeMux) {
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{Title: "Trees", Version: "1.2.3", Description: "About trees.", Servers: []string{"/"}}, route.Errors(401))
	route.Handle(api, "POST /forests/{forest}/trees", func(_ *route.Ctx, req struct {
		Forest int `path:"forest" validate:"min=1"`
		tree
	}) (tree, error) {
		return req.tree, nil
	}, route.Summary("Plant a tree", "In a *forest*."), route.Tags("trees"), route.Errors(409))
	route.Handle(api, "GET /trees", func(_ *route.Ctx, req everySourceButPath) ([]tree, error) { return nil, nil })
	route.Handle(api, "GET /trees/{$}", func(*route.Ctx, struct{}) (map[string]tree, error) { return nil, nil }, route.OperationID("allTrees"))
	route.Handle(api, "DELETE /trees/{id}", func(_ *route.Ctx, req struct {
		ID string `path:"id"`
	}) (struct{}, error) {
		return struct{}{}, nil
	})
	route.Handle(api, "POST /avatar", func(*route.Ctx, avatar) (route.Stream, error) { return route.Stream{}, nil })
	route.Handle(api, "GET /watch", func(*route.Ctx, struct{}) (route.Events, error) { return nil, nil })
	route.Handle(api, "PUT /list", func(*route.Ctx, []tree) (int, error) { return 0, nil }, route.Codecs(route.XML))
	route.Handle(api, "POST /numbered", func(*route.Ctx, numbered) (numbered, error) { return numbered{}, nil })
	route.Handle(api, "PURGE /trees", func(*route.Ctx, struct{}) (int, error) { return 0, nil }) // OpenAPI cannot say it
	route.Handle(api, "GET /forests/{forest}/paths/{rest...}", func(*route.Ctx, struct{}) (int, error) { return 0, nil })
	route.Handle(api, "GET /secret", func(*route.Ctx, struct{}) (int, error) { return 0, nil }, route.Hidden())
	api.ServeDocs("/docs")
	return api, mux
}

type everySourceButPath struct {
	paging
	Wait   time.Duration `query:"wait" default:"2s"`
	Few    []int         `query:"few" validate:"max=3"`
	Maybe  *int          `query:"maybe" default:"5"`
	Tenant string        `header:"x-tenant" validate:"required"`
	Cookie string        `cookie:"c"`
}

// at returns the value at a path of keys in the document.
func at(t *testing.T, doc any, keys ...string) any {
	t.Helper()
	for _, k := range keys {
		m, ok := doc.(map[string]any)
		if !ok || m[k] == nil {
			t.Fatalf("the document has no %s in %v: %v", k, keys, doc)
		}
		doc = m[k]
	}
	return doc
}

func TestOpenAPI(t *testing.T) {
	api, _ := newAPI()
	var doc map[string]any
	if err := json.Unmarshal(api.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	want := func(want string, keys ...string) {
		t.Helper()
		got, err := json.Marshal(at(t, doc, keys...))
		if err != nil || string(got) != want {
			t.Errorf("%v is %s, want %s", keys, got, want)
		}
	}
	want(`"3.1.0"`, "openapi")
	want(`{"description":"About trees.","title":"Trees","version":"1.2.3"}`, "info")
	want(`[{"url":"/"}]`, "servers")
	// Responses have every member that encoding/json writes, and no rules.
	schema := []string{"components", "schemas", "tree"}
	property := func(name string) []string { return append(schema, "properties", name) }
	want(`["name","kind","heights","branches","planted","Raw","any","labels","wait","tags"]`, append(schema, "required")...)
	want(`{"type":"string"}`, property("name")...)
	want(`{"type":"string"}`, property("email")...)
	want(`{"items":{"format":"double","type":"number"},"type":["array","null"]}`, property("heights")...)
	want(`{"items":{"anyOf":[{"$ref":"#/components/schemas/tree"},{"type":"null"}]},"type":["array","null"]}`, property("branches")...)
	want(`{"format":"date-time","type":"string"}`, property("planted")...)
	want(`{"contentEncoding":"base64","format":"byte","type":["string","null"]}`, property("Raw")...)
	want(`{"additionalProperties":{"type":"string"},"type":["object","null"]}`, property("labels")...)
	want(`{"format":"int64","type":"integer"}`, property("wait")...)
	// Requests need fields without a valid zero value, and null leaves other fields unchanged.
	plantBody := []string{"paths", "/forests/{forest}/trees", "post", "requestBody", "content", "application/json", "schema"}
	want(`["name","tags"]`, append(plantBody, "required")...)
	body := func(name string) []string { return append(plantBody, "properties", name) }
	want(`{"maxLength":10,"minLength":1,"type":"string"}`, body("name")...)
	want(`{"default":"oak","enum":["oak","fir",null],"type":["string","null"]}`, body("kind")...)
	want(`{"format":"email","type":["string","null"]}`, body("email")...)
	want(`{"items":{"exclusiveMinimum":0,"format":"double","type":"number"},"maxItems":3,"type":["array","null"],"uniqueItems":true}`, body("heights")...)
	want(`{"format":"date-time","minLength":20,"type":["string","null"]}`, body("planted")...)
	want(`{"default":1500000000,"format":"int64","type":["integer","null"]}`, body("wait")...)
	want(`{"items":{"type":["string","null"]},"minItems":1,"type":"array"}`, body("tags")...)
	want("true", "paths", "/forests/{forest}/trees", "post", "requestBody", "required")
	plant := []string{"paths", "/forests/{forest}/trees", "post"}
	want(`"postForestsByForestTrees"`, append(plant, "operationId")...)
	want(`[{"in":"path","name":"forest","required":true,"schema":{"format":"int64","minimum":1,"type":"integer"}}]`, append(plant, "parameters")...)
	want(`{"$ref":"#/components/schemas/tree"}`, append(plant, "responses", "201", "content", "application/json", "schema")...)
	for _, status := range []string{"400", "401", "409", "413", "415", "422", "default"} {
		want(`{"$ref":"#/components/schemas/Problem"}`, append(plant, "responses", status, "content", "application/problem+json", "schema")...)
	}
	want(`[{"in":"query","name":"page","required":false,"schema":{"default":1,"format":"int64","minimum":1,"type":"integer"}},`+
		`{"in":"query","name":"size","required":false,"schema":{"default":20,"format":"int64","maximum":100,"type":"integer"}},`+
		`{"in":"query","name":"wait","required":false,"schema":{"default":"2s","type":"string"}},`+
		`{"in":"query","name":"few","required":false,"schema":{"items":{"format":"int64","type":"integer"},"maxItems":3,"type":"array"}},`+
		`{"in":"query","name":"maybe","required":false,"schema":{"default":5,"format":"int64","type":"integer"}},`+
		`{"in":"header","name":"X-Tenant","required":true,"schema":{"minLength":1,"type":"string"}},{"in":"cookie","name":"c","required":false,"schema":{"type":"string"}}]`,
		"paths", "/trees", "get", "parameters")
	want(`"allTrees"`, "paths", "/trees/", "get", "operationId")
	want(`{"description":"No Content"}`, "paths", "/trees/{id}", "delete", "responses", "204")
	want(`{"format":"binary","type":"string"}`, "paths", "/avatar", "post", "requestBody", "content", "multipart/form-data", "schema", "properties", "photo")
	at(t, doc, "paths", "/watch", "get", "responses", "200", "content", "text/event-stream")
	at(t, doc, "paths", "/list", "put", "responses", "200", "content", "application/xml")
	want(`[{"in":"path","name":"forest","required":true,"schema":{"type":"string"}},{"in":"path","name":"rest","required":true,"schema":{"type":"string"}}]`,
		"paths", "/forests/{forest}/paths/{rest}", "get", "parameters")
	want(`{"format":"int64","pattern":"^-?[0-9]+$","type":"string"}`, "components", "schemas", "numbered", "properties", "number")
	want(`{"number":{"format":"int64","type":"integer"},"w":{"default":"1s","type":"string"}}`, "paths", "/numbered", "post", "requestBody", "content", "application/x-www-form-urlencoded", "schema", "properties")
	if at(t, doc, "paths", "/trees").(map[string]any)["purge"] != nil {
		t.Error("OpenAPI 3.1 has no place for PURGE")
	}
	if at(t, doc, "paths").(map[string]any)["/secret"] != nil {
		t.Error("a hidden operation is shown")
	}
}

func TestDocsPage(t *testing.T) {
	api, mux := newAPI()
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, part := range map[string]string{"/docs": `src="docs/page.js"`, "/docs/page.js": "fetch(source)", "/docs/page.css": "main", "/docs/openapi.json": string(api.OpenAPI())} {
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(b), part) {
			t.Errorf("%s: %d, %v: %.200s", path, resp.StatusCode, err, b)
		}
	}
}

// Handlers may be registered while the API is served and described.
func TestRegistrationWhileServing(t *testing.T) {
	mux := http.NewServeMux()
	api := route.NewAPI(mux, route.Info{})
	api.ServeDocs("/docs")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 10 {
				pattern := fmt.Sprintf("POST /%d/%d/{forest}", g, i)
				route.Handle(api, pattern, func(_ *route.Ctx, req struct {
					Forest int `path:"forest"`
					tree
				}) (tree, error) {
					return req.tree, nil
				})
				path := fmt.Sprintf("/%d/%d/7", g, i)
				if w := request(mux, "POST", path, jsonType, `{"name":"x","tags":["y"]}`); w.Code != 201 {
					t.Errorf("%s: %d %s", path, w.Code, w.Body)
				}
				if w := request(mux, "GET", "/docs/openapi.json", "", ""); !strings.Contains(w.Body.String(), fmt.Sprintf("/%d/%d/{forest}", g, i)) {
					t.Errorf("%s is not described", pattern)
				}
			}
		})
	}
	wg.Wait()
}
