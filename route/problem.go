package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"unsafe"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/check"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

// Problem is an error for clients: problem details of RFC 9457.
type Problem struct {
	// Type is a URI that identifies the kind of problem; "" means about:blank, where the status identifies it.
	Type string `json:"type,omitempty"`
	// Title is the kind of the problem. The default is the text of the status.
	Title string `json:"title,omitempty"`
	// Status is the HTTP status. The default is 500.
	Status int `json:"status"`
	// Detail explains this occurrence.
	Detail string `json:"detail,omitempty"`
	// Instance is a URI of this occurrence.
	Instance string `json:"instance,omitempty"`
	// Errors are the values of the request that are wrong.
	Errors []FieldError `json:"errors,omitempty"`
	// Err is the cause, for errors.Is and the log. Clients do not see it.
	Err error `json:"-"`
}

// FieldError is one value that is wrong.
type FieldError struct {
	// Pointer is the value's place in the body, as the fragment of a URI: "#/items/0/name"; in a form it begins with
	// the name of the form's field. It is empty for values from elsewhere.
	Pointer string `json:"pointer,omitempty"`
	// In and Name locate a value that is not in the body: path, query, header, cookie or file.
	In   string `json:"in,omitempty"`
	Name string `json:"name,omitempty"`
	// Rule is the rule of the validate tag that failed, "" for a value of the wrong type.
	Rule string `json:"rule,omitempty"`
	// Detail says how the value must be.
	Detail string `json:"detail"`
}

// Errorf makes a problem from a status and a text for the client. The client also sees the texts of args. The errors of
// %w are kept as causes for errors.Is.
func Errorf(status int, format string, args ...any) *Problem {
	err := fmt.Errorf(format, args...)
	p := &Problem{Status: status, Detail: err.Error(), Err: errors.Unwrap(err)}
	if several, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // fmt.Errorf made it just now
		p.Err = errors.Join(several.Unwrap()...)
	}
	return p
}

// Error implements error.
func (p *Problem) Error() string {
	s := strconv.Itoa(p.Status) + " " + http.StatusText(p.Status)
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	for _, e := range p.Errors {
		s += "; " + strings.TrimSpace(e.Pointer+e.In+" "+e.Name) + " " + e.Detail
	}
	return s
}

// Unwrap returns the cause.
func (p *Problem) Unwrap() error { return p.Err }

// HTTPStatus returns the status.
func (p *Problem) HTTPStatus() int { return p.Status }

// internalDetail is all that a client gets of an internal error.
const internalDetail = "the server failed; its log says why"

// errNilProblem is the cause of a nil *Problem that a handler has returned in its error, which is then not nil.
var errNilProblem = errors.New("the handler returned a nil *Problem as its error: return nil instead")

// problem returns the problem that the client gets for an error.
func (e *Endpoint) problem(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok && p == nil {
		return &Problem{Status: http.StatusInternalServerError, Detail: internalDetail, Err: errNilProblem}
	}
	for _, f := range e.mapErrors {
		if p := f(err); p != nil {
			return p
		}
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if s, ok := errors.AsType[interface {
		error
		HTTPStatus() int
	}](err); ok {
		return &Problem{Status: s.HTTPStatus(), Detail: s.Error(), Err: err}
	}
	if s, ok := errors.AsType[interface {
		error
		StatusCode() int
	}](err); ok {
		return &Problem{Status: s.StatusCode(), Detail: s.Error(), Err: err}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return readProblem(err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Problem{Status: http.StatusServiceUnavailable, Detail: "the request took too long", Err: err}
	}
	return &Problem{Status: http.StatusInternalServerError, Detail: internalDetail, Err: err}
}

func (e *Endpoint) log() *slog.Logger {
	if e.logger != nil {
		return e.logger
	}
	return slog.Default()
}

var (
	problemPlan = jsonplan.Of(reflect.TypeFor[Problem]())
	problemType = []string{"application/problem+json"}
)

// fail logs and answers a problem.
func (x *exchange) fail(p *Problem) {
	if p.Status >= 500 || !finalStatus(p.Status) {
		cause, ctx := p.Err, x.r.Context()
		if cause == nil {
			cause = p
		}
		if !errors.Is(cause, context.Canceled) || ctx.Err() == nil {
			x.ep.log().ErrorContext(ctx, "route: a request failed", "route", x.ep.name(), "status", p.Status, "err", cause)
		}
	}
	x.send(p)
}

// send answers with a problem.
func (x *exchange) send(p *Problem) {
	out := *p
	if !finalStatus(out.Status) {
		out.Status = http.StatusInternalServerError
	}
	if out.Title == "" {
		out.Title = http.StatusText(out.Status)
	}
	var err error
	if x.out, err = problemPlan.Append(x.out[:0], unsafe.Pointer(&out)); err != nil {
		x.out = append(x.out[:0], "{}"...)
	}
	h := x.w.Header()
	delete(h, "Etag")
	delete(h, "Content-Encoding")
	delete(h, "Cache-Control")
	h["Content-Type"] = problemType
	h["X-Content-Type-Options"] = []string{"nosniff"}
	x.write(out.Status)
}

// invalid makes one problem from all violations found by binding and validation.
func (x *exchange) invalid() *Problem {
	p := &Problem{Status: http.StatusUnprocessableEntity}
	for _, b := range x.bad {
		e := FieldError{In: string(b.Field.Source), Name: b.Field.Name, Detail: b.Detail}
		if e.In == "body" {
			e = FieldError{Pointer: fragment(x.place("/" + escapePointer(b.Field.Name))), Detail: b.Detail}
		}
		p.Errors = append(p.Errors, e)
	}
	bound := len(p.Errors)
	for _, v := range x.found {
		e := FieldError{In: v.In, Rule: v.Rule, Detail: v.Detail}
		if e.In == "body" || e.In == "" {
			e.In, e.Pointer = "", fragment(x.place(v.Pointer))
		} else {
			name, _, _ := strings.Cut(strings.TrimPrefix(v.Pointer, "/"), "/") // elements of a list have the list's
			e.Name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
		}
		if !reported(p.Errors[:bound], e) {
			p.Errors = append(p.Errors, e)
		}
	}
	p.Detail = "a value is invalid"
	if n := len(p.Errors); n > 1 {
		p.Detail = strconv.Itoa(n) + " values are invalid"
	}
	if len(x.found) >= check.MaxViolations {
		p.Detail = "many values are invalid, among them these"
	}
	return p
}

// place returns the position of a value in the body; in a form it has the field's form name.
func (x *exchange) place(pointer string) string {
	if !x.named {
		return pointer
	}
	first, rest, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
	for i := range x.ep.bind.Fields {
		if f := &x.ep.bind.Fields[i]; f.Source == bind.Body && escapePointer(f.Name) == first {
			return strings.TrimSuffix("/"+escapePointer(f.Form)+"/"+rest, "/")
		}
	}
	return pointer
}

// reported reports whether a value is known to have the wrong type: further violations of its rules are left out.
func reported(errs []FieldError, e FieldError) bool {
	for _, o := range errs {
		if o.Pointer == e.Pointer && o.In == e.In && o.Name == e.Name {
			return true
		}
	}
	return false
}

func escapePointer(token string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(token)
}

// fragment writes a JSON pointer as the fragment of a URI, as in RFC 9457's example.
func fragment(pointer string) string {
	return "#" + (&url.URL{Fragment: pointer}).EscapedFragment()
}
