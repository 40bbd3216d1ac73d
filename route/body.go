package route

import (
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

const (
	typeJSON      = "application/json"
	typeForm      = "application/x-www-form-urlencoded"
	typeMultipart = "multipart/form-data"
)

// bindRequest fills and validates the request value. It returns the request's problem, or nil.
func (x *exchange) bindRequest(path PathValuer) *Problem {
	e := x.ep
	if b := e.bind; b != nil {
		b.Defaults(x.req)
		if e.hasPath {
			x.bad = b.Path(path, x.req, x.bad)
		}
		if x.r.URL.RawQuery != "" {
			var err error
			if x.bad, err = b.Query(x.r.URL.RawQuery, x.req, x.bad); err != nil {
				return &Problem{Status: http.StatusBadRequest, Detail: "the query is malformed: " + err.Error()}
			}
		}
		if e.hasHead {
			x.bad = b.Headers(x.r, x.req, x.bad)
		}
	}
	if e.hasBody {
		if p := x.bindBody(); p != nil {
			return p
		}
	}
	if e.check != nil {
		x.found = e.check.Check(x.req, x.found)
	}
	if len(x.bad) > 0 || len(x.found) > 0 {
		return x.invalid()
	}
	return nil
}

// bindBody fills the fields from the body, by its media type.
func (x *exchange) bindBody() *Problem {
	e := x.ep
	if e.bodyTimeout > 0 {
		control := http.NewResponseController(x.w)
		if control.SetReadDeadline(time.Now().Add(e.bodyTimeout)) == nil {
			defer func() { _ = control.SetReadDeadline(x.readDeadline()) }() // the next read reports an error
		}
	}
	mediaType, params, p := x.mediaType()
	if p != nil || mediaType == "" {
		return p
	}
	if mediaType == typeMultipart && e.takesMultipart {
		x.named = true
		return x.bindMultipart(params["boundary"])
	}
	codec := e.reader(mediaType)
	isForm := mediaType == typeForm && e.takesForm
	isJSON := mediaType == typeJSON || strings.HasPrefix(mediaType, "application/") && strings.HasSuffix(mediaType, "+json")
	if !isForm && (codec == nil && !isJSON || !e.takesJSON) {
		return e.unsupported("")
	}
	if p := x.readBody(); p != nil {
		return p
	}
	x.named = isForm
	switch {
	case len(x.in) == 0 && isForm && x.r.PostForm != nil: // middleware has read it
		return x.bindValues(x.r.PostForm)
	case len(x.in) == 0 && e.bind == nil:
		return &Problem{Status: http.StatusBadRequest, Detail: "the body is empty"}
	case len(x.in) == 0:
	case codec != nil:
		if err := x.unmarshal(codec); err != nil {
			return &Problem{Status: http.StatusBadRequest, Detail: "the body is malformed: " + err.Error(), Err: err}
		}
	case isForm:
		var err error
		if x.bad, err = e.bind.Form(x.in, e.maxFields, x.req, x.bad); err != nil {
			return formProblem(err)
		}
	default:
		if err := x.decoder.Decode(e.decode, x.in, x.req); err != nil {
			return jsonProblem(err)
		}
	}
	return nil
}

// mediaType returns the media type of the body and its parameters, "" if there is no body and none is needed. A body
// needs a media type for safety: browsers send requests of other sites without a preflight only if they have no
// Content-Type, or one of the types that a request type must permit by form and file tags.
func (x *exchange) mediaType() (string, map[string]string, *Problem) {
	e := x.ep
	if c := x.r.Header["Content-Encoding"]; len(c) > 0 && c[0] != "" && !strings.EqualFold(c[0], "identity") {
		return "", nil, &Problem{Status: http.StatusUnsupportedMediaType, Detail: "the body has the Content-Encoding " + c[0] + "; send it without"}
	}
	var text string
	if ct := x.r.Header["Content-Type"]; len(ct) > 0 {
		text = ct[0]
	}
	switch {
	case text == typeJSON, text == typeForm:
		return text, nil, nil
	case text != "":
		mediaType, params, err := mime.ParseMediaType(text)
		if err != nil {
			return "", nil, &Problem{Status: http.StatusUnsupportedMediaType, Detail: "the Content-Type is malformed"}
		}
		return mediaType, params, nil
	case e.assumeJSON && e.takesJSON:
		return typeJSON, nil, nil
	case x.r.ContentLength == 0 && !e.needsBody:
		return "", nil, nil
	case x.r.ContentLength == 0:
		return "", nil, e.unsupported("the body is missing; ")
	}
	return "", nil, e.unsupported("the body has no Content-Type; ")
}

// unsupported refuses a body because of its media type.
func (e *Endpoint) unsupported(why string) *Problem {
	return &Problem{Status: http.StatusUnsupportedMediaType, Detail: why + "the body can be " + e.bodyTypes()}
}

// readDeadline is the deadline of reading once the body has been bound: none, except for files that are still to be read,
// which have the server's own.
func (x *exchange) readDeadline() time.Time {
	server, ok := x.r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok || server.ReadTimeout <= 0 || x.ep.bind == nil || !x.ep.bind.Has(bind.Stream) {
		return time.Time{}
	}
	return time.Now().Add(server.ReadTimeout)
}

// unmarshal decodes the body by a codec, which knows nothing of sources: into a second value, of which only the fields
// that come from the body are used.
func (x *exchange) unmarshal(codec *codec) error {
	e := x.ep
	if e.bind == nil {
		return codec.Unmarshal(x.in, x.request())
	}
	to := reflect.NewAt(e.reqType, x.req).Elem()
	v := reflect.New(e.reqType)
	v.Elem().Set(to)
	if err := codec.Unmarshal(x.in, v.Interface()); err != nil {
		return err
	}
	for i := range e.bind.Fields {
		if f := &e.bind.Fields[i]; f.Source == bind.Body && f.JSON {
			to.FieldByIndex(f.Index).Set(v.Elem().FieldByIndex(f.Index))
		}
	}
	return nil
}

func formProblem(err error) *Problem {
	if errors.Is(err, bind.ErrPairs) {
		return &Problem{Status: http.StatusRequestEntityTooLarge, Detail: "the form has too many fields", Err: err}
	}
	return &Problem{Status: http.StatusBadRequest, Detail: "the form is malformed: " + err.Error(), Err: err}
}

func jsonProblem(err error) *Problem {
	p := &Problem{Status: http.StatusBadRequest, Detail: "the JSON cannot be read", Err: err}
	if j, ok := errors.AsType[*jsonplan.Error](err); ok {
		p.Errors = []FieldError{{Pointer: fragment(j.Pointer), Detail: j.Reason}}
	}
	return p
}

// minRead is the initial buffer for a body of unknown length: more than most requests have.
const minRead = 1024

// readBody reads the whole body into x.in.
func (x *exchange) readBody() *Problem {
	e, r := x.ep, x.r
	x.in = x.in[:0]
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > e.maxBody {
		return x.tooLarge()
	}
	// One more byte than the body, to read the end in one go; but no more than is kept, because the length is only
	// claimed.
	if need := int(min(max(minRead, r.ContentLength+1), maxKeptBuffer)); cap(x.in) < need {
		x.in = make([]byte, 0, need)
	}
	for {
		if len(x.in) == cap(x.in) {
			x.in = slices.Grow(x.in, len(x.in))
		}
		n, err := r.Body.Read(x.in[len(x.in):cap(x.in)])
		x.in = x.in[:len(x.in)+n]
		if int64(len(x.in)) > e.maxBody {
			return x.tooLarge()
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return readProblem(err)
		}
	}
}

// tooLarge refuses a body, and has net/http close the connection instead of reading the rest. It does not wait for the
// body: with Expect: 100-continue none of it has been sent.
func (x *exchange) tooLarge() *Problem {
	if x.r.ProtoMajor == 1 {
		x.w.Header()["Connection"] = []string{"close"}
	}
	return &Problem{Status: http.StatusRequestEntityTooLarge, Detail: "the body is too large"}
}

// readProblem is the answer to a client whose body could not be read.
func readProblem(err error) *Problem {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &Problem{Status: http.StatusRequestEntityTooLarge, Detail: "the body is too large", Err: err}
	}
	if errors.Is(err, multipart.ErrMessageTooLarge) {
		return &Problem{Status: http.StatusRequestEntityTooLarge, Detail: "the form is too large", Err: err}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &Problem{Status: http.StatusRequestTimeout, Detail: "the body took too long to arrive", Err: err}
	}
	return &Problem{Status: http.StatusBadRequest, Detail: "the body could not be read to its end", Err: err}
}
