package route

import (
	"maps"
	"net/http"
)

// Problems returns a handler that serves mux and answers with problems, as handlers of this package do, where mux has no handler
// (404) or none for the method (405).
func Problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, pattern := mux.Handler(r); pattern == "" {
			refused := refusal{header: http.Header{}}
			h.ServeHTTP(&refused, r)
			if refused.status == http.StatusNotFound || refused.status == http.StatusMethodNotAllowed { // else it is a redirect
				maps.Copy(w.Header(), refused.header)
				sendProblem(w, refused.status)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
}

// NotFound answers with the problem 404, for routers that take a handler for that, such as chi's NotFound.
func NotFound(w http.ResponseWriter, _ *http.Request) { sendProblem(w, http.StatusNotFound) }

// MethodNotAllowed answers with the problem 405, for routers that take a handler for that. The router sets the header Allow.
func MethodNotAllowed(w http.ResponseWriter, _ *http.Request) {
	sendProblem(w, http.StatusMethodNotAllowed)
}

func sendProblem(w http.ResponseWriter, status int) {
	x := exchange{w: w}
	x.send(&Problem{Status: status})
}

// refusal is the response of http.ServeMux where it has no handler: its status and its header count.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) Write(b []byte) (int, error) { return len(b), nil }
func (r *refusal) WriteHeader(status int)      { r.status = status }
