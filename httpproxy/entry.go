package httpproxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/listener"
)

// entry is an HTTP/1 connection in the register of sessions. It is all that others know of the connection, and outlives its
// session, which is reused.
type entry struct {
	about   about
	p       *Proxy
	lc      *listener.Conn
	conn    fiber.Stream // lc, or TLS over it
	state   atomic.Int32 // sessionBusy and so on
	ending  sync.Mutex   // held by interrupt until its deadline is set
	session *session     // only for the session's own fiber or goroutine
}

var _ listener.Resumer = (*entry)(nil)

// Describe implements listener.Session.
func (e *entry) Describe(all []listener.Info, base listener.Info) []listener.Info {
	return append(all, e.about.describe(base))
}

// Kill implements listener.Session.
func (e *entry) Kill(stream uint64) bool {
	return stream == 0 && e.p.srv.KillConn(e.lc)
}

// Resume implements listener.Resumer.
func (e *entry) Resume(ctx context.Context, _ *listener.Conn) {
	e.session.ctx = ctx
	e.session.carry()
}

// interrupt ends the wait of an idle session. Any goroutine may call it once a drain has begun.
func (e *entry) interrupt() {
	e.ending.Lock()
	defer e.ending.Unlock()
	if e.state.CompareAndSwap(sessionIdle, sessionInterrupted) {
		_ = e.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// resist makes the session busy after an interrupt that a request has forestalled. The interrupt's deadline has been set then.
func (e *entry) resist() {
	e.ending.Lock()
	defer e.ending.Unlock()
	e.state.Store(sessionBusy)
}
