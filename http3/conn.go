package http3

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	quichttp3 "github.com/quic-go/quic-go/http3"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/httpproxy"
)

// goAwayTimeout is how long a client may take to close its connection after GOAWAY, once it has no
// requests.
const goAwayTimeout = time.Second

// conn is a client's connection. Package listener handles it like other connections, but does not
// read or write it.
type conn struct {
	fiber.NoLoop
	q         *quic.Conn
	of        *Listener
	handshake *handshake
	state     tls.ConnectionState
	from      net.Addr
	left      chan struct{} // closed by Leave
	leave     sync.Once

	mu         sync.Mutex // held for a few instructions
	served     bool       // Carry was called
	open       int        // requests
	closeTimer *time.Timer
	idleTimer  *time.Timer // runs while no request is open
}

var (
	_ fiber.Stream      = (*conn)(nil)
	_ httpproxy.Carrier = (*conn)(nil)
)

func newConn(h *handshake, q *quic.Conn) *conn {
	return &conn{q: q, of: h.to, handshake: h, state: q.ConnectionState().TLS, from: q.RemoteAddr(), left: make(chan struct{})}
}

// Carry implements httpproxy.Carrier.
func (c *conn) Carry(h http.Handler) error {
	s := c.of.settings
	c.mu.Lock()
	c.served = true
	c.idleTimer = time.AfterFunc(s.Limits().ClientIdleTimeout, c.onIdle)
	c.mu.Unlock()
	server := &quichttp3.Server{
		MaxHeaderBytes: s.Limits().MaxHeaderBytes, Logger: s.Logger,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.count(1)
			defer c.count(-1)
			if r.Method == http.MethodConnect {
				t := &tunnelWriter{ResponseWriter: w}
				defer t.end()
				w = t
			}
			h.ServeHTTP(w, r)
		}),
	}
	var leaving sync.WaitGroup
	leaving.Go(func() { c.goAway(server) })
	err := server.ServeQUICConn(c.q)
	_ = c.Close()
	leaving.Wait()
	if normalEnd(err) {
		return nil
	}
	return err
}

// tunnelWriter is the http.ResponseWriter of an extended CONNECT (RFC 9220).
type tunnelWriter struct {
	http.ResponseWriter
	taken *quichttp3.Stream // by EndResponse; nil = it is quic-go's
}

var _ httpproxy.TunnelWriter = (*tunnelWriter)(nil)

// Unwrap returns what http.ResponseController uses.
func (t *tunnelWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// EndResponse implements httpproxy.TunnelWriter.
func (t *tunnelWriter) EndResponse() error {
	w, ok := t.ResponseWriter.(quichttp3.HTTPStreamer)
	if !ok {
		return errors.ErrUnsupported
	}
	t.taken = w.HTTPStream()
	return t.taken.Close()
}

// end ends a stream that was taken from quic-go, which ends others itself.
func (t *tunnelWriter) end() {
	if t.taken != nil {
		t.taken.CancelRead(quic.StreamErrorCode(quichttp3.ErrCodeNoError)) // nothing after its end
	}
}

// goAway sends GOAWAY after Leave, and returns when the connection has ended.
func (c *conn) goAway(server *quichttp3.Server) {
	select {
	case <-c.q.Context().Done():
		return
	case <-c.left:
	}
	_ = server.Shutdown(c.q.Context()) // returns when the connection has ended
}

// normalEnd reports whether err is the normal end of a connection.
func normalEnd(err error) bool {
	if idle, ok := errors.AsType[*quic.IdleTimeoutError](err); ok && idle != nil {
		return true
	}
	if e, ok := errors.AsType[*quichttp3.Error](err); ok {
		return !e.Remote || e.ErrorCode == quichttp3.ErrCodeNoError || e.ErrorCode == 0 // some clients close with 0
	}
	return err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed)
}

// count adds n to the number of requests in progress. A request counts when its head has arrived.
// quic-go has an idle timeout of its own, but stops it at the first byte of a stream, so that an
// incomplete head would keep the connection forever.
func (c *conn) count(n int) {
	c.mu.Lock()
	if c.open += n; c.open == 0 {
		c.idleTimer.Reset(c.of.settings.Limits().ClientIdleTimeout)
	} else {
		c.idleTimer.Stop()
	}
	c.mu.Unlock()
	c.closeIfDone()
}

// onIdle ends a connection that has had no requests for the client idle time-out. A client sends a
// request that it has just begun again, on another connection.
func (c *conn) onIdle() {
	c.mu.Lock()
	idle := c.open == 0
	c.mu.Unlock()
	if idle {
		c.Leave()
	}
}

// closeIfDone arranges that the connection is closed after goAwayTimeout, if Leave was called and
// it has no requests.
func (c *conn) closeIfDone() {
	select {
	case <-c.left:
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open > 0 && c.closeTimer != nil:
		c.closeTimer.Stop()
		c.closeTimer = nil
	case c.open == 0 && c.closeTimer == nil:
		c.closeTimer = time.AfterFunc(goAwayTimeout, func() { _ = c.Close() })
	}
}

// Leave implements httpproxy.Carrier.
func (c *conn) Leave() {
	c.leave.Do(func() { close(c.left) })
	c.closeIfDone()
}

// TLS implements httpproxy.Carrier.
func (c *conn) TLS() *tls.ConnectionState { return &c.state }

// Traffic implements httpproxy.Carrier.
func (c *conn) Traffic() (in, out uint64) {
	s := c.q.ConnectionStats()
	return s.BytesReceived, s.BytesSent
}

// Close ends the connection and its requests.
func (c *conn) Close() error {
	c.mu.Lock()
	served := c.served
	c.mu.Unlock()
	if !served { // the connection limit is reached, or the listener is closing
		return c.close(quichttp3.ErrCodeExcessiveLoad)
	}
	return c.close(quichttp3.ErrCodeNoError)
}

// Refuse implements httpproxy.Carrier.
func (c *conn) Refuse() { _ = c.close(quichttp3.ErrCodeExcessiveLoad) }

func (c *conn) close(code quichttp3.ErrCode) error {
	c.mu.Lock()
	if c.closeTimer != nil {
		c.closeTimer.Stop()
	}
	if c.idleTimer != nil {
		c.idleTimer.Stop()
	}
	c.mu.Unlock()
	return c.q.CloseWithError(quic.ApplicationErrorCode(code), "")
}

// State implements fiber.Stream.
func (c *conn) State() fiber.State {
	if c.Ended() {
		return fiber.Dead
	}
	return fiber.Unknown
}

// Ended implements fiber.Stream.
func (c *conn) Ended() bool { return c.q.Context().Err() != nil }

// PeerClosed implements fiber.Stream.
func (c *conn) PeerClosed() bool { return c.Ended() }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.q.LocalAddr() }

// RemoteAddr implements net.Conn. It returns the client's first address, which limits by address
// count, also after the client has moved to another address.
func (c *conn) RemoteAddr() net.Addr { return c.from }

// Read is not supported.
func (c *conn) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Write is not supported.
func (c *conn) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// CopyTo is not supported.
func (c *conn) CopyTo(net.Conn, func(int), func(int)) (readErr, writeErr error) {
	return errors.ErrUnsupported, errors.ErrUnsupported
}

// CloseWrite is not supported.
func (c *conn) CloseWrite() error { return errors.ErrUnsupported }

// SetDeadline does nothing.
func (c *conn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing.
func (c *conn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
