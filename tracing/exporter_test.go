package tracing

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/httpproxy"
)

func testExporter(t *testing.T, url string, log io.Writer) *exporter {
	t.Helper()
	headers := []Header{{Name: "X-Key", Value: config.NewSecret("hidden")}}
	e, err := newExporter(&Settings{Endpoint: url, Queue: 8192, Service: "x", Headers: headers}, nil, slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func testTrace() *httpproxy.Trace {
	return &httpproxy.Trace{ID: httpproxy.TraceID{1}, Span: httpproxy.SpanID{2}, Start: time.Now(), End: time.Now(), Method: "GET", Status: 200}
}

// TestTextIsCut: of a long value only its begin is copied, and a character that is cut is none.
func TestTextIsCut(t *testing.T) {
	got := text("a" + strings.Repeat("é", 30<<10))
	if want := "a" + strings.Repeat("é", maxAttribute/2-1) + "\ufffd"; got != want {
		t.Errorf("%d bytes, want %d", len(got), len(want))
	}
	if n := testing.AllocsPerRun(10, func() { _ = text("short") }); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

// TestCloseEnds: an exporter whose collector never answers ends soon after the gateway has to: it sends nothing more, and leaves no goroutine.
func TestCloseEnds(t *testing.T) {
	var asked atomic.Int32
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer s.Close()
	defer close(stop)
	var log bytes.Buffer
	e := testExporter(t, s.URL, &log)
	for range 2000 {
		e.trace(testTrace())
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	e.close(over)
	select {
	case <-e.ended:
	default:
		t.Error("the queue's goroutine goes on")
	}
	if e.waiting() != 0 || e.failed.Load() != 2000 || asked.Load() > 1 {
		t.Errorf("%d spans wait, %d failed, in %d requests", e.waiting(), e.failed.Load(), asked.Load())
	}
	if !strings.Contains(log.String(), `"lost":2000`) {
		t.Errorf("log: %s", log.String())
	}
}

// TestAnswerIsNotKept: neither the log nor the status has the body of the collector's answer.
func TestAnswerIsNotKept(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusOK} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if status == http.StatusOK {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"partialSuccess":{"rejectedSpans":"1","errorMessage":"`+r.Header.Get("X-Key")+strings.Repeat("<", 1<<20)+`"}}`)
				return
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, r.Header.Get("X-Key")+strings.Repeat("<", 1<<20))
		}))
		var log bytes.Buffer
		e := testExporter(t, s.URL, &log)
		e.trace(testTrace())
		e.close(context.Background())
		s.Close()
		if text := e.status().Error; text == "" || len(text) > maxError || log.Len() > 1000 || strings.Contains(text+log.String(), "hidden") {
			t.Errorf("%d: error of %d bytes, log of %d: %.300s", status, len(text), log.Len(), text)
		}
	}
}

// TestURL: the path of a collector is added once.
func TestURL(t *testing.T) {
	for _, end := range []string{"", "/", "/v1/traces", "/v1/traces/"} {
		if got := (&Settings{Endpoint: "http://h:4318" + end}).url(); got != "http://h:4318/v1/traces" {
			t.Errorf("%q: %s", end, got)
		}
	}
}

// TestEnvironment: variables that set limits and certificates do not count.
func TestEnvironment(t *testing.T) {
	t.Setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "1")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-other=1")
	t.Setenv("OTEL_EXPORTER_OTLP_INSECURE", "false")
	var other atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { other.Store(r.Header.Get("X-Other") != "") }))
	defer s.Close()
	e := testExporter(t, s.URL, io.Discard)
	e.trace(testTrace())
	e.close(context.Background())
	if e.sent.Load() != 1 || other.Load() {
		t.Errorf("%d spans sent, header of the environment: %v", e.sent.Load(), other.Load())
	}
}
