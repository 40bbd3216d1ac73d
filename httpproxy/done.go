package httpproxy

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// done counts and logs a failed request, and any request whose route has an access log.
func (p *Proxy) done(r *http.Request, t *target, user string, res httppool.Result) {
	upstream := t.name
	if res.Err != nil {
		p.failed(r, upstream, res)
	}
	if !p.srv.AccessLog() || t.route.NoAccessLog || !t.route.LogFilter.takes(res.Status, res.Err != nil, res.Duration) {
		return
	}
	attrs := []slog.Attr{
		slog.String("client", r.RemoteAddr), slog.String("method", r.Method), slog.String("host", withoutUser(r.Host)),
		slog.String("path", r.URL.Path), // without the query, which may hold secrets
		slog.String("proto", r.Proto), slog.Int("status", res.Status),
		slog.Int64("bytes_in", res.BytesIn), slog.Int64("bytes_out", res.BytesOut),
		slog.Duration("duration", res.Duration.Round(time.Microsecond)),
		slog.String("upstream", upstream), slog.String("endpoint", res.Endpoint), slog.Bool("reused", res.Reused),
	}
	if user != "" {
		attrs = append(attrs, slog.String("user", user))
	}
	if res.Retries > 0 {
		attrs = append(attrs, slog.Int("retries", res.Retries))
	}
	if res.Err != nil {
		attrs = append(attrs, slog.String("error", res.Err.Error()))
	}
	p.srv.Access(r.Context(), attrs...)
}

// failed counts and logs a failure: as a warning if the server caused it, as information if the client or an operator did.
func (p *Proxy) failed(r *http.Request, upstream string, res httppool.Result) {
	reason, level, note := reasonOf(res.Err), slog.LevelWarn, p.srv.Report
	switch reason {
	case listener.ReasonClientGone:
		level = slog.LevelInfo
	case listener.ReasonKilled: // it is counted when the operator ends the request or its connection
		level, note = slog.LevelInfo, p.srv.LogLimited
	}
	note(reason, level, "request failed", "client", r.RemoteAddr,
		"method", r.Method, "path", r.URL.Path, "status", res.Status, "upstream", upstream, "endpoint", res.Endpoint,
		"error", res.Err)
}

// reasonOf returns the reason under which an error is counted.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errKilled):
		return listener.ReasonKilled
	case errors.Is(err, httppool.ErrMalformedResponse), errors.Is(err, httppool.ErrInvalidRequest):
		return listener.ReasonProtocol
	case errors.Is(err, httppool.ErrServerGone):
		return listener.ReasonBackendGone
	case errors.Is(err, httppool.ErrClientGone), errors.Is(err, httppool.ErrRequestBody):
		return listener.ReasonClientGone
	}
	switch httppool.StatusOf(err) {
	case http.StatusServiceUnavailable:
		return listener.ReasonPoolExhausted
	case http.StatusGatewayTimeout:
		return listener.ReasonTimeout
	case http.StatusBadGateway:
		return listener.ReasonUpstreamUnavailable
	}
	return listener.ReasonClientGone
}

// refuse answers a request that goes to no upstream and has lasted so long, and counts and logs it. t is its route; nil =
// none.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, t *target, no refusal, lasted time.Duration) {
	if no.reason != "" && !no.counted {
		p.srv.Report(no.reason, slog.LevelInfo, "request refused", "client", r.RemoteAddr,
			"method", r.Method, "host", r.Host, "path", r.URL.Path, "status", no.status, "error", no.why)
	}
	if no.header == nil {
		httppool.WriteError(w, r, no.status, no.why)
	}
	p.countRefused(no.status)
	if t != nil && (t.route.NoAccessLog || !t.route.LogFilter.takes(no.status, no.reason != "", lasted)) {
		return
	}
	p.srv.Access(r.Context(), slog.String("client", r.RemoteAddr), slog.String("method", r.Method),
		slog.String("host", withoutUser(r.Host)), slog.String("path", r.URL.Path), slog.String("proto", r.Proto),
		slog.Int("status", no.status), slog.String("error", no.why))
}
