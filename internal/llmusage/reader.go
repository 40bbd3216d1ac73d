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
	prompt      kind = iota // input tokens, with those from the cache
	input                   // OpenAI: the same; Anthropic: without the next two
	cacheRead               //
	cacheMade               //
	cached                  // the part of prompt or input from the cache
	output                  //
	outputSoFar             // before the first text
	total                   //
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
	{"message.usage.output_tokens", outputSoFar},
}

// models are the paths of the model's name.
var models = []string{"model", "response.model", "message.model"}

// choices is the path of what the model has chosen, in OpenAI's chat completions.
const choices = "choices"

// plan is for whole objects, planOfEvent for events.
var plan, planOfEvent = newPlans()

func newPlans() (whole, event *jsonfield.Plan) {
	var paths []string
	for _, f := range fields {
		paths = append(paths, f.path)
	}
	whole, err := jsonfield.NewPlan(append(append(paths, models...), choices))
	if err != nil {
		panic(err)
	}
	return whole, whole.WithAnswer()
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
	texts   int  // events with text of the model
	size    int  // bytes of that text
	found   [kinds]int64
	has     [kinds]bool
	model   []byte

	only   bool   // the last event had the usage only
	passed bool   // Filter has passed the beginning of the event on
	left   bool   // Filter has left the last event out
	pads   bool   // empty lines take the place of events that Filter leaves out
	held   []byte // bytes that Filter has returned, and then those of the event that it has not
	sent   int    // the bytes of held that it has returned
}

// Reset prepares r for an answer: a stream of events (text/event-stream), or one JSON object.
func (r *Reader) Reset(events bool) {
	*r = Reader{scanner: r.scanner, events: events, model: r.model[:0], held: r.held[:0]}
	r.next()
}

// next prepares for the next object.
func (r *Reader) next() {
	r.data = false
	if r.events {
		r.scanner.Reset(planOfEvent)
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
		n, _ := r.event(b)
		b = b[n:]
	}
}

// event reads up to the end of an event, or of b.
func (r *Reader) event(b []byte) (n int, ended bool) {
	for n < len(b) {
		if r.place == inName {
			ended = r.name(b[n])
			if n++; ended {
				return n, true
			}
			continue
		}
		end := n + lineEnd(b[n:])
		if r.place == inData {
			r.scanner.Feed(b[n:end])
		}
		if n = end; n < len(b) {
			r.endLine(b[n])
			n++
		}
	}
	return n, false
}

// MaxHeld bounds the bytes of an event that Filter keeps. An event that has the usage only is shorter.
const MaxHeld = 2 << 10

// Filter is Feed for a stream whose client has not asked for the usage: it leaves out the event that has it and no choice,
// which such clients do not expect. It returns what is to be passed on, in two pieces: the first is valid until the next
// call, the second is at the beginning of b, which it changes. Flush returns what it still holds at the end.
func (r *Reader) Filter(b []byte) (first, rest []byte) {
	r.held = r.held[:copy(r.held, r.held[r.sent:])]
	r.sent = 0
	kept, from := 0, 0 // b[:kept] passes; b[from:] has the current event
	for at := 0; at < len(b); {
		if b[at] == '\n' && r.cr && at == from && len(r.held) == r.sent && !r.passed { // the rest of the last event's end
			r.cr = false
			if at++; !r.left || r.pads {
				kept += copy(b[kept:], b[from:at])
			}
			from = at
			continue
		}
		n, ended := r.event(b[at:])
		if at += n; !ended {
			break
		}
		if r.left = r.only && !r.passed; r.left && r.pads {
			blank(r.held[r.sent:])
			blank(b[from:at])
		}
		switch {
		case !r.left || r.pads:
			kept += copy(b[kept:], b[from:at])
			r.sent = len(r.held)
		case len(r.held) > r.sent:
			r.held = r.held[:r.sent]
		}
		from, r.only, r.passed = at, false, false
	}
	if tail := b[from:]; len(tail) > 0 {
		if r.passed || len(r.held)-r.sent+len(tail) > MaxHeld {
			r.passed, r.sent = true, len(r.held)
			kept += copy(b[kept:], tail)
		} else {
			r.held = append(r.held, tail...)
		}
	}
	return r.held[:r.sent], b[:kept]
}

// Flush returns what Filter has kept of an event that the answer ends with.
func (r *Reader) Flush() []byte {
	last := r.held[r.sent:]
	r.held, r.sent = r.held[:0], 0
	if r.data {
		if r.take(); r.only && !r.passed {
			if !r.pads {
				return nil
			}
			blank(last)
		}
	}
	return last
}

// Pad makes Filter and Flush put empty lines, which mean nothing, in place of an event that they leave out, so that the
// length of the answer does not change. Call it before the first Filter.
func (r *Reader) Pad() { r.pads = true }

func blank(b []byte) {
	for i := range b {
		b[i] = '\n'
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

// name reads a byte of the name of a field, or of the end of a line. It reports whether the byte ends the event.
func (r *Reader) name(c byte) (ended bool) {
	switch {
	case c == '\n' && r.cr:
		r.cr = false
	case c == '\n' || c == '\r':
		if ended = r.matched == 0; ended { // an empty line
			r.endEvent()
		}
		r.endLine(c)
	case c != dataField[r.matched]:
		r.place, r.cr = inOther, false
	default:
		r.cr = false
		if r.matched++; r.matched == len(dataField) {
			if r.place = inData; r.data {
				r.scanner.Feed([]byte{'\n'}) // between two lines of data
			}
			r.data = true
		}
	}
	return ended
}

func (r *Reader) endLine(c byte) { r.place, r.matched, r.cr = inName, 0, c == '\r' }

// endEvent takes what the event has said. Data that is no JSON object, such as "[DONE]", says nothing.
func (r *Reader) endEvent() {
	if r.data {
		r.take()
		if n := r.scanner.TextSize(); n > 0 {
			r.texts++
			r.size += n
		}
		r.next()
	}
}

// take takes what a complete object has said. Streams repeat numbers, each time with the sum so far.
func (r *Reader) take() {
	if r.scanner.Feed(nil) != jsonfield.Complete {
		return
	}
	told := false
	for i, f := range fields {
		if text, ok := r.scanner.Text(i); ok {
			if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 && n <= maxTokens {
				r.found[f.kind], r.has[f.kind] = max(r.found[f.kind], n), true
				told = true
			}
		}
	}
	r.only = told && r.scanner.Empty(len(fields)+len(models))
	for i := range models {
		if text, ok := r.scanner.Text(len(fields) + i); ok && len(r.model) == 0 {
			r.model = append(r.model, text...)
		}
	}
}

// Began reports whether a byte of the model's text, or of its reasoning or its call of a tool, has come in an event.
func (r *Reader) Began() bool { return r.size > 0 || r.events && r.scanner.TextSize() > 0 }

// Model returns the model that has answered, as the answer names it; "" if it does not. It is valid until Reset.
func (r *Reader) Model() []byte { return r.model }

// Usage returns the tokens that the answer has told so far; ok is false if it has told none. Of a stream that has broken
// off these may be less than were used.
func (r *Reader) Usage() (u Usage, ok bool) {
	r.take() // an object that ends with the answer, not with an empty line
	n := &r.found
	u = Usage{Input: n[prompt], Cached: max(n[cached], n[cacheRead]), Output: max(n[output], n[outputSoFar])}
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

// bytesPerToken is a common size of tokens, in bytes of text.
const bytesPerToken = 4

// Estimate returns the tokens of a stream that has begun and has not told them to its end: because nobody has asked the
// server for them, or because the stream has broken off. What it has told counts. For the rest a token stands for four bytes
// of text in the prompt, whose size is given, and for an event with text, or four bytes of it, in the answer. ok is false if
// there is nothing to estimate.
func (r *Reader) Estimate(promptSize int) (u Usage, ok bool) {
	u, _ = r.Usage()
	if r.has[output] || !r.Began() {
		return u, false
	}
	texts, size := r.texts, r.size
	if n := r.scanner.TextSize(); n > 0 { // in the last event, which is not complete
		texts, size = texts+1, size+n
	}
	u.Output = max(u.Output, int64(texts), int64(size/bytesPerToken))
	if !r.has[prompt] && !r.has[input] {
		u.Input = int64(promptSize / bytesPerToken)
	}
	return u, true
}
