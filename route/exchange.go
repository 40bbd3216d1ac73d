package route

import (
	"mime/multipart"
	"net/http"
	"sync/atomic"
	"unsafe"

	"github.com/headpond/headpond/route/internal/bind"
	"github.com/headpond/headpond/route/internal/check"
	"github.com/headpond/headpond/route/internal/jsonplan"
)

// exchange is the pooled state of one request. Only the request's goroutine uses it, except gen, which any goroutine
// with a Ctx reads.
type exchange struct {
	// gen is the number of requests served. Ctx values of earlier requests have another number.
	gen atomic.Uint64

	ep    *Endpoint
	w     http.ResponseWriter
	r     *http.Request
	ctx   *Ctx // Ctx of this request, nil before the handler is called
	wrote bool
	named bool            // the body is a form: errors use the fields' form names
	form  *multipart.Form // parsed by this package; may have temporary files

	req, resp unsafe.Pointer // to the request and response values allocated with the exchange

	in, out []byte // body of the request and of the response
	decoder jsonplan.Decoder
	bad     []bind.Failure
	found   []check.Violation
	handles []Ctx // not handed out yet; each is used once
}

// handleCount is how many handles are allocated together. Each request uses a new one.
const handleCount = 64

// handle returns the Ctx of this request.
func (x *exchange) handle() *Ctx {
	if len(x.handles) == 0 {
		n := handleCount
		if poisoning || x.ep.unpooled {
			n = 1
		}
		x.handles = make([]Ctx, n)
	}
	c := &x.handles[0]
	x.handles = x.handles[1:]
	c.x, c.gen = x, x.gen.Load()
	x.ctx = c
	return c
}

// get returns an exchange for a request.
func (e *Endpoint) get(w http.ResponseWriter, r *http.Request) *exchange {
	var x *exchange
	if v := e.pool.Get(); v != nil {
		x = v.(*exchange)
	} else {
		x = e.make()
		x.ep = e
		x.decoder.MaxDepth, x.decoder.RefuseUnknown = e.maxDepth, e.refuseUnknown
	}
	x.w, x.r = w, r
	return x
}

// release ends the request and makes its Ctx values stale. With reuse the exchange returns to the pool.
func (x *exchange) release(reuse bool) {
	x.gen.Add(1)
	e := x.ep
	e.clear(x)
	if x.form != nil {
		_ = x.form.RemoveAll() // the system cleans up files that cannot be removed now
	}
	x.w, x.r, x.ctx, x.wrote, x.named, x.form = nil, nil, nil, false, false, nil
	if len(x.bad) > 0 || len(x.found) > 0 {
		clear(x.bad)
		clear(x.found)
		x.bad, x.found = x.bad[:0], x.found[:0]
	}
	if poisoning {
		poison(x.in)
		poison(x.out)
		x.decoder = jsonplan.Decoder{}
		return
	}
	if !reuse || e.unpooled {
		return
	}
	if cap(x.in) > maxKeptBuffer {
		x.in = nil
	}
	if cap(x.out) > maxKeptBuffer {
		x.out = nil
	}
	x.decoder.Forget(maxKeptBuffer)
	e.pool.Put(x)
}

// poison overwrites a buffer, so that references kept by mistake become visible.
func poison(b []byte) {
	b = b[:cap(b)]
	for i := range b {
		b[i] = 0xDB
	}
}
