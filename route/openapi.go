package route

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/headpond/headpond/route/internal/bind"
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
	schemas := schema.New("#/components/schemas/")
	paths := object{}
	ids := map[string]int{}
	for _, e := range endpoints {
		if !slices.Contains(openMethods, e.method) {
			continue // OpenAPI 3.1 has no place for it
		}
		path := openPath(e.path)
		item, ok := paths[path].(object)
		if !ok {
			item = object{}
			paths[path] = item
		}
		op := e.describe(schemas)
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
	doc := object{"openapi": "3.1.0", "info": about, "paths": paths, "components": object{"schemas": schemas.Components()}}
	if len(info.Servers) > 0 {
		var servers []object
		for _, s := range info.Servers {
			servers = append(servers, object{"url": s})
		}
		doc["servers"] = servers
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("route: the OpenAPI document: %v", err)) // it is made of maps, slices, strings and numbers
	}
	return b
}

var openMethods = []string{
	http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodOptions, http.MethodHead, http.MethodPatch, http.MethodTrace,
}

// openPath writes the path of a pattern as OpenAPI does.
func openPath(pattern string) string {
	if i := strings.IndexByte(pattern, '/'); i > 0 {
		pattern = pattern[i:] // what is in front is a host
	}
	return strings.ReplaceAll(strings.ReplaceAll(pattern, "{$}", ""), "...}", "}")
}

// operationID makes a name of method and path: getUsersById.
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
	op := object{"responses": e.describeResponses(schemas)}
	if e.doc.summary != "" {
		op["summary"] = e.doc.summary
	}
	if e.doc.description != "" {
		op["description"] = e.doc.description
	}
	if len(e.doc.tags) > 0 {
		op["tags"] = e.doc.tags
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

// describeParameters makes what comes from elsewhere than the body.
func (e *Endpoint) describeParameters(schemas *schema.Set) (parameters []object) {
	declared := map[string]bool{}
	if e.bind != nil {
		for i := range e.bind.Fields {
			f := &e.bind.Fields[i]
			switch f.Source {
			case bind.Path, bind.Query, bind.Header, bind.Cookie:
				declared[f.Name] = declared[f.Name] || f.Source == bind.Path
				parameters = append(parameters, object{
					"name": f.Name, "in": string(f.Source), "schema": textSchema(schemas, f),
					"required": f.Source == bind.Path || schema.Required(f.Struct) && !f.HasDefault,
				})
			}
		}
	}
	for _, found := range wildcard.FindAllStringSubmatch(e.path, -1) {
		if name := found[1]; !declared[name] { // the handler does not ask for it, but OpenAPI does
			parameters = append(parameters, object{"name": name, "in": "path", "schema": object{"type": "string"}, "required": true})
		}
	}
	return parameters
}

// textSchema is the schema of a field that is made of texts.
func textSchema(schemas *schema.Set, f *bind.Field) object {
	s := schema.NotNull(schemas.Field(f.Struct))
	if t := f.Struct.Type; t == reflect.TypeFor[time.Duration]() || t == reflect.TypeFor[*time.Duration]() { // a number in JSON, 1m30s here
		if s = (object{"type": "string"}); f.HasDefault {
			s["default"] = f.Default
		}
	}
	return s
}

// describeBody makes the body of an operation, in each media type it may have.
func (e *Endpoint) describeBody(schemas *schema.Set) object {
	content := object{}
	if e.bind == nil {
		content[typeJSON] = object{"schema": schemas.Type(e.reqType)}
		return object{"content": content, "required": true}
	}
	fields := func(form bool, sources ...bind.Source) object {
		s := schema.Object()
		for i := range e.bind.Fields {
			f := &e.bind.Fields[i]
			switch {
			case !slices.Contains(sources, f.Source):
			case f.Source == bind.Stream:
				s.Set("files", object{"type": "array", "items": object{"type": "string", "format": "binary"}}, false)
			case f.Source == bind.File && f.Struct.Type.Kind() == reflect.Slice:
				s.Set(f.Name, object{"type": "array", "items": object{"type": "string", "format": "binary"}}, schema.Required(f.Struct))
			case f.Source == bind.File:
				s.Set(f.Name, object{"type": "string", "format": "binary"}, schema.Required(f.Struct))
			case form && f.Text():
				s.Set(f.Form, textSchema(schemas, f), schema.Required(f.Struct) && !f.HasDefault)
			case !form && f.Struct.Tag.Get("json") != "-":
				s.Set(f.Name, schemas.Field(f.Struct), schema.Required(f.Struct) && !f.HasDefault)
			}
		}
		return s.JSON()
	}
	if e.bind.Has(bind.Body) {
		content[typeJSON] = object{"schema": fields(false, bind.Body)}
		content[typeForm] = object{"schema": fields(true, bind.Body)}
		for _, c := range e.codecs {
			if c.Unmarshal != nil {
				content[c.mediaType] = object{"schema": fields(false, bind.Body)}
			}
		}
	}
	if e.bind.Has(bind.File) || e.bind.Has(bind.Stream) {
		content[typeMultipart] = object{"schema": fields(true, bind.Body, bind.File, bind.Stream)}
		delete(content, typeForm)
	}
	return object{"content": content}
}

// describeResponses makes the responses of an operation.
func (e *Endpoint) describeResponses(schemas *schema.Set) object {
	ok := object{"description": http.StatusText(e.status)}
	binary := object{"schema": object{"type": "string", "format": "binary"}}
	switch e.respType {
	case reflect.TypeFor[struct{}]():
	case reflect.TypeFor[Stream](), reflect.TypeFor[File]():
		ok["content"] = object{"*/*": binary}
	case reflect.TypeFor[Events]():
		ok["content"] = object{"text/event-stream": object{"schema": object{"type": "string"}}}
	default:
		content := object{}
		for _, mediaType := range e.offered() {
			content[mediaType] = object{"schema": schemas.Type(e.respType)}
		}
		ok["content"] = content
	}
	problem := func(status int) object {
		return object{
			"description": http.StatusText(status),
			"content":     object{"application/problem+json": object{"schema": schemas.Type(reflect.TypeFor[Problem]())}},
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
