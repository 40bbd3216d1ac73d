package route

import (
	"fmt"
	"log/slog"
	"mime"
	"time"

	"github.com/headpond/headpond/route/internal/check"
)

const (
	// DefaultMaxBody is the default of MaxBody: far more than people type, and small enough for a
	// thousand requests at once.
	DefaultMaxBody = 1 << 20
	// DefaultMaxUpload is the default of MaxUpload.
	DefaultMaxUpload = 32 << 20
	// DefaultMaxDepth is the default of MaxDepth: deeper than documents people write.
	DefaultMaxDepth = 64
	// DefaultMaxFields is the default of MaxFields.
	DefaultMaxFields = 1000
	// DefaultMaxFiles is the default of MaxFiles.
	DefaultMaxFiles = 20

	// uploadMemory bounds the memory of a form with files; the remainder is stored in temporary
	// files.
	uploadMemory = 1 << 20
	// maxKeptBuffer bounds the buffers that return to the pool, so that one large body does not keep its memory
	// forever.
	maxKeptBuffer = 64 << 10
)

// Option changes a setting of a handler. The defaults suit most handlers.
type Option func(*settings)

// settings are the values of options.
type settings struct {
	status        int
	maxBody       int64
	maxUpload     int64
	maxDepth      int
	maxFields     int
	maxFiles      int
	bodyTimeout   time.Duration
	refuseUnknown bool
	assumeJSON    bool
	unpooled      bool
	etag          bool
	codecs        []codec
	rules         map[string]check.Rule
	mapErrors     []func(error) *Problem
	logger        *slog.Logger
	doc           doc
}

// doc is the OpenAPI description of an operation beyond its types.
type doc struct {
	summary, description, id string
	tags, produces           []string
	security                 []map[string][]string // nil: nothing is said
	errors                   []int
	hidden                   bool
}

func newSettings(opts []Option) settings {
	s := settings{
		maxBody: DefaultMaxBody, maxUpload: DefaultMaxUpload, maxDepth: DefaultMaxDepth,
		maxFields: DefaultMaxFields, maxFiles: DefaultMaxFiles, rules: map[string]check.Rule{},
	}
	for _, o := range opts {
		o(&s)
	}
	return s
}

// Status sets the status of responses.
func Status(code int) Option { return func(s *settings) { s.status = code } }

// MaxBody bounds a body in bytes, and in a multipart form with files the parts that are not files: beyond it the answer
// is
// 413. 0 or less leaves the default, DefaultMaxBody.
func MaxBody(n int64) Option { return func(s *settings) { s.maxBody = positive(n, DefaultMaxBody) } }

// MaxUpload bounds a multipart form with all its files, in bytes, of a request type that has fields for files: beyond
// it the answer is 413. 0 or less leaves the default, DefaultMaxUpload.
func MaxUpload(n int64) Option {
	return func(s *settings) { s.maxUpload = positive(n, DefaultMaxUpload) }
}

// MaxDepth bounds the nesting of JSON. 0 or less leaves the default, DefaultMaxDepth.
func MaxDepth(n int) Option { return func(s *settings) { s.maxDepth = positive(n, DefaultMaxDepth) } }

// MaxFields bounds the fields of a form. 0 or less leaves the default, DefaultMaxFields.
func MaxFields(n int) Option {
	return func(s *settings) { s.maxFields = positive(n, DefaultMaxFields) }
}

// MaxFiles bounds the files of a form. 0 or less leaves the default, DefaultMaxFiles.
func MaxFiles(n int) Option { return func(s *settings) { s.maxFiles = positive(n, DefaultMaxFiles) } }

func positive[T int | int64](n, otherwise T) T {
	if n <= 0 {
		return otherwise
	}
	return n
}

// BodyTimeout bounds how long a client may take to send the body, except for streamed files. After that the answer is
// 408. The default 0 leaves the limit to the server's ReadTimeout. It has no effect on ResponseWriters without
// deadlines.
func BodyTimeout(d time.Duration) Option { return func(s *settings) { s.bodyTimeout = d } }

// RefuseUnknown refuses JSON with members that the request type does not have. By default they are
// ignored.
func RefuseUnknown() Option { return func(s *settings) { s.refuseUnknown = true } }

// AssumeJSON reads a body without a Content-Type as JSON, for clients that send none. By default such a body is refused
// with status 415, because a page of another site can make a browser send one, with the user's cookies and without a
// preflight.
func AssumeJSON() Option { return func(s *settings) { s.assumeJSON = true } }

// Unpooled gives every request new memory. Use it for comparison, and to rule out pooling as the cause of a problem.
func Unpooled() Option { return func(s *settings) { s.unpooled = true } }

// ETag gives responses to GET with status 200 an entity tag, a hash of the body, and answers 304 when the client has
// that already. A handler may set the header ETag itself.
func ETag() Option { return func(s *settings) { s.etag = true } }

// Rule adds or replaces a rule of validate and binding tags. The function gets the value of the field and the text
// after = in the tag. It may be called concurrently.
func Rule(name string, ok func(value any, param string) bool) Option {
	return func(s *settings) { s.rules[name] = ok }
}

// MapError adds a function that makes problems of a service's own errors, typically with errors.Is or errors.As. The
// first result that is not nil is used. It takes precedence over the rules of this package.
func MapError(f func(error) *Problem) Option {
	return func(s *settings) { s.mapErrors = append(s.mapErrors, f) }
}

// Logger sets where panics and answers of status 500 are logged. The default is slog.Default() at the
// time of logging.
func Logger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// Codecs adds media types for requests, and for responses selected by Accept. JSON comes first; a codec for
// application/json replaces it. Codecs panics if a ContentType is not a media type.
func Codecs(codecs ...Codec) Option {
	return func(s *settings) {
		for _, c := range codecs {
			mediaType, _, err := mime.ParseMediaType(c.ContentType)
			if err != nil {
				panic(fmt.Sprintf("route: a codec has the media type %q: %v", c.ContentType, err))
			}
			s.codecs = append(s.codecs, codec{c, mediaType})
		}
	}
}

// Summary describes the operation in OpenAPI: a line, and more when it is needed, in Markdown.
func Summary(summary string, description ...string) Option {
	return func(s *settings) {
		s.doc.summary = summary
		if len(description) > 0 {
			s.doc.description = description[0]
		}
	}
}

// OperationID names the operation in OpenAPI. The default is made of method and path.
func OperationID(id string) Option { return func(s *settings) { s.doc.id = id } }

// Tags groups the operation in OpenAPI.
func Tags(tags ...string) Option {
	return func(s *settings) { s.doc.tags = append(s.doc.tags, tags...) }
}

// Errors names statuses of errors in OpenAPI, beyond those that binding makes.
func Errors(statuses ...int) Option {
	return func(s *settings) { s.doc.errors = append(s.doc.errors, statuses...) }
}

// Produces names the media types of a [Stream] or [File] in OpenAPI, which says */* otherwise.
func Produces(mediaTypes ...string) Option {
	return func(s *settings) { s.doc.produces = append(s.doc.produces, mediaTypes...) }
}

// Security names the schemes of [Info] that a request must satisfy, for OpenAPI. All schemes of one call are required.
// After several calls, those of any one call suffice; a call without names makes them optional. Middleware must check
// the requests.
func Security(schemes ...string) Option {
	return func(s *settings) {
		all := map[string][]string{}
		for _, name := range schemes {
			all[name] = []string{}
		}
		s.doc.security = append(s.doc.security, all)
	}
}

// Hidden keeps the operation out of OpenAPI.
func Hidden() Option { return func(s *settings) { s.doc.hidden = true } }
