package route

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/check"
	"github.com/headpond/headpond/route/internal/schema"
)

// object is an object of the OpenAPI document.
type object = map[string]any

// describe makes the OpenAPI document of endpoints.
func describe(info Info, endpoints []*Endpoint) []byte {
	about := object{"title": info.Title, "version": info.Version}
	if info.Description != "" {
		about["description"] = info.Description
	}
	endpoints = slices.DeleteFunc(slices.Clone(endpoints), func(e *Endpoint) bool {
		return !slices.Contains(openMethods, e.method) // OpenAPI 3.1 cannot describe it
	})
	rules := map[string]check.Rule{}
	for _, e := range endpoints {
		maps.Copy(rules, e.rules)
	}
	schemas := schema.New("#/components/schemas/", rules)
	responses := make([]object, len(endpoints))
	for i, e := range endpoints {
		responses[i] = e.describeResponses(schemas)
	}
	paths := object{}
	ids := map[string]int{}
	for i, e := range endpoints {
		path := openPath(e.path)
		item, ok := paths[path].(object)
		if !ok {
			item = object{}
			paths[path] = item
		}
		op := e.describe(schemas)
		op["responses"] = responses[i]
		id := e.doc.id
		if id == "" {
			id = operationID(e.method, path)
		}
		if ids[id]++; ids[id] > 1 {
			id += strconv.Itoa(ids[id])
		}
		op["operationId"] = id
		item[strings.ToLower(e.method)] = op
	}
	components := object{"schemas": schemas.Components()}
	if len(info.SecuritySchemes) > 0 {
		components["securitySchemes"] = info.SecuritySchemes
	}
	doc := object{"openapi": "3.1.0", "info": about, "paths": paths, "components": components}
	if len(info.Servers) > 0 {
		var servers []object
		for _, s := range info.Servers {
			servers = append(servers, object{"url": s})
		}
		doc["servers"] = servers
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("route: the OpenAPI document: %v", err)) // cannot happen: it consists of maps, slices, strings and numbers
	}
	return b
}

var openMethods = []string{
	http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodHead, http.MethodPatch, http.MethodTrace,
}

// openPath writes the path of a pattern as OpenAPI does.
func openPath(pattern string) string {
	if i := strings.IndexByte(pattern, '/'); i > 0 {
		pattern = pattern[i:] // a host is in front
	}
	return strings.ReplaceAll(strings.ReplaceAll(pattern, "{$}", ""), "...}", "}")
}

// operationID makes a name from method and path: getUsersById.
func operationID(method, path string) string {
	id := strings.ToLower(method)
	for word := range strings.FieldsFuncSeq(path, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '{' }) {
		if name, ok := strings.CutPrefix(word, "{"); ok {
			id, word = id+"By", name
		}
		if word != "" {
			id += strings.ToUpper(word[:1]) + word[1:]
		}
	}
	return id
}

// describe makes the operation of an endpoint.
func (e *Endpoint) describe(schemas *schema.Set) object {
	op := object{}
	if e.doc.summary != "" {
		op["summary"] = e.doc.summary
	}
	if e.doc.description != "" {
		op["description"] = e.doc.description
	}
	if len(e.doc.tags) > 0 {
		op["tags"] = e.doc.tags
	}
	if e.doc.security != nil {
		op["security"] = e.doc.security
	}
	parameters := e.describeParameters(schemas)
	if len(parameters) > 0 {
		op["parameters"] = parameters
	}
	if e.hasBody {
		op["requestBody"] = e.describeBody(schemas)
	}
	return op
}

var wildcard = regexp.MustCompile(`\{([^{}$.]+)(\.\.\.)?\}`)

// describeParameters describes the fields that do not come from the body.
func (e *Endpoint) describeParameters(schemas *schema.Set) (parameters []object) {
	declared := map[string]bool{}
	if e.bind != nil {
		for i := range e.bind.Fields {
			f := &e.bind.Fields[i]
			switch f.Source {
			case bind.Path, bind.Query, bind.Header, bind.Cookie:
				declared[f.Name] = declared[f.Name] || f.Source == bind.Path
				parameters = append(parameters, e.describeParameter(schemas, f))
			}
		}
	}
	for _, found := range wildcard.FindAllStringSubmatch(e.path, -1) {
		if name := found[1]; !declared[name] { // the handler does not read it, but OpenAPI requires it
			parameters = append(parameters, object{"name": name, "in": "path", "schema": object{"type": "string"}, "required": true})
		}
	}
	return parameters
}

// describeParameter makes the parameter of a field.
func (e *Endpoint) describeParameter(schemas *schema.Set, f *bind.Field) object {
	s := schemas.Field(e.reqType, e.field(f), schema.Text)
	if f.Source == bind.Path && s["type"] == "string" && s["minLength"] == nil {
		s["minLength"] = 1 // no pattern matches without it
	}
	p := object{"name": f.Name, "in": string(f.Source), "schema": s, "required": f.Source == bind.Path || e.required(f)}
	if text, ok := s["description"]; ok {
		delete(s, "description")
		p["description"] = text
	}
	return p
}

// field returns a field of the request type with the index it has there.
func (e *Endpoint) field(f *bind.Field) reflect.StructField {
	sf := f.Struct
	sf.Index = f.Index
	return sf
}

// required reports whether requests without a field are refused.
func (e *Endpoint) required(f *bind.Field) bool {
	return schema.Required(e.reqType, e.field(f), e.rules)
}

// describeBody describes the body of an operation in each possible media type.
func (e *Endpoint) describeBody(schemas *schema.Set) object {
	use := schema.Request
	if e.refuseUnknown {
		use = schema.StrictRequest
	}
	content := object{}
	for _, mediaType := range e.accepted() {
		var s object
		switch {
		case e.bind == nil:
			s = schemas.Type(e.reqType, use)
		case mediaType == typeForm:
			s = e.describeForm(schemas, bind.Body)
		case mediaType == typeMultipart:
			s = e.describeForm(schemas, bind.Body, bind.File, bind.Stream)
		default:
			s = e.describeJSON(schemas, use)
		}
		content[mediaType] = object{"schema": s}
	}
	body := object{"content": content}
	if e.needsBody {
		body["required"] = true
	}
	return body
}

// describeJSON makes the schema of the fields that JSON fills.
func (e *Endpoint) describeJSON(schemas *schema.Set, use schema.Use) object {
	s := schema.Object(use)
	for i := range e.bind.Fields {
		f := &e.bind.Fields[i]
		switch {
		case f.Source != bind.Body || !f.JSON:
		case f.Struct.Type.Kind() == reflect.Pointer && schema.Embedded(f.Struct):
			s.Embed(schemas, f.Struct.Type.Elem(), use)
		default:
			s.Set(f.Name, schemas.Field(e.reqType, e.field(f), use), e.required(f))
		}
	}
	if !e.needsBody {
		return schema.Nullable(s.JSON()) // as an empty object
	}
	return s.JSON()
}

// describeForm makes the schema of the fields of some sources in a form.
func (e *Endpoint) describeForm(schemas *schema.Set, sources ...bind.Source) object {
	s, file := schema.Object(schema.Request), object{"type": "string", "format": "binary"}
	files := func(others int) object {
		return object{"type": "array", "items": file, "maxItems": max(e.maxFiles-others, 0)}
	}
	for i := range e.bind.Fields {
		f := &e.bind.Fields[i]
		switch {
		case !slices.Contains(sources, f.Source):
		case f.Source == bind.Stream:
			s.Set("files", files(0), false)
		case f.Source == bind.File && f.Struct.Type.Kind() == reflect.Slice:
			s.Set(f.Name, files(e.bind.Count(bind.File)-1), e.required(f))
		case f.Source == bind.File:
			s.Set(f.Name, file, e.required(f))
		case f.Text() && f.Form != "":
			s.Set(f.Form, schemas.Field(e.reqType, e.field(f), schema.Text), e.required(f))
		}
	}
	return s.JSON()
}

// describeResponses makes the responses of an operation.
func (e *Endpoint) describeResponses(schemas *schema.Set) object {
	ok := object{"description": http.StatusText(e.status)}
	binary := object{"schema": object{"type": "string", "format": "binary"}}
	switch e.respType {
	case reflect.TypeFor[struct{}]():
	case reflect.TypeFor[Stream](), reflect.TypeFor[File]():
		content := object{}
		for _, mediaType := range e.doc.produces {
			content[mediaType] = binary
		}
		if len(content) == 0 {
			content["*/*"] = binary
		}
		ok["content"] = content
	case reflect.TypeFor[Events]():
		ok["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
	default:
		content := object{}
		for _, mediaType := range e.offered() {
			content[mediaType] = object{"schema": schemas.Type(e.respType, schema.Response)}
		}
		ok["content"] = content
	}
	problem := func(status int) object {
		return object{
			"description": http.StatusText(status),
			"content":     object{"application/problem+json": object{"schema": schemas.Type(reflect.TypeFor[Problem](), schema.Response)}},
		}
	}
	responses := object{strconv.Itoa(e.status): ok}
	statuses := slices.Clone(e.doc.errors)
	if e.hasBody {
		statuses = append(statuses, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	if e.check != nil || e.bind != nil && len(e.bind.Fields) > 0 {
		statuses = append(statuses, http.StatusUnprocessableEntity)
	}
	for _, s := range statuses {
		responses[strconv.Itoa(s)] = problem(s)
	}
	fallback := problem(http.StatusInternalServerError)
	fallback["description"] = "an error"
	responses["default"] = fallback
	return responses
}
