package httpproxy

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/headpond/headpond/listener"
)

// refusals notices requests that net/http answers itself, or not at all, because they cannot be understood: bytes came
// on a connection, and it ended without the handler having been called. It is safe for concurrent use.
type refusals struct {
	conns sync.Map // net.Conn → *unread
	note  func(net.Conn)
}

// unread is what is known of a connection's bytes that no handler has seen.
type unread struct {
	begun atomic.Bool   // a request has begun and was not handed to the handler yet
	seen  atomic.Uint64 // bytes received up to the end of the last request
}

type (
	unreadKey struct{}
	connKey   struct{}
)

// connContext is http.Server.ConnContext.
func (f *refusals) connContext(ctx context.Context, c net.Conn) context.Context {
	u := new(unread)
	f.conns.Store(c, u)
	return context.WithValue(context.WithValue(ctx, unreadKey{}, u), connKey{}, c)
}

// connState is http.Server.ConnState. A connection becomes active with a well-formed request only.
func (f *refusals) connState(c net.Conn, state http.ConnState) {
	v, ok := f.conns.Load(c)
	if !ok {
		return
	}
	u := v.(*unread)
	switch state {
	case http.StateActive:
		u.begun.Store(true)
	case http.StateIdle:
		u.begun.Store(false)
		u.seen.Store(received(c))
	case http.StateHijacked:
		f.conns.Delete(c)
	case http.StateClosed:
		f.conns.Delete(c)
		if u.begun.Load() || received(c) > u.seen.Load() {
			f.note(c)
		}
	}
}

// received is the number of bytes that came on c, as far as handed knows.
func received(c net.Conn) uint64 {
	if h, ok := c.(*handed); ok {
		return h.BytesIn()
	}
	return 0
}

// handled says that r has reached the handler.
func handled(r *http.Request) {
	if u, ok := r.Context().Value(unreadKey{}).(*unread); ok {
		u.begun.Store(false)
		u.seen.Store(allSeen)
	}
}

// allSeen stands for every byte while a handler runs: what it leaves of a body is no refused request.
const allSeen = ^uint64(0)

// noteRefused counts and logs a connection that ended with a request nobody could read.
func (p *Proxy) noteRefused(c net.Conn) {
	p.srv.Report(listener.ReasonProtocol, slog.LevelInfo, "request refused: malformed, incomplete, too large or too slow",
		"client", c.RemoteAddr().String())
}
