package route

import (
	"maps"
	"net/http"
)

// Problems returns a handler that serves mux. If mux has no handler for the path (404) or the method (405), it answers
// with a problem, like handlers of this package.
func Problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, pattern := mux.Handler(r); pattern == "" {
			refused := refusal{header: http.Header{}}
			h.ServeHTTP(&refused, r)
			if refused.status == http.StatusNotFound || refused.status == http.StatusMethodNotAllowed { // otherwise it is a redirect
				maps.Copy(w.Header(), refused.header)
				sendProblem(w, refused.status)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// NotFound answers with the problem 404. Use it for routers with a handler for that, such as chi's NotFound.
func NotFound(w http.ResponseWriter, _ *http.Request) { sendProblem(w, http.StatusNotFound) }

// MethodNotAllowed answers with the problem 405. Use it for routers with a handler for that. The router sets the header
// Allow.
func MethodNotAllowed(w http.ResponseWriter, _ *http.Request) {
	sendProblem(w, http.StatusMethodNotAllowed)
}

func sendProblem(w http.ResponseWriter, status int) {
	x := exchange{w: w}
	x.send(&Problem{Status: status})
}

// refusal captures the response of http.ServeMux when it has no handler: its status and header.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }
func (r *refusal) WriteHeader(status int)      { r.status = status }
