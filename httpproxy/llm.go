package httpproxy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/jsonfield"
	"github.com/headpond/headpond/internal/llmusage"
	"github.com/headpond/headpond/traffic"
)

// LLM makes a route count the tokens of language models. It reads the model's name in requests (the field "model" of a
// JSON body; see Config.PeekBytes) and the tokens in answers of status 2xx to requests with a body: whole ones (JSON) and
// streamed ones (text/event-stream), as the APIs of OpenAI and Anthropic have them. Answers pass as they come.
//
// Servers are asked for answers without Content-Encoding, unless Route.RequestHeaders sets Accept-Encoding. The tokens of
// an answer with one are not known.
type LLM struct {
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
	for _, limit := range l.Limits {
		if err := limit.verify(); err != nil {
			return fmt.Errorf("LLM: %w", err)
		}
	}
	return nil
}

// modelField is the name of the field of a request's body that names the model.
const modelField = "model"

// llm is a route's LLM prepared for use. Sessions use it concurrently.
type llm struct {
	field           int // index of modelField in the table's plan
	limits          []*limiter
	set             *traffic.Set
	route, upstream string // labels

	mu     sync.RWMutex // held for a look-up
	models map[string]*traffic.Cell
}

// cell returns the counters of a model.
func (l *llm) cell(model []byte) *traffic.Cell {
	l.mu.RLock()
	c := l.models[view(model)]
	l.mu.RUnlock()
	if c != nil {
		return c
	}
	name := string(model)
	c = l.set.Cell(l.route, l.upstream, name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.models) < maxModels { // the set then has cells for all others
		l.models[name] = c
	}
	return c
}

// tokens is the state of an exchange on a route with LLM.
type tokens struct {
	model  []byte // as the request names it; empty = it does not, or not within the peeked part
	reads  bool   // the answer is being read
	begun  bool   // the answer has status 2xx
	events bool   // it is streamed
	known  bool   // usage is what it has told
	usage  llmusage.Usage
	first  time.Time // when the model's first text came in an event; zero = it has not
	reader llmusage.Reader

	keys    [maxTokenLimits]uint64 // what the request counts by, for each of the limits
	checked bool                   // keys are set
	tight   tightest
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
		spareTokens.Put(k)
	}
}

// noteModel takes the model's name from the peeked body.
func (s *session) noteModel(p *peek) {
	if p.verdict != jsonfield.Complete && !p.beyond {
		return
	}
	if name, ok := p.scanner.Text(s.ex.target.llm.field); ok {
		k := s.takeTokens()
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
	if k.reader.Feed(content); k.first.IsZero() && k.reader.Began() {
		k.first = time.Now()
	}
}

// appendCount appends a number of tokens, if it is known. k may be nil.
func (k *tokens) appendCount(dst []byte, count int) []byte {
	if k == nil || !k.known {
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
		if k.usage, k.known = k.reader.Usage(); len(k.model) == 0 {
			k.model = append(k.model, k.reader.Model()...)
		}
	}
	counts := l.cell(k.model).Shard(int(s.shard))
	if !k.known {
		counts.Add(answersUnknown, 1)
	} else {
		s.spendTokens(k)
		counts.Add(inputTokens, uint64(k.usage.Input))
		counts.Add(cachedTokens, uint64(k.usage.Cached))
		counts.Add(outputTokens, uint64(k.usage.Output))
		counts.Add(answersKnown, 1)
	}
	if k.first.IsZero() {
		return
	}
	counts.Observe(firstTokenTime, k.first.Sub(s.now))
	if err == nil && k.usage.Output > 1 {
		counts.Observe(perTokenTime, s.ended.Sub(k.first)/time.Duration(k.usage.Output-1))
	}
}
