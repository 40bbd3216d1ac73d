package mockllm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"time"
)

// Request is a chat completion that a client asks for.
type Request struct {
	Model         string    `json:"model"`
	Messages      []Message `json:"messages"`
	Stream        bool      `json:"stream"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`

	Header  http.Header     `json:"-"`
	Context context.Context `json:"-"` // ends when the client leaves
}

// Message is one message of a conversation.
type Message struct {
	Role    string  `json:"role"`
	Content Content `json:"content"`
}

// Content is the text of a message.
type Content string

// UnmarshalJSON reads a string, or a list of parts, of which it uses those with text.
func (c *Content) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = Content(text)
		return nil
	}
	var parts []struct{ Text string }
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New("content: want text, or a list of parts")
	}
	for _, p := range parts {
		text += p.Text
	}
	*c = Content(text)
	return nil
}

// Last returns the text of the last message, "" without any.
func (r *Request) Last() string {
	if len(r.Messages) == 0 {
		return ""
	}
	return string(r.Messages[len(r.Messages)-1].Content)
}

// reply writes an answer.
type reply struct {
	w     http.ResponseWriter
	req   *Request
	pause time.Duration
	text  strings.Builder
	words int
}

// object is a JSON object of an answer.
type object struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   any      `json:"usage,omitempty"` // a *usage; nil = none, a nil *usage = null
}

type choice struct {
	Index   int     `json:"index"`
	Message *said   `json:"message,omitempty"`
	Delta   *said   `json:"delta,omitempty"`
	Finish  *string `json:"finish_reason"`
}

type said struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

func (r *reply) object(kind string, choices ...choice) object {
	if choices == nil {
		choices = []choice{}
	}
	o := object{ID: "chatcmpl-mock", Object: kind, Created: created, Model: r.req.Model, Choices: choices}
	if r.req.Stream && r.req.StreamOptions.IncludeUsage {
		o.Usage = (*usage)(nil)
	}
	return o
}

// used counts words as tokens.
func (r *reply) used() *usage {
	prompt := 0
	for _, m := range r.req.Messages {
		prompt += len(strings.Fields(string(m.Content)))
	}
	return &usage{Prompt: prompt, Completion: r.words, Total: prompt + r.words}
}

// add sends a word and waits.
func (r *reply) add(word string) error {
	r.words++
	if !r.req.Stream {
		r.text.WriteString(word)
		return r.req.Context.Err()
	}
	if r.words == 1 {
		r.w.Header().Set("Content-Type", "text/event-stream")
	}
	delta := &said{Content: word}
	if r.words == 1 {
		delta.Role = "assistant"
	}
	r.event(r.object("chat.completion.chunk", choice{Delta: delta}))
	if r.pause > 0 {
		t := time.NewTimer(r.pause)
		defer t.Stop()
		select {
		case <-r.req.Context.Done():
		case <-t.C:
		}
	}
	return r.req.Context.Err()
}

// finish ends a complete answer.
func (r *reply) finish() {
	stop := "stop"
	if !r.req.Stream {
		o := r.object("chat.completion", choice{Message: &said{"assistant", r.text.String()}, Finish: &stop})
		o.Usage = r.used()
		answer(r.w, http.StatusOK, o)
		return
	}
	r.w.Header().Set("Content-Type", "text/event-stream")
	r.event(r.object("chat.completion.chunk", choice{Delta: &said{}, Finish: &stop}))
	if r.req.StreamOptions.IncludeUsage {
		o := r.object("chat.completion.chunk")
		o.Usage = r.used()
		r.event(o)
	}
	_, _ = fmt.Fprint(r.w, "data: [DONE]\n\n")
}

// fail ends an answer with an error.
func (r *reply) fail(err error) {
	e := &Error{Status: http.StatusInternalServerError, Type: "server_error", Message: err.Error()}
	_ = errors.As(err, &e)
	if r.req.Stream && r.words > 0 {
		r.event(map[string]any{"error": e})
		return
	}
	refuse(r.w, e)
}

// event sends an event and flushes it.
func (r *reply) event(v any) {
	text, _ := json.Marshal(v) // of types of this package
	_, _ = fmt.Fprintf(r.w, "data: %s\n\n", text)
	_ = http.NewResponseController(r.w).Flush()
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, e *Error) {
	status := e.Status
	if status == 0 {
		status = http.StatusInternalServerError
	}
	answer(w, status, map[string]any{"error": e})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// InTurns answers with three words, each after the client has received the previous one, for which next gets a value.
func InTurns(ctx context.Context, next <-chan struct{}) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for word := range strings.FieldsSeq("one two three") {
			if !yield(word, nil) {
				return
			}
			select {
			case <-next:
			case <-ctx.Done():
			}
		}
	}
}
