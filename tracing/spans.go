package tracing

import (
	"context"
	"net"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/headpond/headpond/httpproxy"
)

// ids is an sdk.IDGenerator of ids that the session has chosen: the endpoint got them before the span
// was made.
type ids struct{}

// chosen is a context's key for the ids of the span to be made.
type chosen struct{}

// NewIDs implements sdk.IDGenerator.
func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	sc, _ := ctx.Value(chosen{}).(trace.SpanContextConfig)
	return sc.TraceID, sc.SpanID
}

// NewSpanID implements sdk.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	sc, _ := ctx.Value(chosen{}).(trace.SpanContextConfig)
	return sc.SpanID
}

// trace makes the spans of a request.
func (e *exporter) trace(t *httpproxy.Trace) {
	if !e.room(1 + len(t.Tries)) {
		return
	}
	ctx := context.Background()
	if (t.Parent != httpproxy.SpanID{}) {
		state, _ := trace.ParseTraceState(strings.Clone(t.State)) // a malformed one counts as empty
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID(t.ID), SpanID: trace.SpanID(t.Parent), TraceFlags: trace.FlagsSampled, TraceState: state, Remote: true,
		}))
	}
	with := func(ctx context.Context, id httpproxy.SpanID) context.Context {
		return context.WithValue(ctx, chosen{}, trace.SpanContextConfig{TraceID: trace.TraceID(t.ID), SpanID: trace.SpanID(id)})
	}
	name := text(t.Method)
	if t.Route != "" {
		name += " " + text(t.Route)
	}
	ctx, span := e.tracer.Start(with(ctx, t.Span), name,
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(t.Start), trace.WithAttributes(serverAttributes(t)...))
	for i := range t.Tries {
		e.try(with(ctx, t.Tries[i].Span), t, i)
	}
	if t.Status >= 500 || t.Status == 0 {
		span.SetStatus(codes.Error, text(t.Err))
	}
	span.End(trace.WithTimestamp(t.End))
}

// try makes the span of one attempt to send the request.
func (e *exporter) try(ctx context.Context, t *httpproxy.Trace, i int) {
	try := &t.Tries[i]
	end := try.End
	if end.IsZero() || end.Round(0).After(t.End.Round(0)) { // the two clocks may differ
		end = t.End
	}
	_, span := e.tracer.Start(ctx, text(t.Method),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(try.Start), trace.WithAttributes(clientAttributes(t, i)...))
	if try.Status >= 400 || try.Status == 0 {
		span.SetStatus(codes.Error, "")
	}
	span.End(trace.WithTimestamp(end))
}

// text returns a value that may outlive the request, cut to maxAttribute before it is copied, and as
// valid UTF-8: otherwise the collector would refuse the whole batch.
func text(s string) string {
	return strings.ToValidUTF8(strings.Clone(s[:min(len(s), maxAttribute)]), "\ufffd")
}

// attributes collects those that there are.
type attributes []attribute.KeyValue

func (a *attributes) text(key, value string) {
	if value != "" {
		*a = append(*a, attribute.String(key, text(value)))
	}
}

func (a *attributes) number(key string, value int64) { *a = append(*a, attribute.Int64(key, value)) }

// address adds a host and a port, if there is one.
func (a *attributes) address(prefix, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		a.text(prefix+".address", address)
		return
	}
	a.text(prefix+".address", host)
	if n, err := strconv.Atoi(port); err == nil {
		a.number(prefix+".port", int64(n))
	}
}

// failure adds why a request failed: the reason, or the status if it is an error for that side.
func (a *attributes) failure(reason string, status, from int) {
	switch {
	case reason != "":
		a.text("error.type", reason)
	case status >= from:
		a.text("error.type", strconv.Itoa(status))
	}
}

func serverAttributes(t *httpproxy.Trace) (a attributes) {
	a.text("http.request.method", t.Method)
	a.text("url.scheme", t.Scheme)
	a.text("url.path", t.Path)
	a.text("server.address", t.Host)
	a.text("network.protocol.version", t.Version)
	a.text("http.route", t.Route)
	a.text("user_agent.original", t.UserAgent)
	if t.Client.IsValid() {
		a.text("client.address", t.Client.String())
	}
	if t.Peer.Addr().IsValid() {
		a.address("network.peer", t.Peer.String())
	}
	if t.Status > 0 {
		a.number("http.response.status_code", int64(t.Status))
	}
	a.number("http.request.body.size", t.In)
	a.number("http.response.body.size", t.Out)
	a.text("gen_ai.request.model", t.Model)
	if u := t.Usage; u != nil {
		a.number("gen_ai.usage.input_tokens", u.Input)
		a.number("gen_ai.usage.cache_read.input_tokens", u.Cached)
		a.number("gen_ai.usage.output_tokens", u.Output)
	}
	a.failure(t.Reason, t.Status, 500)
	a.text("headpond.listener", t.Listener)
	a.text("headpond.upstream", t.Upstream)
	a.text("headpond.request_id", t.RequestID)
	return a
}

func clientAttributes(t *httpproxy.Trace, i int) (a attributes) {
	try := &t.Tries[i]
	a.text("http.request.method", t.Method)
	a.address("server", try.Endpoint)
	if try.Status > 0 {
		a.number("http.response.status_code", int64(try.Status))
	}
	a.failure(try.Reason, try.Status, 400)
	if i > 0 {
		a.number("http.request.resend_count", int64(i))
	}
	a.text("headpond.upstream", t.Upstream)
	return a
}
