package httppool

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headpond/headpond/pool"
)

// ErrClientGone: the client closed its connection before it had the whole response.
var ErrClientGone = errors.New("the client has gone")

// statusClientGone is the status in logs of a request whose client disconnected before an answer; it is never sent.
const statusClientGone = 499

// Bounds of Retry-After with 503, in seconds: long enough to matter, short enough for a pool whose load changes.
const (
	retryAfterLeast = 1
	retryAfterMost  = 30
)

// retryAfter returns when a client may try again, in seconds: when the pool of err would have served it. It adds up to
// half of that at random, so that clients that were refused together do not return together.
func retryAfter(err error) int {
	seconds := retryAfterLeast
	if pe, ok := errors.AsType[*pool.Error](err); ok {
		seconds = min(max(int((pe.Expected+time.Second-1)/time.Second), retryAfterLeast), retryAfterMost)
	}
	return seconds + rand.IntN(seconds/2+1)
}

// StatusOf returns the status that a gateway answers for an error of RoundTrip: 400 and 408 for the client's faults, 503
// if the pool has no free connection, 504 for time-outs of the server, 502 for every other failure of the server, and 499
// if the client disconnected.
func StatusOf(err error) int {
	var tooLarge *http.MaxBytesError
	var pe *pool.Error
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, ErrClientGone):
		return statusClientGone
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrRequestBody) && errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	case errors.Is(err, ErrRequestBody) || errors.Is(err, ErrInvalidRequest):
		return http.StatusBadRequest
	case errors.Is(err, pool.ErrOpen):
		return http.StatusBadGateway
	case errors.As(err, &pe):
		if pe.LastOpenError != nil && pe.InUse < pe.MaxSize || gaveUpOpening(err) {
			return http.StatusBadGateway
		}
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrClosed) || errors.Is(err, pool.ErrTimeout) || errors.Is(err, pool.ErrTooManyWaiters) || errors.Is(err, pool.ErrNoTime):
		return http.StatusServiceUnavailable
	case errors.Is(err, ErrResponseTimeout) || errors.Is(err, ErrIdleTimeout) || errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	}
	return http.StatusBadGateway
}

// gaveUpOpening reports whether the time to get a connection ended while one was being opened in a
// free slot of the pool.
func gaveUpOpening(err error) bool {
	pe, ok := errors.AsType[*pool.Error](err)
	return ok && errors.Is(pe.Kind, pool.ErrTimeout) && pe.Opening > 0 && pe.InUse < pe.MaxSize
}

// reasonOf returns the reason for clients; addresses and details are for the log.
func reasonOf(err error) string {
	switch status := StatusOf(err); {
	case status == http.StatusRequestTimeout:
		return "the request body did not arrive in time"
	case status == http.StatusRequestEntityTooLarge:
		return "the request body is too long"
	case status == http.StatusBadRequest:
		return "the request cannot be forwarded as it is"
	case errors.Is(err, pool.ErrClosed) || errors.Is(err, ErrClosed):
		return "shutting down"
	case errors.Is(err, pool.ErrTooManyWaiters):
		return "every connection is in use and too many requests wait for one"
	case errors.Is(err, pool.ErrNoTime):
		return "every connection is in use and none would become free in the time that the request has"
	case status == http.StatusServiceUnavailable:
		return "every connection is in use and none became free in time"
	case gaveUpOpening(err): // before the error of an earlier attempt, which err wraps, too
		return "cannot connect: it does not answer in time"
	case errors.Is(err, ErrResponseTimeout):
		return "no response in time"
	case status == http.StatusGatewayTimeout:
		return "the time allowed for the request is over"
	case errors.Is(err, ErrMalformedResponse):
		return "malformed response"
	case errors.Is(err, ErrNoUpgrade):
		return ErrNoUpgrade.Error()
	case errors.Is(err, ErrServerGone):
		return "the connection was closed without a response"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	}
	return reasonOfConnecting(err)
}

// reasonOfConnecting distinguishes what is repaired in different places: names, certificates, ports.
func reasonOfConnecting(err error) string {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return "the gateway has no file descriptors left"
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "cannot connect: its name cannot be resolved"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "cannot connect: its certificate is not accepted"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "cannot connect: it does not answer in TLS"
	}
	return "cannot connect"
}

// problem is the body of the proxy's own error answers. It has no server address: the log and Result have that.
type problem struct {
	Status    int    `json:"status"`
	Error     string `json:"error"`
	Upstream  string `json:"upstream,omitempty"`
	Reason    string `json:"reason"`
	RequestID string `json:"request_id,omitempty"`
}

// answerError sends an error answer, unless the client has gone. Nothing may have been sent yet.
func (p *passage) answerError(err error) {
	if StatusOf(err) != statusClientGone {
		p.closeIfUnread()
	}
	p.res.Status, p.res.BytesOut = WriteFailure(p.w, p.in, err, Failure{
		Upstream: p.h.cfg.Name, RequestIDField: p.h.cfg.RequestID, RequestID: p.id,
	})
}

// refuse answers a request that is not forwarded.
func (p *passage) refuse(status int, reason string) {
	p.res.Status = status
	p.write(problem{Status: status, Reason: reason})
}

func (p *passage) write(pr problem) {
	p.closeIfUnread()
	p.res.BytesOut = writeProblem(p.w, p.in, pr, p.h.cfg.RequestID, p.id)
}

// Failure is what an answer about a failed exchange contains besides the reason.
type Failure struct {
	Upstream       string
	RequestIDField string // "" = none
	RequestID      string
}

// WriteFailure answers r as a Handler does when the exchange failed with err before anything was sent, and returns the
// status and the bytes of body written. Nothing is written when the client has gone.
func WriteFailure(w http.ResponseWriter, r *http.Request, err error, f Failure) (status int, written int64) {
	status = StatusOf(err)
	if status == statusClientGone {
		return status, 0
	}
	if status == http.StatusServiceUnavailable {
		w.Header()["Retry-After"] = []string{strconv.Itoa(retryAfter(err))}
	}
	pr := problem{Status: status, Upstream: f.Upstream, Reason: reasonOf(err)}
	return status, writeProblem(w, r, pr, f.RequestIDField, f.RequestID)
}

// WriteError answers r with status and the reason, in the form of a Handler's own errors: JSON if the client prefers it,
// text otherwise.
func WriteError(w http.ResponseWriter, r *http.Request, status int, reason string) {
	writeProblem(w, r, problem{Status: status, Reason: reason}, "", "")
}

func writeProblem(w http.ResponseWriter, r *http.Request, pr problem, idField, id string) int64 {
	header := w.Header()
	if id != "" {
		header[idField] = []string{id}
		pr.RequestID = id
	}
	pr.Error = http.StatusText(pr.Status)
	var body bytes.Buffer
	if PrefersJSON(r.Header["Accept"]) {
		header["Content-Type"] = []string{"application/json; charset=utf-8"}
		_ = json.NewEncoder(&body).Encode(pr) // a struct of strings and numbers always encodes
	} else {
		header["Content-Type"] = []string{"text/plain; charset=utf-8"}
		pr.text(&body)
	}
	header["X-Content-Type-Options"] = []string{"nosniff"}
	header["Content-Length"] = []string{strconv.Itoa(body.Len())}
	w.WriteHeader(pr.Status)
	if r.Method == http.MethodHead {
		return 0
	}
	n, _ := w.Write(body.Bytes()) // the client may have gone
	return int64(n)
}

func (pr *problem) text(b *bytes.Buffer) {
	fmt.Fprintf(b, "%d %s: ", pr.Status, pr.Error)
	if pr.Upstream != "" {
		fmt.Fprintf(b, "upstream %q", pr.Upstream)
		b.WriteString(": ")
	}
	b.WriteString(pr.Reason)
	if pr.RequestID != "" {
		fmt.Fprintf(b, " (request %s)", pr.RequestID)
	}
	b.WriteByte('\n')
}

// PrefersJSON reports whether Accept fields rank JSON above text (RFC 9110, section 12.5.1): then errors are JSON.
func PrefersJSON(accept []string) bool {
	var jsonQ, textQ float64
	tokens(accept, func(item string) bool {
		kind, params, _ := strings.Cut(strings.ToLower(item), ";")
		q := 1.0
		if _, v, ok := strings.Cut(params, "q="); ok {
			if f, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
				q = f
			}
		}
		switch kind = strings.TrimSpace(kind); {
		case kind == "application/json" || strings.HasSuffix(kind, "+json"):
			jsonQ = max(jsonQ, q)
		case strings.HasPrefix(kind, "text/"):
			textQ = max(textQ, q)
		}
		return true
	})
	return jsonQ > textQ
}
