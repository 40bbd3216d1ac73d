package httpproxy

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/pool/httppool"
)

// gRPC's codes for answers of the proxy.
const (
	grpcDeadline        = 4
	grpcDenied          = 7
	grpcExhausted       = 8
	grpcUnimplemented   = 12
	grpcInternal        = 13
	grpcUnavailable     = 14
	grpcUnauthenticated = 16
)

// asksGRPC reports whether the request is a gRPC call: gRPC's clients understand only gRPC's form of errors.
func (s *session) asksGRPC() bool {
	for i := range s.req.Fields {
		if f := &s.req.Fields[i]; httpwire.EqualFold(f.Name, contentType) {
			return isGRPC(view(f.Value))
		}
	}
	return false
}

// grpcCode returns the gRPC code for a status.
func grpcCode(status int) int {
	switch status {
	case http.StatusUnauthorized:
		return grpcUnauthenticated
	case http.StatusForbidden:
		return grpcDenied
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return grpcUnimplemented
	case http.StatusRequestEntityTooLarge:
		return grpcExhausted
	case http.StatusGatewayTimeout:
		return grpcDeadline
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return grpcUnavailable
	}
	return grpcInternal
}

const (
	grpcTimeoutField = "grpc-timeout"
	maxTimeoutDigits = 8
)

// grpcTimeout returns the time-out in the value of a grpc-timeout field: up to eight digits and a unit. 0 = the value
// is invalid, or means centuries.
func grpcTimeout(value string) time.Duration {
	if len(value) < 2 || len(value) > maxTimeoutDigits+1 {
		return 0
	}
	last := len(value) - 1
	i := strings.IndexByte("HMSmun", value[last])
	n, err := strconv.ParseUint(value[:last], 10, 32)
	if i < 0 || err != nil {
		return 0
	}
	unit := [...]time.Duration{time.Hour, time.Minute, time.Second, time.Millisecond, time.Microsecond, time.Nanosecond}[i]
	if n > uint64(math.MaxInt64/unit) {
		return 0
	}
	return max(time.Duration(n)*unit, 1)
}

// appendGRPCMessage appends a text in the encoding of Grpc-Message.
func appendGRPCMessage(dst, text []byte) []byte {
	const hex = "0123456789ABCDEF"
	for _, c := range text {
		if c < ' ' || c > '~' || c == '%' {
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		} else {
			dst = append(dst, c)
		}
	}
	return dst
}

// inGRPC turns the answer into one without a body, with gRPC's status in its fields ("Trailers-Only" in gRPC's
// protocol).
func (a *answer) inGRPC() {
	text := a.body.Bytes()
	if n := len(text); n > 0 && text[n-1] == '\n' {
		text = text[:n-1]
	}
	a.header["Grpc-Status"] = []string{strconv.Itoa(grpcCode(a.status))}
	a.header["Grpc-Message"] = []string{string(appendGRPCMessage(nil, text))}
	a.header["Content-Type"] = []string{"application/grpc"}
	if after := a.header["Retry-After"]; len(after) == 1 { // in seconds
		a.header["Grpc-Retry-Pushback-Ms"] = []string{after[0] + "000"}
	}
	a.header["Content-Length"] = []string{"0"}
	delete(a.header, "X-Content-Type-Options")
	a.body.Reset()
	a.status = http.StatusOK
}

// breakGRPC ends a gRPC response that has broken off with trailers that say so, if the client can still get trailers. A
// reset would tell the client less.
func (s *session) breakGRPC(err error) {
	if s.stream == nil || s.resp.Length != httpwire.Chunked || !s.asksGRPC() {
		return
	}
	status, why := httppool.StatusOf(err), "the gateway has lost the server in the middle of its answer"
	switch {
	case status == http.StatusRequestEntityTooLarge:
		why = "the request is larger than the gateway accepts"
	case status < http.StatusInternalServerError:
		return
	}
	code := strconv.Itoa(grpcCode(status))
	_ = s.stream.endWith([]httpwire.Field{
		{Name: []byte("grpc-status"), Value: []byte(code)},
		{Name: []byte("grpc-message"), Value: []byte(why)},
	})
}

func (st *h2Stream) endWith(trailers []httpwire.Field) error {
	if !st.takeEnd() {
		return nil
	}
	if err := st.sendTrailers(trailers); err != nil {
		return err
	}
	return st.h.flush(st)
}
