package route

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

// Client is the settings of Call. It is safe for concurrent use, and must not be changed meanwhile.
type Client struct {
	// BaseURL is prepended to the paths, for example "http://127.0.0.1:8080".
	BaseURL string
	// HTTP sends the requests; the default is http.DefaultClient.
	HTTP *http.Client
	// Header is sent with every request.
	Header http.Header
	// MaxResponse bounds a response that is one value, in bytes; the default is 32 MiB.
	MaxResponse int64
}

const (
	defaultMaxResponse = 32 << 20
	// maxErrorText bounds the text that an error keeps of a response that is not a problem.
	maxErrorText = 512
)

// ErrResponseTooLarge means that a response is longer than Client.MaxResponse.
var ErrResponseTooLarge = errors.New("route: the response is too large")

// Call sends req to the handler of pattern, for example "POST /users/{id}", and returns its response. It is the client
// of Handle, with the same types. Fields are sent where their tags say. Zero values are left out of query, headers,
// cookies and forms, so that defaults apply: use a pointer if zero is a value. The body is JSON. It is a multipart form
// if the type has files (see [FileOf] and [FilesOf]), which are sent last, or fields that only forms fill.
//
// For a response with a status of 300 or more, except redirects that the http.Client follows, the error is a *Problem
// (use errors.As) with all details of a handler of Handle. A handler that returns this error unchanged answers with the
// same status, so map errors that its own client must not see. If Resp is Stream, Body is the response, and the caller
// must close it (it is an io.Closer); use Stream also for handlers that return a File or Events. ctx bounds the call
// and the reading of a Stream.
func Call[Req, Resp any](ctx context.Context, c *Client, pattern string, req Req) (Resp, error) {
	var resp Resp
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		return resp, fmt.Errorf("route: the pattern %q has no method", pattern)
	}
	switch any(&resp).(type) {
	case *File, *Events:
		return resp, fmt.Errorf("route: %s: a response that is no value is read as a Stream, not as %T", pattern, resp)
	}
	r, err := c.request(ctx, method, strings.TrimSpace(path), reflect.ValueOf(&req).Elem())
	if err != nil {
		return resp, fmt.Errorf("route: %s: %w", pattern, err)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	answer, err := client.Do(r)
	if err != nil {
		return resp, fmt.Errorf("route: %s: %w", pattern, err)
	}
	if s, ok := any(&resp).(*Stream); ok && answer.StatusCode < 300 {
		*s = Stream{ContentType: answer.Header.Get("Content-Type"), Body: answer.Body, Size: max(answer.ContentLength, 0)}
		return resp, nil
	}
	defer answer.Body.Close()
	if err := c.receive(answer, &resp); err != nil {
		return resp, fmt.Errorf("route: %s: %w", pattern, err)
	}
	return resp, nil
}

// receive reads a response into a value.
func (c *Client) receive(answer *http.Response, to any) error {
	limit := c.MaxResponse
	if limit <= 0 {
		limit = defaultMaxResponse
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the response: %w", err)
	case int64(len(body)) > limit:
		return ErrResponseTooLarge
	case answer.StatusCode >= 300:
		return problemOf(answer, body)
	case len(body) == 0:
		return nil
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("the response is not as expected: %w", err)
	}
	return nil
}

// problemOf makes a problem of a response.
func problemOf(answer *http.Response, body []byte) *Problem {
	p := &Problem{}
	mediaType, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	if mediaType != "application/problem+json" || json.Unmarshal(body, p) != nil {
		p = &Problem{Title: http.StatusText(answer.StatusCode), Detail: strings.ToValidUTF8(string(body[:min(len(body), maxErrorText)]), "")}
	}
	p.Status = answer.StatusCode
	return p
}

// clientPlan is how requests of one type are sent.
type clientPlan struct {
	bind *bind.Plan     // nil: the request is the body
	body *jsonplan.Plan // nil: there is none, or it is a form
	form bool           // the request is a multipart form
	err  error
}

var clientPlans sync.Map // reflect.Type → *clientPlan

func clientPlanOf(t reflect.Type) *clientPlan {
	if p, ok := clientPlans.Load(t); ok {
		return p.(*clientPlan)
	}
	p := &clientPlan{err: refuseEndless(t)}
	if p.err != nil {
		return p
	}
	if t.Kind() != reflect.Struct {
		p.body = jsonplan.Of(t)
	} else if p.bind, p.err = bind.Compile(t, reflect.TypeFor[Files]()); p.err == nil {
		switch {
		case p.bind.TakesForm() && (p.bind.Has(bind.File) || p.bind.Has(bind.Stream) || !p.bind.AllJSON()):
			p.form = true
		case p.bind.Has(bind.Body):
			if !jsonplan.EncodesItself(t) {
				p.body = jsonplan.OfFields(t, isBodyField)
			}
			if p.body == nil {
				p.body = jsonplan.Of(t) // Handle refuses such a type unless all of it is the body
			}
		}
	}
	clientPlans.Store(t, p)
	return p
}

// request makes the HTTP request of a request value.
func (c *Client) request(ctx context.Context, method, path string, req reflect.Value) (*http.Request, error) {
	p := clientPlanOf(req.Type())
	if p.err != nil {
		return nil, p.err
	}
	path = plainPath(path)
	if i := strings.IndexByte(path, '/'); i > 0 {
		path = path[i:] // a host is in front, for the server's mux
	}
	header, query := http.Header{}, url.Values{}
	for k, v := range c.Header {
		header[k] = v
	}
	if p.bind != nil {
		for i := range p.bind.Fields {
			var err error
			if path, err = place(&p.bind.Fields[i], req, path, query, header); err != nil {
				return nil, err
			}
		}
	}
	if left := wildcard.FindString(path); left != "" {
		return nil, fmt.Errorf("%v has no field for %s of the path", req.Type(), left)
	}
	target := strings.TrimSuffix(c.BaseURL, "/") + strings.ReplaceAll(path, "{$}", "")
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	if header["Accept"] == nil {
		header["Accept"] = []string{"application/json, */*;q=0.1"}
	}
	r, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, err
	}
	r.Header = header
	return r, p.setBody(r, req)
}

// setBody gives a request its body.
func (p *clientPlan) setBody(r *http.Request, req reflect.Value) error {
	switch {
	case p.form:
		form, err := multipartOf(p.bind, req)
		if err != nil {
			return err
		}
		r.Body, r.ContentLength = form.reader(), form.size
		r.Header["Content-Type"] = []string{form.writer.FormDataContentType()}
	case p.body != nil:
		b, err := p.body.Append(nil, req.Addr().UnsafePointer())
		if err != nil {
			return fmt.Errorf("encoding the request: %w", err)
		}
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
		r.Body, _ = r.GetBody()
		r.ContentLength = int64(len(b))
		r.Header["Content-Type"] = jsonType
	}
	return nil
}

// place puts the value of a field into the request. It returns the path, changed if the value is part of it.
func place(f *bind.Field, req reflect.Value, path string, query url.Values, header http.Header) (string, error) {
	v := req.FieldByIndex(f.Index)
	switch f.Source {
	case bind.Body, bind.File, bind.Stream:
		return path, nil
	case bind.Query, bind.Header, bind.Cookie:
		if v.IsZero() {
			return path, nil
		}
	}
	texts, err := textsOf(v)
	if err != nil {
		return path, fmt.Errorf("field %s: %w", f.Struct.Name, err)
	}
	if len(texts) == 0 && f.Source != bind.Path {
		return path, nil // a list without elements, or a pointer to nil
	}
	switch f.Source {
	case bind.Path:
		return placeInPath(f, path, strings.Join(texts, ""))
	case bind.Query:
		query[f.Name] = append(query[f.Name], texts...)
	case bind.Header:
		header[f.Name] = texts
	case bind.Cookie:
		c := &http.Cookie{Name: f.Name, Value: texts[0], Quoted: strings.ContainsAny(texts[0], " ,")} //nolint:gosec // a client sends no attributes
		if err := c.Valid(); err != nil {
			return path, fmt.Errorf("field %s: %w", f.Struct.Name, err)
		}
		cookie := c.String()
		if old := header.Get("Cookie"); old != "" {
			cookie = old + "; " + cookie
		}
		header.Set("Cookie", cookie)
	}
	return path, nil
}

// placeInPath puts a value in the place of a wildcard.
func placeInPath(f *bind.Field, path, text string) (string, error) {
	wildcard, segments := "{"+f.Name+"...}", strings.Split(text, "/")
	if !strings.Contains(path, wildcard) {
		if wildcard, segments = "{"+f.Name+"}", []string{text}; text == "" {
			return path, fmt.Errorf("field %s: the path needs a value", f.Struct.Name)
		}
	}
	for i, s := range segments {
		if s == "." || s == ".." {
			return path, fmt.Errorf("field %s: %q in a path means another path", f.Struct.Name, s)
		}
		segments[i] = url.PathEscape(s)
	}
	return strings.ReplaceAll(path, wildcard, strings.Join(segments, "/")), nil
}

// textsOf writes a value as texts that binding reads: one, or one for each element of a slice.
func textsOf(v reflect.Value) ([]string, error) {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil, nil
		}
		v = v.Elem()
	}
	value := v.Interface()
	if _, ok := value.(encoding.TextMarshaler); !ok && v.CanAddr() {
		if m, ok := v.Addr().Interface().(encoding.TextMarshaler); ok {
			value = m
		}
	}
	switch x := value.(type) {
	case time.Time:
		return []string{x.Format(time.RFC3339Nano)}, nil
	case time.Duration:
		return []string{x.String()}, nil
	case encoding.TextMarshaler:
		b, err := x.MarshalText()
		return []string{string(b)}, err
	}
	if v.Kind() != reflect.Slice {
		return []string{fmt.Sprint(v.Interface())}, nil
	}
	var texts []string
	for i := range v.Len() {
		t, err := textsOf(v.Index(i))
		if err != nil {
			return nil, err
		}
		texts = append(texts, t...)
	}
	return texts, nil
}
