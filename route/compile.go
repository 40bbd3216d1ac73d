package route

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/check"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

// compile makes the plans of an endpoint. Its errors name the field and the reason.
func (e *Endpoint) compile() error {
	for _, t := range []reflect.Type{e.reqType, e.respType} {
		if err := refuseEndless(t); err != nil {
			return err
		}
	}
	if found := jsonplan.Impossible(e.respType); found != nil && !ownAnswer(e.respType) {
		return fmt.Errorf("the response type %v cannot be encoded: it holds a %v", e.respType, found)
	}
	if e.status != 0 && !finalStatus(e.status) {
		return fmt.Errorf("%d is not the status of a response", e.status)
	}
	if err := e.compileRequest(); err != nil {
		return err
	}
	e.compileResponse()
	return nil
}

func refuseEndless(t reflect.Type) error {
	if found := endless(t, map[reflect.Type]bool{}); found != nil {
		return fmt.Errorf("%v holds a %v, which is a pointer to nothing but itself", t, found)
	}
	return nil
}

// endless returns a type within t that is a pointer to itself, directly or through pointers, as type P *P is; nil = none.
// Neither binding nor encoding would end.
func endless(t reflect.Type, seen map[reflect.Type]bool) reflect.Type {
	chain := map[reflect.Type]bool{}
	for t.Kind() == reflect.Pointer {
		if chain[t] {
			return t
		}
		chain[t] = true
		t = t.Elem()
	}
	if seen[t] {
		return nil
	}
	seen[t] = true
	switch t.Kind() {
	case reflect.Map:
		if found := endless(t.Key(), seen); found != nil {
			return found
		}
		return endless(t.Elem(), seen)
	case reflect.Slice, reflect.Array:
		return endless(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if sf := t.Field(i); sf.IsExported() || sf.Anonymous {
				if found := endless(sf.Type, seen); found != nil {
					return found
				}
			}
		}
	}
	return nil
}

// ownAnswer reports whether a response type has its own way of answering, other than encoding.
func ownAnswer(t reflect.Type) bool {
	return t == reflect.TypeFor[Stream]() || t == reflect.TypeFor[File]() || t == reflect.TypeFor[Events]()
}

func (e *Endpoint) compileRequest() (err error) {
	t := e.reqType
	switch t.Kind() {
	case reflect.Struct:
		if e.bind, err = bind.Compile(t, reflect.TypeFor[Files]()); err != nil {
			return err
		}
		e.hasPath = e.bind.Has(bind.Path)
		e.hasHead = e.bind.Has(bind.Header) || e.bind.Has(bind.Cookie)
		e.hasFiles = e.bind.Has(bind.File) || e.bind.Has(bind.Stream)
		e.chooseBodies()
		if err := e.checkFields(); err != nil {
			return err
		}
		if !jsonplan.DecodesItself(t) {
			e.decode = jsonplan.OfFields(t, isBodyField)
		}
		if e.decode == nil {
			if slices.ContainsFunc(e.bind.Fields, func(f bind.Field) bool { return f.Source != bind.Body || !f.JSON }) && e.takesJSON {
				return fmt.Errorf("%v has a method that decodes it, or json tags that only encoding/json knows (string, inline, a name twice, an embedded pointer), beside fields that are not from the body: put the body's fields into a struct of their own", t)
			}
			e.decode = jsonplan.Of(t)
		}
	case reflect.Slice, reflect.Map:
		e.decode, e.hasBody, e.takesJSON, e.needsBody = jsonplan.Of(t), true, true, true
	default:
		return fmt.Errorf("the request type %v is neither a struct nor a slice or map", t)
	}
	if e.hasBody && (e.method == http.MethodGet || e.method == http.MethodHead) {
		return fmt.Errorf("%v has fields from the body, which %s has none of: give them a query, path, header or cookie tag", t, e.method)
	}
	e.check, err = check.Compile(t, nameField, e.rules)
	if err == nil && e.check.Idle() {
		e.check = nil
	}
	return err
}

// chooseBodies finds the possible kinds of body: those that can fill every field that a valid request needs.
func (e *Endpoint) chooseBodies() {
	e.takesMultipart, e.takesForm, e.takesJSON = e.bind.TakesForm(), e.bind.TakesForm(), e.bind.TakesJSON()
	for i := range e.bind.Fields {
		f := &e.bind.Fields[i]
		if f.Source != bind.Body && f.Source != bind.File || !e.required(f) {
			continue
		}
		e.needsBody = true
		inForm := f.Source == bind.File || f.Text() && f.Form != ""
		e.takesMultipart = e.takesMultipart && inForm
		e.takesForm = e.takesForm && inForm && f.Source == bind.Body
		e.takesJSON = e.takesJSON && f.JSON
	}
	e.hasBody = e.takesMultipart || e.takesJSON
}

// checkFields compares the fields with the pattern.
func (e *Endpoint) checkFields() error {
	for i := range e.bind.Fields {
		f := &e.bind.Fields[i]
		if f.Source == bind.Path && e.path != "" && !strings.Contains(e.path, "{"+f.Name+"}") && !strings.Contains(e.path, "{"+f.Name+"...}") {
			return fmt.Errorf("field %s of %v comes from the path, and %q has no {%s}", f.Struct.Name, e.reqType, e.path, f.Name)
		}
		if found := jsonplan.Impossible(f.Struct.Type); f.Source == bind.Body && found != nil {
			return fmt.Errorf("field %s of %v cannot be filled: it holds a %v", f.Struct.Name, e.reqType, found)
		}
	}
	if e.bind.Has(bind.File) && e.bind.Has(bind.Stream) {
		return errors.New("files are both streamed and kept: take one of Files and file tags")
	}
	return nil
}

// isBodyField reports whether JSON may fill a field.
func isBodyField(sf reflect.StructField) bool {
	if sf.Type == reflect.TypeFor[Files]() {
		return false
	}
	for _, tag := range []bind.Source{bind.Path, bind.Query, bind.Header, bind.Cookie, bind.File} {
		if _, ok := sf.Tag.Lookup(string(tag)); ok {
			return false
		}
	}
	return bind.InJSON(sf)
}

// nameField returns the name of a field in violations of its rules.
func nameField(sf reflect.StructField) (in, name string) {
	for _, tag := range []bind.Source{bind.Path, bind.Query, bind.Header, bind.Cookie, bind.File} {
		if name, ok := sf.Tag.Lookup(string(tag)); ok {
			if tag == bind.Header {
				name = http.CanonicalHeaderKey(name)
			}
			return string(tag), name
		}
	}
	if name, _, _ := strings.Cut(sf.Tag.Get("json"), ","); name != "" && name != "-" {
		return string(bind.Body), name
	}
	if name, _, _ := strings.Cut(sf.Tag.Get("form"), ","); name != "" && name != "-" {
		return string(bind.Body), name
	}
	return string(bind.Body), sf.Name
}

// withStatus is a response that knows its status.
type withStatus interface{ HTTPStatus() int }

func (e *Endpoint) compileResponse() {
	t := e.respType
	if reflect.PointerTo(t).Implements(reflect.TypeFor[withStatus]()) {
		e.statusOf = func(x *exchange) int { return reflect.NewAt(t, x.resp).Interface().(withStatus).HTTPStatus() }
	} else if t.Kind() == reflect.Pointer && t.Implements(reflect.TypeFor[withStatus]()) {
		e.statusOf = func(x *exchange) int {
			if v := reflect.NewAt(t, x.resp).Elem(); !v.IsNil() {
				return v.Interface().(withStatus).HTTPStatus()
			}
			return 0
		}
	}
	known := e.status != 0
	if !known {
		e.status = http.StatusOK
		if e.method == http.MethodPost {
			e.status = http.StatusCreated
		}
	}
	switch t {
	case reflect.TypeFor[struct{}]():
		if !known {
			e.status = http.StatusNoContent
		}
		e.answer = func(x *exchange) { x.writeHeader(x.statusCode()) }
		return
	case reflect.TypeFor[Stream]():
		e.answer = func(x *exchange) { x.stream((*Stream)(x.resp)) }
	case reflect.TypeFor[File]():
		e.answer = func(x *exchange) { x.file((*File)(x.resp)) }
	case reflect.TypeFor[Events]():
		e.answer = func(x *exchange) { x.events(*(*Events)(x.resp)) }
	}
	if e.answer != nil {
		if !known {
			e.status = http.StatusOK
		}
		return
	}
	e.encode, e.created = jsonplan.Of(t), !known && e.method == ""
}
