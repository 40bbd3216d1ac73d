// Package route turns typed functions into HTTP handlers: requests are bound, validated and passed by
// value, results are encoded, and every error is an RFC 9457 problem.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//
//		"github.com/headpond/headpond/route"
//	)
//
//	type CreateUser struct {
//		Team string `path:"team"`
//		Name string `json:"name" validate:"required,max=100"`
//		Age  int    `json:"age" validate:"min=1,max=150"`
//	}
//
//	type User struct {
//		ID   int    `json:"id"`
//		Name string `json:"name"`
//	}
//
//	func main() {
//		mux := http.NewServeMux()
//		route.Handle(mux, "POST /teams/{team}/users", func(c *route.Ctx, req CreateUser) (User, error) {
//			return User{ID: 1, Name: req.Name}, nil
//		})
//		log.Fatal(http.ListenAndServe("127.0.0.1:8080", mux))
//	}
//
// # Requests
//
// The request type is a struct (or a slice or map, which is a JSON body). The tag of a field says where it comes from:
// path:"id", query:"page", header:"X-Tenant", cookie:"session", file:"avatar"; every other exported field comes from
// the body, by its json name from JSON and by its form name, or else its json name, from a form. Forms are read only
// for types with a form tag or a file. A field with a form tag and no json tag is not read from JSON. A body needs a
// Content-Type (see [AssumeJSON]). default:"20" sets an absent field. The fields of embedded structs count as fields of
// the struct. Fields from text can be strings, numbers, booleans, time.Time (RFC 3339), time.Duration, types with
// UnmarshalText, pointers to these, and slices of these (not from a path). A plan is compiled when the handler is made.
// An unsupported type panics then, with the field and the reason.
//
// JSON is read like encoding/json does, but strictly: names must match exactly and occur once, the text must be UTF-8,
// and the depth is bounded. A body cannot fill a field that has another source.
//
// The tags validate and binding take the rules of github.com/go-playground/validator: required, omitempty, omitnil,
// omitzero, isdefault, dive, keys and endkeys, min, max, len, eq, ne, gt, gte, lt, lte, oneof, unique, eqfield,
// nefield, gtfield, gtefield, ltfield, ltefield, email, url, uri, http_url, uuid, uuid3, uuid4, uuid5, alpha, alphanum,
// alphaunicode, alphanumunicode, ascii, printascii, numeric, number, hexadecimal, lowercase, uppercase, boolean, ip,
// ipv4, ipv6, cidr, hostname_rfc1123, e164, base64, json, contains, containsany, excludes, excludesall, startswith,
// endswith, datetime, rules joined by |, and rules of your own ([Rule]). An unknown rule panics when the handler is
// made. All violations are reported together. If the body is a slice or a map, its elements are checked; elements of a
// field are checked only with dive.
//
// # Responses
//
// A value is encoded as JSON with its Content-Length and written once. The status is that of the [Status] option, or
// 201 for POST, 204 for struct{}, else 200; a response type with HTTPStatus() int, or [Ctx.SetStatus], decides per
// response. [Stream], [File] and [Events] are responses of other kinds. [Codecs] adds other media types, [ETag]
// conditional requests. Compression and routing are left to middleware and the router.
//
// An error becomes a problem: a [*Problem] (see [Errorf]) unchanged, an error with HTTPStatus() int or StatusCode() int
// with that status and its text, an error that [MapError] maps, and every other error as 500, with the error only in
// the log. A panic is a 500 too, with its stack in the log.
//
// # Pooling and its rules
//
// Each request uses one exchange from the pool of its route: the request value, the buffers of body
// and response, and the data behind [Ctx]. It returns to the pool when the handler and a stream it
// returned have ended.
//
//   - The request value is passed by value, and strings in it do not refer to pooled memory: it may be kept, except for
//     files, which are removed when the handler has returned.
//   - A *Ctx belongs to the handler: after the handler has returned, each method panics with the route and the stack.
//     It is never reused, so that a Ctx kept by mistake cannot read the next request.
//   - [Ctx.Context] is the context of the http.Request, not pooled: pass it on to calls, and to goroutines that
//     should end with the request. Ctx is no context.Context itself.
//   - For a goroutine that outlives the handler call [Ctx.Detach] before starting it.
//
// With -race or the build tag debugpool no exchange is reused, and its buffers are overwritten at the end of the
// request, so that tests of your service find violations of the rules. The analyzer of cmd/routevet finds contexts that
// escape.
//
// Everything here may be used by many goroutines at once, except values of one request.
package route
