package httpproxy_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/headpond/headpond/fiber"
)

// holding is a server that answers 204. For /hold it reports the request and waits until the client no longer wants an
// answer.
func holding(t *testing.T) (backend string, asked chan struct{}) {
	t.Helper()
	asked = make(chan struct{}, 100)
	backend = serveHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			asked <- struct{}{}
			<-r.Context().Done()
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	return backend, asked
}

// held asks for n answers that do not come, from stream id on.
func (h *h2Client) held(id, n uint32, asked <-chan struct{}) {
	h.t.Helper()
	for i := range n {
		h.ask(id+2*i, true, ":method", "GET", ":scheme", "http", ":path", "/hold", ":authority", "a")
	}
	for range n {
		select {
		case <-asked:
		case <-time.After(patience):
			h.t.Fatal("the server was not asked")
		}
	}
}

// exchanged resets n streams from old on, and asks as often from id on, all at once.
func (h *h2Client) exchanged(old, id, n uint32) {
	h.t.Helper()
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	for i := range n {
		h.do(0, f.WriteRSTStream(old+2*i, http2.ErrCodeCancel))
	}
	for i := range n {
		h.do(0, f.WriteHeaders(http2.HeadersFrameParam{StreamID: id + 2*i, BlockFragment: h.fields(plainGet...), EndStream: true, EndHeaders: true}))
	}
	h.do(h.c.Write(b.Bytes()))
}

// answered reads until n streams have ended, and wants 204 of each.
func (h *h2Client) answered(n uint32) {
	h.t.Helper()
	for range n {
		f := h.next(func(f http2.Frame) bool {
			switch f.(type) {
			case *http2.MetaHeadersFrame, *http2.RSTStreamFrame, *http2.GoAwayFrame:
				return true
			}
			return false
		})
		if head, ok := f.(*http2.MetaHeadersFrame); !ok || head.PseudoValue("status") != "204" {
			h.t.Fatalf("got %v", f)
		}
	}
}

// TestHTTP2ResetAndAskAgain: a client that resets its streams may open as many others at once.
func TestHTTP2ResetAndAskAgain(t *testing.T) {
	const limit = 3
	backend, asked := holding(t)
	cfg := routeTo(newUpstream(t, backend))
	cfg.MaxStreams = limit
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	for id := uint32(1); id < 200; id += 4 * limit {
		h.held(id, limit, asked)
		h.exchanged(id, id+2*limit, limit)
		h.answered(limit)
	}
}

// stuckLog blocks callers that log a failed request.
type stuckLog struct {
	slog.Handler
	count *atomic.Int64
	free  *fiber.Group
}

// Enabled implements slog.Handler, and so do the others.
func (stuckLog) Enabled(context.Context, slog.Level) bool { return true }

func (l stuckLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "request failed" {
		l.count.Add(1)
		l.free.Wait()
	}
	return nil
}

func (l stuckLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l stuckLog) WithGroup(string) slog.Handler      { return l }

// TestHTTP2SlowUnwinding: streams that have ended for the client, but not for their sessions, make it wait; none is
// refused.
func TestHTTP2SlowUnwinding(t *testing.T) {
	const limit = 2
	backend, asked := holding(t)
	log := stuckLog{slog.DiscardHandler, new(atomic.Int64), new(fiber.Group)}
	log.free.Add(1)
	release := sync.OnceFunc(log.free.Done)
	defer release()
	cfg := routeTo(newUpstream(t, backend))
	cfg.MaxStreams = limit
	cfg.Listener.Logger = slog.New(log)
	p := startProxy(t, cfg)
	h := dialH2(t, p.addr)
	const first, second, third = 1, 1 + 2*limit, 1 + 4*limit
	for _, id := range []uint32{first, second} {
		h.held(id, limit, asked)
		if id == first {
			for i := range uint32(limit) {
				h.do(0, h.WriteRSTStream(id+2*i, http2.ErrCodeCancel))
			}
		}
	}
	h.exchanged(second, third, limit)
	eventually(t, "all sessions that were reset are held", func() bool { return log.count.Load() == 2*limit })
	release()
	h.answered(limit)
}
