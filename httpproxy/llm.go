package httpproxy

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/internal/llmusage"
	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/traffic"
)

// LLM makes a route count the tokens of language models. It reads the model's name in requests (the field "model" of a
// JSON body; see Config.PeekBytes) and the tokens in answers of status 2xx to requests with a body: whole ones (JSON) and
// streamed ones (text/event-stream), as the APIs of OpenAI and Anthropic have them. Answers pass as they come.
//
// The tokens of a stream that does not tell them, because its client has not asked for that or has left, are estimated from
// the text of the prompt, as far as it is within PeekBytes, and of the answer.
//
// Servers are asked for answers without Content-Encoding, unless Route.RequestHeaders sets Accept-Encoding. The tokens of
// an answer with one are not known.
type LLM struct {
	// IncludeUsage makes the Proxy ask for the usage of streamed answers of OpenAI's completions in place of clients that
	// do not: it adds "stream_options": {"include_usage": true} to the body of requests whose path ends in /completions,
	// and leaves the event that has nothing but the usage out of the answer (empty lines replace it in an answer with a
	// length). The object must be within PeekBytes. A body in chunks gets a length instead. Bodies with a
	// Content-Encoding, a digest or a signature do not change.
	IncludeUsage bool
	// Limits bound the tokens in a period. At most 8.
	Limits []TokenLimit
}

// maxTokenLimits bounds LLM.Limits: a request looks each of them up.
const maxTokenLimits = 8

func (l *LLM) verify(r Route) error {
	if l == nil {
		return nil
	}
	if r.answersItself() {
		return errors.New("LLM: a route that answers itself has no language model")
	}
	if len(l.Limits) > maxTokenLimits {
		return fmt.Errorf("LLM: more than %d limits", maxTokenLimits)
	}
	for i, limit := range l.Limits {
		if err := limit.verify(r); err != nil {
			return fmt.Errorf("LLM: %w", err)
		}
		for _, other := range l.Limits[:i] {
			if limit.key() == other.key() && !maps.Equal(limit.Budgets, other.Budgets) {
				return errors.New("LLM: two limits that differ only in their Budgets")
			}
		}
	}
	return nil
}

// modelField is the name of the field of a request's body that names the model.
const modelField = "model"

// llm is a route's LLM prepared for use. Sessions use it concurrently.
type llm struct {
	field         int          // index of modelField in the table's plan
	ask           *usageFields // nil = the proxy does not ask for the usage
	limits        []*limiter
	models, users cells
}

func (p *Proxy) newLLM(field int, limits []*limiter, route, upstream string) *llm {
	return &llm{
		field: field, limits: limits,
		models: cells{most: maxModels, known: map[string]*traffic.Cell{}, find: func(model string) *traffic.Cell { return p.models.Cell(route, upstream, model) }},
		users:  cells{most: maxLLMUsers, known: map[string]*traffic.Cell{}, find: func(user string) *traffic.Cell { return p.users.Cell(route, user) }},
	}
}

// cells are counters by name. It is safe for concurrent use.
type cells struct {
	find func(name string) *traffic.Cell
	most int // names to remember; the set has one cell for all further ones

	mu    sync.RWMutex // held for a look-up
	known map[string]*traffic.Cell
}

// of returns the counters of a name.
func (c *cells) of(name []byte) *traffic.Cell {
	c.mu.RLock()
	found := c.known[view(name)]
	c.mu.RUnlock()
	if found != nil {
		return found
	}
	text := string(name)
	found = c.find(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.known) < c.most {
		c.known[text] = found
	}
	return found
}

// tokens is the state of an exchange on a route with LLM.
type tokens struct {
	model     []byte // as the request names it; empty = it does not, or not within the peeked part
	prompt    int    // bytes of the prompt's text in that part
	asked     bool   // the proxy asks for the usage, and the client does not
	added     int64  // bytes that this adds to the body
	reads     bool   // the answer is being read
	begun     bool   // the answer has status 2xx
	events    bool   // it is streamed
	known     bool   // usage is what it has told
	estimated bool   // usage is in part an estimate
	usage     llmusage.Usage
	first     time.Time // when the model's first text came in an event; zero = it has not
	reader    llmusage.Reader

	limiters []*limiter                     // the limits of the request
	keys     [maxTokenLimits]uint64         // what it counts by, for each of them
	rates    [maxTokenLimits]ratelimit.Rate // and the rates of these keys
	reserved [maxTokenLimits]int64          // tokens that are taken for it, and that its usage replaces
	checked  bool                           // all are set
	tight    tightest
}

var spareTokens = sync.Pool{New: func() any { return new(tokens) }}

// takeTokens returns the state of the session's exchange, which it makes if needed.
func (s *session) takeTokens() *tokens {
	k := s.ex.tokens
	if k == nil {
		k = spareTokens.Get().(*tokens)
		*k = tokens{model: k.model[:0], reader: k.reader}
		s.ex.tokens = k
	}
	return k
}

// dropTokens frees the state. Nothing may refer to it any more.
func (s *session) dropTokens() {
	if k := s.ex.tokens; k != nil {
		s.ex.tokens = nil
		k.giveBack()
		spareTokens.Put(k)
	}
}

// noteModel takes the model's name and the size of the prompt from the peeked body.
func (s *session) noteModel(p *peek) {
	if p.verdict != jsonfield.Complete && !p.beyond {
		return
	}
	k := s.takeTokens()
	k.prompt = p.scanner.TextSize()
	if name, ok := p.scanner.Text(s.ex.target.llm.field); ok {
		k.model = append(k.model[:0], name...)
	}
}

// expectTokens prepares for the answer, whose head has arrived.
func (s *session) expectTokens() {
	if s.resp.Status/100 != 2 || s.req.Length == 0 || s.asksHead() {
		return
	}
	k := s.takeTokens()
	k.begun = true
	known := false
	for i := range s.resp.Fields {
		f := &s.resp.Fields[i]
		switch {
		case f.Known != httpwire.Other:
		case httpwire.EqualFold(f.Name, "content-type"):
			media, _, _ := strings.Cut(view(f.Value), ";")
			media = strings.TrimSpace(media)
			k.events = strings.EqualFold(media, eventStream)
			known = k.events || isJSON(media)
		case httpwire.EqualFold(f.Name, "content-encoding"):
			if !strings.EqualFold(view(f.Value), "identity") {
				return
			}
		}
	}
	if k.reads = known; known {
		k.reader.Reset(k.events)
	}
}

// reading reports whether the answer is being read. k may be nil.
func (k *tokens) reading() bool { return k != nil && k.reads }

// read reads content of the answer, on its way to the client. k may be nil.
func (k *tokens) read(content []byte) {
	if !k.reading() {
		return
	}
	k.reader.Feed(content)
	k.begin()
}

// begin notes the time of the first text.
func (k *tokens) begin() {
	if k.first.IsZero() && k.reader.Began() {
		k.first = time.Now()
	}
}

// appendCount appends a number of tokens, if it is known or estimated. k may be nil.
func (k *tokens) appendCount(dst []byte, count int) []byte {
	if k == nil || !k.known && !k.estimated {
		return dst
	}
	n := [...]int64{inputTokens: k.usage.Input, cachedTokens: k.usage.Cached, outputTokens: k.usage.Output}[count]
	return strconv.AppendInt(dst, n, 10)
}

// countTokens counts what the exchange, which has ended, has used.
func (s *session) countTokens(err error) {
	k, l := s.ex.tokens, s.ex.target.llm
	if !k.begun || l == nil {
		return
	}
	if k.reads { // otherwise the reader has what an earlier answer has told
		if k.usage, k.known = k.reader.Usage(); k.events {
			if usage, ok := k.reader.Estimate(k.prompt); ok {
				k.usage, k.known, k.estimated = usage, false, true
			}
		}
		if len(k.model) == 0 {
			k.model = append(k.model, k.reader.Model()...)
		}
	}
	counts := l.models.of(k.model).Shard(int(s.shard))
	counts.Add(k.outcome(), 1)
	if k.known || k.estimated {
		k.spend()
		counts.Add(inputTokens, uint64(k.usage.Input))
		counts.Add(cachedTokens, uint64(k.usage.Cached))
		counts.Add(outputTokens, uint64(k.usage.Output))
	}
	if s.ex.user != "" {
		s.countUser(k, l)
	}
	if k.first.IsZero() {
		return
	}
	counts.Observe(firstTokenTime, k.first.Sub(s.now))
	if err == nil && k.usage.Output > 1 {
		counts.Observe(perTokenTime, s.ended.Sub(k.first)/time.Duration(k.usage.Output-1))
	}
}

// countUser counts what an authenticated user has used.
func (s *session) countUser(k *tokens, l *llm) {
	counts := l.users.of([]byte(s.ex.user)).Shard(int(s.shard))
	counts.Add(userAnswers, 1)
	if k.known || k.estimated {
		counts.Add(userInput, uint64(k.usage.Input))
		counts.Add(userCached, uint64(k.usage.Cached))
		counts.Add(userOutput, uint64(k.usage.Output))
	}
}

// outcome returns the count of answers that the answer belongs to.
func (k *tokens) outcome() int {
	switch {
	case k.known:
		return answersKnown
	case k.estimated:
		return answersEstimated
	}
	return answersUnknown
}

// usageNames are the values of the label "usage", and of the variable "usage" of access logs.
var usageNames = map[int]string{answersKnown: "known", answersEstimated: "estimated", answersUnknown: "unknown"}

// appendUsage appends how the tokens are known. k may be nil.
func (k *tokens) appendUsage(dst []byte) []byte {
	if k == nil || !k.begun {
		return dst
	}
	return append(dst, usageNames[k.outcome()]...)
}
