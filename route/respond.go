package route

import (
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"sync/atomic"
)

var jsonType = []string{typeJSON}

// request and response are pointers to the values, as codecs take them.
func (x *exchange) request() any  { return reflect.NewAt(x.ep.reqType, x.req).Interface() }
func (x *exchange) response() any { return reflect.NewAt(x.ep.respType, x.resp).Interface() }

// statusCode is the status of a response that is no error.
func (x *exchange) statusCode() int {
	if x.ctx.status != 0 {
		return x.ctx.status
	}
	if x.ep.statusOf != nil {
		if s := x.ep.statusOf(x); finalStatus(s) {
			return s
		} else if s != 0 {
			panic(fmt.Sprintf("route: HTTPStatus of %v returned %d, which is not the status of a response", x.ep.respType, s))
		}
	}
	if x.ep.created && x.r.Method == http.MethodPost {
		return http.StatusCreated
	}
	return x.ep.status
}

// respond encodes the response into the pooled buffer and writes it in one call.
func (x *exchange) respond() {
	e := x.ep
	var err error
	contentType := jsonType
	if codec := x.codec(); codec != nil {
		x.out, err = codec.Marshal(x.out[:0], x.response())
		contentType = []string{codec.ContentType}
	} else {
		x.out, err = e.encode.Append(x.out[:0], x.resp)
	}
	if err != nil {
		err = fmt.Errorf("encoding the response, %v: %w", e.respType, err)
		x.fail(&Problem{Status: http.StatusInternalServerError, Detail: internalDetail, Err: err})
		return
	}
	h := x.w.Header()
	if h["Content-Type"] == nil {
		h["Content-Type"] = contentType
	}
	if len(e.codecs) > 0 {
		h.Add("Vary", "Accept")
	}
	status := x.statusCode()
	if e.etag && status == http.StatusOK && x.notModified(h) {
		return
	}
	x.write(status)
}

// write sends x.out.
func (x *exchange) write(status int) {
	if status == http.StatusNoContent || status == http.StatusResetContent || status == http.StatusNotModified {
		delete(x.w.Header(), "Content-Type")
		x.writeHeader(status)
		return
	}
	x.w.Header()["Content-Length"] = contentLength(len(x.out))
	x.writeHeader(status)
	_, _ = x.w.Write(x.out) // on an error the client sees a broken connection
}

func (x *exchange) writeHeader(status int) {
	x.wrote = true
	x.w.WriteHeader(status)
}

// lengths are the values of Content-Length for short bodies, made when they are first needed. The
// slices are shared and never modified: they have no capacity to append to.
var lengths [4096]atomic.Pointer[[]string]

func contentLength(n int) []string {
	if n >= len(lengths) {
		return []string{strconv.Itoa(n)}
	}
	if v := lengths[n].Load(); v != nil {
		return *v
	}
	v := []string{strconv.Itoa(n)}
	lengths[n].Store(&v)
	return v
}
