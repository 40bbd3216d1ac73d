package mockllm

import (
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// maxBody bounds a request's body.
const maxBody = 64 << 20

// created is the time of every answer. It is constant, because tests compare answers.
const created = 1_700_000_000

// Server is the handler. Its fields must not change once it is in use; the zero value serves any model and answers at
// once with its name. All methods are safe for concurrent use.
type Server struct {
	// Models are the served models; requests for others get 404. Empty = any.
	Models []string
	// Pause is the wait after each streamed word.
	Pause time.Duration
	// Answer returns the words of an answer, which are concatenated. An error ends the answer: before the first word it
	// is the HTTP answer, later it is an event, as with real servers. ErrBreak breaks the connection. A word may take
	// until the end of the request's Context. nil = Introduce.
	Answer func(r *Request) iter.Seq2[string, error]

	requests, finished, canceled, failed atomic.Int64
}

// Stats counts chat completions by how they ended. Requests minus the others are running.
type Stats struct {
	Requests int64
	Finished int64 // answered to the end
	Canceled int64 // the client disconnected before that
	Failed   int64 // by an error of Answer
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{s.requests.Load(), s.finished.Load(), s.canceled.Load(), s.failed.Load()}
}

// Error is an error as clients of the API see it.
type Error struct {
	Status  int    `json:"-"` // of the answer; 0 = 500
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param,omitempty"`
	Code    string `json:"code,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("%d %s: %s", e.Status, e.Type, e.Message) }

// ErrBreak is an error for Answer. It breaks the client's connection in the middle of the answer.
var ErrBreak = errors.New("mockllm: the connection is broken")

// Introduce answers with the model's name.
func Introduce(r *Request) iter.Seq2[string, error] {
	return Say("I am the model " + r.Model + " .")
}

// Say answers with text, one word at a time, each followed by a space.
func Say(text string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.FieldsSeq(text) {
			if !yield(word+" ", nil) {
				return
			}
		}
	}
}

// Fail answers with an error.
func Fail(err error) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) { yield("", err) }
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "GET /health":
		_, _ = fmt.Fprintln(w, "ok")
	case "GET /v1/models":
		s.list(w)
	case "POST /v1/chat/completions":
		s.requests.Add(1)
		s.chat(w, r)
	default:
		refuse(w, &Error{Status: http.StatusNotFound, Type: "invalid_request_error", Message: "unknown request: " + r.Method + " " + r.URL.Path})
	}
}

func (s *Server) list(w http.ResponseWriter) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
	}
	models := []model{}
	for _, name := range s.Models {
		models = append(models, model{name, "model", created, "mockllm"})
	}
	answer(w, http.StatusOK, map[string]any{"object": "list", "data": models})
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	req := &Request{Header: r.Header, Context: r.Context()}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(req); err != nil {
		s.failed.Add(1)
		refuse(w, &Error{Status: http.StatusBadRequest, Type: "invalid_request_error", Message: err.Error()})
		return
	}
	if len(s.Models) > 0 && !slices.Contains(s.Models, req.Model) {
		s.failed.Add(1)
		refuse(w, &Error{
			Status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
			Message: fmt.Sprintf("The model `%s` does not exist", req.Model),
		})
		return
	}
	words := Introduce
	if s.Answer != nil {
		words = s.Answer
	}
	reply := &reply{w: w, req: req, pause: s.Pause}
	var err error
	for word, failure := range words(req) {
		if err = failure; err == nil {
			err = reply.add(word)
		}
		if err != nil {
			break
		}
	}
	s.end(reply, err)
}

// end ends an answer and counts its result.
func (s *Server) end(reply *reply, err error) {
	switch {
	case reply.req.Context.Err() != nil:
		s.canceled.Add(1)
	case errors.Is(err, ErrBreak):
		s.failed.Add(1)
		panic(http.ErrAbortHandler)
	case err != nil:
		s.failed.Add(1)
		reply.fail(err)
	default:
		reply.finish()
		s.finished.Add(1)
	}
}
