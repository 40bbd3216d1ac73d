package llmusage

import (
	"bytes"
	"strconv"

	"github.com/headpond/headpond/internal/jsonfield"
)

// Usage is the number of tokens of one request.
type Usage struct {
	// Input has the tokens of the prompt, with those that the server had in its cache.
	Input int64
	// Cached is the part of Input that was read from the cache.
	Cached int64
	// Output has the tokens that the model has made, with those of its reasoning.
	Output int64
}

// Total returns the tokens of the prompt and of the answer.
func (u Usage) Total() int64 { return u.Input + u.Output }

// maxTokens bounds a number of tokens in one answer; greater ones are ignored.
const maxTokens = 1 << 32

// kind is a number in an answer.
type kind int

const (
	prompt    kind = iota // input tokens, with those from the cache
	input                 // OpenAI: the same; Anthropic: without the next two
	cacheRead             //
	cacheMade             //
	cached                // the part of prompt or input from the cache
	output                //
	total                 //
	kinds
)

// fields are the paths of the numbers in an answer or in an event: at the top, in the last event of OpenAI's responses,
// and in the first of Anthropic's messages.
var fields = []struct {
	path string
	kind kind
}{
	{"usage.prompt_tokens", prompt},
	{"usage.input_tokens", input},
	{"usage.cache_read_input_tokens", cacheRead},
	{"usage.cache_creation_input_tokens", cacheMade},
	{"usage.prompt_tokens_details.cached_tokens", cached},
	{"usage.input_tokens_details.cached_tokens", cached},
	{"usage.completion_tokens", output},
	{"usage.output_tokens", output},
	{"usage.total_tokens", total},
	{"response.usage.input_tokens", input},
	{"response.usage.input_tokens_details.cached_tokens", cached},
	{"response.usage.output_tokens", output},
	{"message.usage.input_tokens", input},
	{"message.usage.cache_read_input_tokens", cacheRead},
	{"message.usage.cache_creation_input_tokens", cacheMade},
	{"message.usage.output_tokens", output},
}

// models are the paths of the model's name.
var models = []string{"model", "response.model", "message.model"}

// plan is for whole objects, and for events after the first text; planUntilText is for those before.
var plan, planUntilText = newPlans()

func newPlans() (all, untilText *jsonfield.Plan) {
	var paths []string
	for _, f := range fields {
		paths = append(paths, f.path)
	}
	all, err := jsonfield.NewPlan(append(paths, models...))
	if err != nil {
		panic(err)
	}
	return all, all.WithAnswer()
}

// place is where a Reader is in a stream of events.
type place uint8

const (
	inName  place = iota // at the start of a line, or in the name of a field that may be dataField
	inData               // in the data of an event
	inOther              // in another field
)

// dataField is the name of the field that has an event's data, with its colon.
const dataField = "data:"

// Reader reads one answer. Reset prepares it for the next one, and reuses its memory.
type Reader struct {
	scanner jsonfield.Scanner
	events  bool
	place   place
	matched int  // bytes of dataField
	cr      bool // the last byte was CR: LF belongs to the same end of a line
	data    bool // the event has data
	text    bool // see Began
	found   [kinds]int64
	has     [kinds]bool
	model   []byte
}

// Reset prepares r for an answer: a stream of events (text/event-stream), or one JSON object.
func (r *Reader) Reset(events bool) {
	*r = Reader{scanner: r.scanner, events: events, model: r.model[:0]}
	r.next()
}

// next prepares for the next object.
func (r *Reader) next() {
	r.data = false
	if r.events && !r.text {
		r.scanner.Reset(planUntilText)
	} else {
		r.scanner.Reset(plan)
	}
}

// Feed reads the next bytes of the answer. It does not keep b.
func (r *Reader) Feed(b []byte) {
	if !r.events {
		r.scanner.Feed(b)
		return
	}
	for len(b) > 0 {
		if r.place == inName {
			b = r.name(b)
			continue
		}
		end := lineEnd(b)
		if r.place == inData {
			r.feedData(b[:end])
		}
		if b = b[end:]; len(b) > 0 {
			r.endLine(b[0])
			b = b[1:]
		}
	}
}

// lineEnd returns the index of the byte that ends the line, or the length of b.
func lineEnd(b []byte) int {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	if i := bytes.IndexByte(b, '\r'); i >= 0 {
		return i
	}
	return len(b)
}

// name reads bytes up to the end of dataField, the end of the line, or the first byte that is neither.
func (r *Reader) name(b []byte) (rest []byte) {
	switch c := b[0]; {
	case c == '\n' && r.cr:
		r.cr = false
	case c == '\n' || c == '\r':
		if r.matched == 0 { // an empty line ends the event
			r.endEvent()
		}
		r.endLine(c)
	case c != dataField[r.matched]:
		r.place, r.cr = inOther, false
	default:
		r.cr = false
		if r.matched++; r.matched == len(dataField) {
			if r.place = inData; r.data {
				r.feedData([]byte{'\n'}) // between two lines of data
			}
			r.data = true
		}
	}
	return b[1:]
}

func (r *Reader) endLine(c byte) { r.place, r.matched, r.cr = inName, 0, c == '\r' }

func (r *Reader) feedData(b []byte) {
	r.scanner.Feed(b)
	r.text = r.text || r.scanner.HasText()
}

// endEvent takes what the event has said. Data that is no JSON object, such as "[DONE]", says nothing.
func (r *Reader) endEvent() {
	if r.data {
		r.take()
		r.next()
	}
}

// take takes what a complete object has said. Streams repeat numbers, each time with the sum so far.
func (r *Reader) take() {
	if r.scanner.Feed(nil) != jsonfield.Complete {
		return
	}
	for i, f := range fields {
		if text, ok := r.scanner.Text(i); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n <= maxTokens {
				r.found[f.kind], r.has[f.kind] = max(r.found[f.kind], n), true
			}
		}
	}
	for i := range models {
		if text, ok := r.scanner.Text(len(fields) + i); ok && len(r.model) == 0 {
			r.model = append(r.model, text...)
		}
	}
}

// Began reports whether a byte of the model's text, or of its reasoning or its call of a tool, has come in an event.
func (r *Reader) Began() bool { return r.text }

// Model returns the model that has answered, as the answer names it; "" if it does not. It is valid until Reset.
func (r *Reader) Model() []byte { return r.model }

// Usage returns the tokens that the answer has told so far; ok is false if it has told none. Of a stream that has broken
// off these may be less than were used.
func (r *Reader) Usage() (u Usage, ok bool) {
	r.take() // an object that ends with the answer, not with an empty line
	n := &r.found
	u = Usage{Input: n[prompt], Cached: max(n[cached], n[cacheRead]), Output: n[output]}
	if !r.has[prompt] {
		u.Input = n[input] + n[cacheRead] + n[cacheMade]
	}
	if u.Total() == 0 { // a ranking, for example, tells no more
		u.Input = n[total]
	}
	u.Cached = min(u.Cached, u.Input)
	for _, has := range r.has {
		ok = ok || has
	}
	return u, ok
}
