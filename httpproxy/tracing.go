package httpproxy

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/headpond/headpond/httpwire"
)

// Tracer receives the traces of requests. Sessions call its methods concurrently; they must not wait.
type Tracer interface {
	// Active reports whether Sample may return true for any request: a cheap check before it.
	Active() bool
	// Sample reports whether to trace a request. known says that the client traces it (a valid traceparent field),
	// sampled that the client's spans are recorded.
	Sample(known, sampled bool) bool
	// Trace receives the trace of a request that has ended. t, with all its slices and strings, is valid during the
	// call only.
	Trace(t *Trace)
}

// TraceID and SpanID identify traces and spans (W3C Trace Context). The zero value is none.
type (
	TraceID [16]byte
	SpanID  [8]byte
)

// Trace is the trace of one request: a server span for the Proxy, and a client span for each time that the request was
// sent to an endpoint. Path has no query, and no field has credentials.
type Trace struct {
	ID          TraceID
	Parent      SpanID // the client's span; zero = the trace begins here
	State       string // the tracestate field, if there is a Parent
	Span        SpanID
	Start, End  time.Time
	Listener    string
	Method      string
	Scheme      string
	Host        string // Host field without port
	Path        string
	Version     string     // HTTP version: "1.0", "1.1", "2" or "3"
	Client      netip.Addr // address as named by trusted proxies
	Peer        netip.AddrPort
	UserAgent   string
	RequestID   string
	Route       string // "" = no route matched
	Upstream    string
	Status      int    // 0 = none was sent
	In, Out     int64  // bytes of the bodies
	Reason, Err string // as in AccessLog; "" = no error
	Model       string // language model, as the request names it, or else the answer; "" = not known
	Usage       *Usage // tokens of the language model; nil = not known
	Tries       []TraceTry
}

// Usage is the number of tokens that a language model has used for a request. Cached is a part of Input.
type Usage struct{ Input, Cached, Output int64 }

// TraceTry is one time that a request was sent to an endpoint.
type TraceTry struct {
	Span       SpanID
	Start, End time.Time
	Endpoint   string
	Status     int    // 0 = no whole answer
	Reason     string // why; see AccessLog
}

// Bounds of a trace.
const (
	maxTraceState = 512 // in bytes; tracers must pass on so much (W3C Trace Context, section 3.3.1.5)
	maxTries      = 16  // tries recorded; Retries and stale connections rarely make half as many
)

const (
	traceParentField = "traceparent"
	traceStateField  = "tracestate"
)

// trace is the state of a request's trace.
type trace struct {
	id     TraceID
	parent SpanID
	span   SpanID
	tries  []TraceTry
	open   bool // the last try has not ended
}

// parent is a parsed traceparent field.
type parent struct {
	id      TraceID
	span    SpanID
	sampled bool
}

// parseParent parses the value of a traceparent field (W3C Trace Context, sections 3.2 and 4.3). Later versions may
// append more.
func parseParent(v []byte) (p parent, ok bool) {
	const size = len("00-") + 32 + len("-") + 16 + len("-00")
	if len(v) < size || v[2] != '-' || v[35] != '-' || v[52] != '-' || len(v) > size && (v[55] != '-' || string(v[:2]) == "00") {
		return p, false
	}
	if !isHex(v[:2]) || string(v[:2]) == "ff" || !isHex(v[3:35]) || !isHex(v[36:52]) || !isHex(v[53:55]) {
		return p, false
	}
	_, _ = hex.Decode(p.id[:], v[3:35])
	_, _ = hex.Decode(p.span[:], v[36:52])
	var flags [1]byte
	_, _ = hex.Decode(flags[:], v[53:55])
	p.sampled = flags[0]&1 != 0
	return p, p.id != TraceID{} && p.span != SpanID{}
}

func isHex(b []byte) bool {
	for _, c := range b {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// parentOf returns the trace that a request belongs to. ok is true if the request has exactly one valid traceparent
// field.
func parentOf(r *httpwire.Request) (p parent, ok bool) {
	n := 0
	for i := range r.Fields {
		if f := &r.Fields[i]; isTraceParent(f) {
			n++
			p, ok = parseParent(f.Value)
		}
	}
	return p, ok && n == 1
}

func isTraceParent(f *httpwire.Field) bool {
	return len(f.Name) == len(traceParentField) && httpwire.EqualFold(f.Name, traceParentField)
}

func isTraceState(f *httpwire.Field) bool {
	return len(f.Name) == len(traceStateField) && httpwire.EqualFold(f.Name, traceStateField)
}

// beginTrace decides, once, whether the session's request is traced.
func (s *session) beginTrace() {
	x := &s.ex
	t := s.p.tracer
	if x.decided || t == nil || !t.Active() {
		return
	}
	x.decided = true
	p, known := parentOf(&s.req)
	if !t.Sample(known, p.sampled) {
		return
	}
	x.trace = &trace{id: p.id, parent: p.span, span: newSpanID()}
	if !known {
		x.trace.parent = SpanID{}
		x.trace.id = newTraceID()
	}
}

func newSpanID() (id SpanID) {
	for id == (SpanID{}) {
		putUint64(id[:], rand.Uint64())
	}
	return id
}

func newTraceID() (id TraceID) {
	for id == (TraceID{}) {
		putUint64(id[:8], rand.Uint64())
		putUint64(id[8:], rand.Uint64())
	}
	return id
}

// putUint64 writes n in any byte order, because n is random.
func putUint64(b []byte, n uint64) {
	for i := range b {
		b[i] = byte(n >> (8 * i))
	}
}

// beginTry records that the request is being sent to an endpoint.
func (x *exchange) beginTry(now time.Time) {
	t := x.trace
	if t == nil {
		return
	}
	x.endTry(now, 0, "")
	if len(t.tries) == maxTries {
		t.tries = t.tries[:maxTries-1]
	}
	t.tries = append(t.tries, TraceTry{Span: newSpanID(), Start: now, Endpoint: x.result.Endpoint})
	t.open = true
}

// endTry records how the current try, if there is one, has ended.
func (x *exchange) endTry(now time.Time, status int, reason string) {
	t := x.trace
	if t == nil || !t.open {
		return
	}
	t.open = false
	try := &t.tries[len(t.tries)-1]
	try.End, try.Status, try.Reason = now, status, reason
}

// passes reports whether a field of the client goes to the server. If the request is traced, the Proxy writes
// traceparent itself. tracestate passes only if the client's trace is continued.
func (t *trace) passes(f *httpwire.Field) bool {
	return !isTraceParent(f) && (t.parent != SpanID{} || !isTraceState(f))
}

// write appends the traceparent field of the try that begins.
func (t *trace) write(w *headWriter) {
	span := t.span
	if n := len(t.tries); n > 0 {
		span = t.tries[n-1].Span
	}
	w.begin(traceParentField)
	w.dst = hex.AppendEncode(append(w.dst, "00-"...), t.id[:])
	w.dst = hex.AppendEncode(append(w.dst, '-'), span[:])
	w.dst = append(w.dst, "-01"...)
	w.end()
}

// passTrace gives the trace of the request that l describes to the tracer.
func (s *session) passTrace(l *logLine) {
	t := s.ex.trace
	s.ex.trace = nil
	path, _ := l.target()
	record := Trace{
		ID: t.id, Parent: t.parent, Span: t.span, Start: l.began, End: l.began.Add(l.lasted), Listener: s.p.name,
		Method: view(l.req.Method), Scheme: l.scheme(), Host: requestHost(withoutUser(view(l.req.Host))), Path: view(path), Version: versions[l.protocol],
		Client: l.client(), Peer: netip.AddrPortFrom(l.peer.addr, l.peer.port), UserAgent: view(l.field(userAgent)), RequestID: view(l.id),
		Route: l.route, Upstream: l.upstream, Status: l.status, In: l.in, Out: l.out, Reason: l.reason, Err: l.err, Tries: t.tries,
	}
	if k := l.tokens; k != nil {
		record.Model = view(k.model)
		if k.known {
			record.Usage = &Usage{k.usage.Input, k.usage.Cached, k.usage.Output}
		}
	}
	if state := l.joined(traceStateField); t.parent != (SpanID{}) && len(state) <= maxTraceState {
		record.State = view(state)
	}
	s.p.tracer.Trace(&record)
}

var versions = map[string]string{protocolHTTP10: "1.0", protocolHTTP11: "1.1", protocolHTTP2: "2", protocolHTTP3: "3"}

// joined returns the values of all fields with a name, which is in lower case, as one list.
func (l *logLine) joined(name string) (list []byte) {
	for i := range l.req.Fields {
		f := &l.req.Fields[i]
		switch {
		case len(f.Name) != len(name) || !httpwire.EqualFold(f.Name, name):
		case list == nil:
			list = f.Value
		default:
			list = bytes.Join([][]byte{list, f.Value}, []byte(","))
		}
	}
	return list
}
