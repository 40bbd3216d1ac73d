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

// exchange is the pooled state of one request. Only the request's goroutine works on it; gen is read by any
// goroutine that holds a Ctx.
type exchange struct {
	// gen counts the requests served. Ctx values of earlier ones differ.
	gen atomic.Uint64

	ep    *Endpoint
	w     http.ResponseWriter
	r     *http.Request
	ctx   *Ctx // of this request, nil before the handler is called
	wrote bool
	named bool            // by a form: its fields have their form names
	form  *multipart.Form // that this package has read; it may have temporary files

	req, resp unsafe.Pointer // to the request and response values beside the exchange

	in, out []byte // body of the request and of the response
	decoder jsonplan.Decoder
	bad     []bind.Failure
	found   []check.Violation
	handles []Ctx // not handed out yet; each is used once
}

// handleCount is how many handles are allocated at a time. One is used for each request, never twice.
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

// release ends the request: every Ctx of it is stale from here on. With reuse the exchange goes back to
// the pool.
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

// poison overwrites a buffer, so that references kept by mistake are noticed.
func poison(b []byte) {
	b = b[:cap(b)]
	for i := range b {
		b[i] = 0xDB
	}
}
