package tracing

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const (
	// batchSize bounds the spans of one request to the collector. It is OpenTelemetry's default.
	batchSize = 512
	// batchTime is how long spans wait for a batch to fill.
	batchTime = 2 * time.Second
	// sendTime bounds one request to the collector.
	sendTime = 10 * time.Second
	// closeTime bounds sending the last spans.
	closeTime = 3 * time.Second
	// cutTime bounds sending the last spans after the end of the context of close.
	cutTime = 500 * time.Millisecond
	// maxError bounds the stored and logged part of an error, in bytes.
	maxError = 200
	// maxAttribute bounds the values of attributes and the names of spans that clients choose, in bytes.
	maxAttribute = 2 << 10
	// reportPause is the least time between two log lines about lost spans.
	reportPause = time.Minute
)

// exporter sends spans to a collector. Its methods are safe for concurrent use.
type exporter struct {
	settings *Settings
	ca       []byte // the content of settings.CA
	logger   *slog.Logger
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	closing  sync.Once
	over     context.Context // cancelled when the time of close is over: nothing more is sent
	cancel   context.CancelFunc
	ended    chan struct{} // closed when the queue's goroutine has ended

	queued                atomic.Int64 // spans that wait for the collector
	sent, dropped, failed atomic.Uint64
	reported              atomic.Int64 // when lost spans were reported last, in nanoseconds since 1970; 0 = never
	lastError             atomic.Pointer[string]
}

func newExporter(s *Settings, ca []byte, logger *slog.Logger) (*exporter, error) {
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpointURL(s.url()), otlptracehttp.WithTimeout(sendTime), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
	}
	headers := map[string]string{}
	for _, h := range s.Headers {
		headers[h.Name] = h.Value.Reveal()
	}
	options = append(options, otlptracehttp.WithHeaders(headers))
	options = append(options, otlptracehttp.WithTLSClientConfig(tlsConfig(ca))) // also nil: it overrides the environment
	out, err := otlptracehttp.New(context.Background(), options...)
	if err != nil {
		return nil, err
	}
	e := &exporter{settings: s, ca: ca, logger: logger, ended: make(chan struct{})}
	e.over, e.cancel = context.WithCancel(context.Background())
	host, _ := os.Hostname()
	limits := sdk.SpanLimits{ // no limits: spans have few attributes, which text has cut. NewSpanLimits would read the environment
		AttributeValueLengthLimit: -1, AttributeValueDepthLimit: -1, AttributeCountLimit: -1, EventCountLimit: -1, LinkCountLimit: -1,
		AttributePerEventCountLimit: -1, AttributePerLinkCountLimit: -1,
	}
	e.provider = sdk.NewTracerProvider(
		sdk.WithSampler(sdk.AlwaysSample()), sdk.WithIDGenerator(ids{}), sdk.WithRawSpanLimits(limits),
		sdk.WithResource(resource.NewSchemaless(attribute.String("service.name", s.Service), attribute.String("host.name", host))),
		sdk.WithBatcher(&counted{e, out}, sdk.WithMaxQueueSize(s.Queue), sdk.WithMaxExportBatchSize(batchSize),
			sdk.WithBatchTimeout(batchTime), sdk.WithExportTimeout(sendTime)),
	)
	e.tracer = e.provider.Tracer("github.com/headpond/headpond/tracing")
	return e, nil
}

// room reserves places in the queue for spans. It reports false if there are not enough: the spans are
// lost.
func (e *exporter) room(spans int) bool {
	if e.queued.Add(int64(spans)) <= int64(e.settings.Queue) {
		return true
	}
	e.queued.Add(-int64(spans))
	e.dropped.Add(uint64(spans)) //nolint:gosec // counted
	e.report("spans come faster than the collector takes them")
	return false
}

// report logs that spans are lost, at most once in reportPause.
func (e *exporter) report(why string) {
	now, last := time.Now().UnixNano(), e.reported.Load()
	if last != 0 && now-last < int64(reportPause) || !e.reported.CompareAndSwap(last, now) {
		return
	}
	e.logger.Warn("spans of traces were lost", "endpoint", e.settings.url(), "dropped", e.dropped.Load(), "failed", e.failed.Load(), "error", why)
}

// waiting returns the number of spans that wait for the collector.
func (e *exporter) waiting() int { return int(e.queued.Load()) }

// close sends the waiting spans, and ends the exporter with its goroutine. It takes at most closeTime,
// and at most cutTime after the end of ctx. Later spans are lost.
func (e *exporter) close(ctx context.Context) {
	e.closing.Do(func() {
		within, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		defer context.AfterFunc(ctx, func() {
			hurry := time.NewTimer(cutTime)
			defer hurry.Stop()
			select {
			case <-hurry.C:
				cancel()
			case <-within.Done():
			}
		})()
		if err := e.provider.Shutdown(within); err != nil {
			e.logger.Warn("the last spans of traces were not sent", "endpoint", e.settings.url(), "lost", e.waiting(), "error", e.brief(err))
		}
		e.cancel() // Shutdown leaves a goroutine that still works on the queue
		<-e.ended
	})
}

// counted is an sdk.SpanExporter that counts.
type counted struct {
	e *exporter
	sdk.SpanExporter
}

// ExportSpans implements sdk.SpanExporter. It counts and logs errors itself: OpenTelemetry would pass
// them to a handler of the whole program.
func (c *counted) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := c.e.over.Err()
	if err == nil {
		within, stop := context.WithCancel(ctx)
		unlink := context.AfterFunc(c.e.over, stop)
		err = c.SpanExporter.ExportSpans(within, spans)
		unlink()
		stop()
	}
	n := uint64(len(spans))
	c.e.queued.Add(-int64(len(spans)))
	if err == nil {
		c.e.sent.Add(n)
		c.e.lastError.Store(nil)
		return nil
	}
	text := c.e.brief(err)
	c.e.failed.Add(n)
	c.e.lastError.Store(&text)
	c.e.report(text)
	return nil
}

// Shutdown implements sdk.SpanExporter. It is called once, after the last ExportSpans.
func (c *counted) Shutdown(ctx context.Context) error {
	defer close(c.e.ended)
	return c.SpanExporter.Shutdown(ctx)
}

// brief returns the stored and logged form of an error: short, without the body of the collector's
// answer, and without the values of headers, which the answer may repeat.
func (e *exporter) brief(err error) string {
	text, _, _ := strings.Cut(err.Error(), "body: ")
	for i := range e.settings.Headers {
		if secret := e.settings.Headers[i].Value.Reveal(); secret != "" {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxError)], "")
	if text = strings.TrimRight(text, " (:"); text == "" {
		return "the collector refused them"
	}
	return text
}
