package httpproxy_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/headpond/headpond/httpproxy"
)

// traces is a Tracer that keeps its traces.
type traces struct {
	t    testing.TB
	none bool // samples nothing

	mu  sync.Mutex
	all []httpproxy.Trace
}

func (*traces) Active() bool { return true }

func (tr *traces) Sample(known, sampled bool) bool { return !tr.none && (!known || sampled) }

func (tr *traces) Trace(t *httpproxy.Trace) {
	kept := *t
	kept.Tries, kept.Path, kept.State, kept.Host = slices.Clone(t.Tries), strings.Clone(t.Path), strings.Clone(t.State), strings.Clone(t.Host)
	kept.Method = strings.Clone(t.Method)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.all = append(tr.all, kept)
}

// take waits for one trace, and reports another.
func (tr *traces) take() httpproxy.Trace {
	tr.t.Helper()
	eventually(tr.t, "a trace", func() bool {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		return len(tr.all) > 0
	})
	tr.mu.Lock()
	defer tr.mu.Unlock()
	all := tr.all
	tr.all = nil
	if len(all) > 1 {
		tr.t.Errorf("%d traces", len(all))
	}
	return all[0]
}

// parentOf is the traceparent of a request's last try.
func parentOf(t httpproxy.Trace) string {
	if len(t.Tries) == 0 {
		return ""
	}
	span := t.Tries[len(t.Tries)-1].Span
	return "00-" + hex.EncodeToString(t.ID[:]) + "-" + hex.EncodeToString(span[:]) + "-01"
}

const aTrace = "4bf92f3577b34da6a3ce929d0e0e4736"

// TestTraceParents: a valid traceparent is continued, and one that is not begins a trace, without the tracestate of another.
func TestTraceParents(t *testing.T) {
	got := make(chan http.Header, 1)
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	tr, lines := &traces{t: t}, &logLines{t: t}
	p := startProxy(t, httpproxy.Config{
		Tracer: tr, AccessLog: &httpproxy.AccessLog{To: lines}, Routes: []httpproxy.Route{{Upstream: newUpstream(t, backend)}},
	})
	const parent = "00-" + aTrace + "-00f067aa0ba902b7-01"
	for _, tc := range []struct {
		parents   []string
		continues bool
	}{
		{[]string{parent}, true},
		{[]string{"01-" + parent[3:] + "-later"}, true},
		{[]string{"cc-" + parent[3:]}, true},
		{nil, false},
		{[]string{parent, parent}, false},
		{[]string{"ff-" + parent[3:]}, false},
		{[]string{parent + "-x"}, false},
		{[]string{strings.ToUpper(parent)}, false},
		{[]string{"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01"}, false},
		{[]string{"00-" + aTrace + "-0000000000000000-01"}, false},
		{[]string{parent[:54]}, false},
		{[]string{""}, false},
	} {
		req, _ := http.NewRequest(http.MethodGet, p.url+"/x?secret", nil)
		req.Header["Traceparent"], req.Header["Tracestate"] = tc.parents, []string{"a=1", "b=2"}
		do(t, req)
		sent, trace := <-got, tr.take()
		if want := []string{parentOf(trace)}; !slices.Equal(sent["Traceparent"], want) || want[0] == "" {
			t.Errorf("%q: the server got %q, want %q", tc.parents, sent["Traceparent"], want)
		}
		id := hex.EncodeToString(trace.ID[:])
		if tc.continues != (id == aTrace) || tc.continues != (trace.Parent != httpproxy.SpanID{}) || tc.continues != (trace.State == "a=1,b=2") || tc.continues != (len(sent["Tracestate"]) > 0) {
			t.Errorf("%q: trace %s, parent %x, state %q, sent %q", tc.parents, id, trace.Parent, trace.State, sent["Tracestate"])
		}
		if f := lines.fields(); f["trace_id"] != id {
			t.Errorf("the log has trace %v, want %s", f["trace_id"], id)
		}
		if trace.Path != "/x" || trace.Status != 200 || len(trace.Tries) != 1 || trace.Tries[0].Status != 200 || trace.Tries[0].Endpoint != backend {
			t.Errorf("%+v", trace)
		}
	}
}

// TestTraceOfHTTP2: streams with a fiber and without one are traced alike.
func TestTraceOfHTTP2(t *testing.T) {
	tr := &traces{t: t}
	backend := serveHTTP2(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Traceparent")) })
	p := startProxy(t, httpproxy.Config{Tracer: tr, Routes: []httpproxy.Route{{Upstream: backend.upstream(t, httpproxy.ProtocolH2C)}}})
	h := dialH2(t, p.addr)
	seen := map[httpproxy.TraceID]bool{}
	for i := range uint32(20) { // the first ones have a fiber
		id := 2*i + 1
		h.ask(id, true, ":method", "GET", ":scheme", "http", ":authority", "a", ":path", fmt.Sprintf("/%d", i))
		got := h.outcome(id)
		trace := tr.take()
		if got != "200 "+parentOf(trace) || trace.Path != fmt.Sprintf("/%d", i) || trace.Version != "2" || seen[trace.ID] {
			t.Errorf("%q: %+v", got, trace)
		}
		seen[trace.ID] = true
	}
}

// TestTraceOfTries: a connection that the server has closed, and an upgrade, are tries, too. Header rules precede the gateway's field.
func TestTraceOfTries(t *testing.T) {
	tr := &traces{t: t}
	var served atomic.Int32
	stale := serveRaw(t, func(c net.Conn) { // answers once on each connection
		buf := make([]byte, 4096)
		if _, err := c.Read(buf); err != nil {
			return
		}
		served.Add(1)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		_, _ = c.Read(buf)
	})
	rules := httpproxy.HeaderRules{Set: []httpproxy.HeaderField{{Name: "traceparent", Value: "mine"}}}
	got := make(chan http.Header, 1)
	backend := serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	p := startProxy(t, httpproxy.Config{Tracer: tr, Routes: []httpproxy.Route{
		{Path: "/stale", Upstream: newUpstream(t, stale)}, {Path: "/ws", Upstream: newUpstream(t, serveUpgrade(t, echo))},
		{Path: "/rules", Upstream: newUpstream(t, backend), RequestHeaders: rules},
	}})
	get(t, p.url+"/stale")
	if trace := tr.take(); len(trace.Tries) != 1 || trace.Reason != "" {
		t.Errorf("%+v", trace)
	}
	get(t, p.url+"/stale")
	trace := tr.take()
	if n := len(trace.Tries); n != 2 || trace.Tries[0].Reason != "backend_gone" || trace.Tries[0].Status != 0 || trace.Tries[1].Status != 200 || served.Load() != 2 {
		t.Errorf("%+v", trace)
	}
	get(t, p.url+"/rules")
	if sent := (<-got)["Traceparent"]; !slices.Equal(sent, []string{"mine"}) {
		t.Errorf("the server got %q", sent)
	}
	tr.take()
	c, br := dialUpgrade(t, p.addr, "")
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, br)
	if trace := tr.take(); trace.Status != 101 || trace.Path != "/ws" || trace.Method != http.MethodGet || len(trace.Tries) != 1 || trace.Tries[0].End.IsZero() {
		t.Errorf("%+v", trace)
	}
}

// TestTraceOfAClientThatLeavesDuringAnAccessCheck: its request has a span, too.
func TestTraceOfAClientThatLeavesDuringAnAccessCheck(t *testing.T) {
	asked := make(chan struct{}, 1)
	auth := newUpstream(t, serveHTTP(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	tr, lines := &traces{t: t}, &logLines{t: t}
	cfg := routeTo(newUpstream(t, "127.0.0.1:9"))
	cfg.Routes[0].ForwardAuth = &httpproxy.ForwardAuth{Upstream: auth, Timeout: patience}
	cfg.Tracer, cfg.AccessLog = tr, &httpproxy.AccessLog{To: lines}
	p := startProxy(t, cfg)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/x", nil)
		over := make(chan struct{})
		go func() {
			defer close(over)
			if resp, err := clientFor(t, proto).Do(req); err == nil {
				_ = resp.Body.Close()
			}
		}()
		<-asked
		cancel()
		<-over
		if trace := tr.take(); trace.Path != "/x" || trace.Status != 499 || trace.Reason != "client_gone" || len(trace.Tries) != 0 {
			t.Errorf("%s: %+v", proto, trace)
		}
		wantFields(t, lines.fields(), map[string]any{"status": 499, "reason": "client_gone"})
	}
}
