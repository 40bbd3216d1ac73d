package httpproxy

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool/httppool"
)

// wanted returns a context for work before the request goes to a server, such as a request to an authentication server. It
// ends at the exchange's deadline, and when the client leaves: at once for a stream, within checkInterval for a connection.
// The caller calls stop when the work is done.
func (s *session) wanted() (ctx context.Context, stop func()) {
	parent, ends := s.leasing(), func() {}
	if !s.ex.until.IsZero() {
		parent, ends = context.WithDeadline(parent, s.ex.until)
	}
	ctx, cancel := context.WithCancelCause(parent)
	if st := s.stream; st != nil {
		st.cancels(cancel)
		return ctx, func() { st.cancels(nil); cancel(nil); ends() }
	}
	if int64(s.client.w-s.client.r-s.ex.size) < s.req.Length || s.req.Length < 0 { // the end of the stream may be the end of the body
		return ctx, func() { cancel(nil); ends() }
	}
	w := &watch{conn: s.client.conn, cancel: cancel}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(checkInterval, w.check)
	return ctx, func() { w.end(); cancel(nil); ends() }
}

// goneIn reports whether a context of wanted, or one derived from it, ended because the client left.
func goneIn(ctx context.Context) bool { return errors.Is(context.Cause(ctx), httppool.ErrClientGone) }

// watch checks at intervals whether the client of a connection has left.
type watch struct {
	conn   fiber.Stream
	cancel context.CancelCauseFunc

	mu    sync.Mutex // held for a few instructions, and not during calls to the connection's loop
	timer *time.Timer
	ended bool
}

// check runs on the timer's goroutine.
func (w *watch) check() {
	if w.conn.PeerClosed() {
		w.cancel(httppool.ErrClientGone)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.timer.Reset(checkInterval)
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.timer.Stop()
}
