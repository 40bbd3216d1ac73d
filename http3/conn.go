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

// byeTime is how long a client without requests may take to close its connection after GOAWAY.
const byeTime = time.Second

// conn is a client's connection. Package listener treats it like others, but nothing reads from it or writes to it.
type conn struct {
	fiber.NoLoop
	q         *quic.Conn
	of        *Listener
	handshake *handshake
	state     tls.ConnectionState
	from      net.Addr
	left      chan struct{} // closed by Leave
	leave     sync.Once

	mu     sync.Mutex // held for a few instructions
	served bool       // Carry was called
	open   int        // requests
	bye    *time.Timer
	idle   *time.Timer // runs while no request is open
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
	c.idle = time.AfterFunc(s.KeepAlive, c.idled)
	c.mu.Unlock()
	server := &quichttp3.Server{
		MaxHeaderBytes: s.MaxHeaderBytes, Logger: s.Logger,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c.count(1, s.KeepAlive)
			defer c.count(-1, s.KeepAlive)
			h.ServeHTTP(w, r)
		}),
	}
	var leaving sync.WaitGroup
	leaving.Go(func() { c.goAway(server) })
	err := server.ServeQUICConn(c.q)
	_ = c.Close()
	leaving.Wait()
	if harmless(err) {
		return nil
	}
	return err
}

// goAway sends GOAWAY once the connection should end, and returns when it has ended.
func (c *conn) goAway(server *quichttp3.Server) {
	select {
	case <-c.q.Context().Done():
		return
	case <-c.left:
	}
	_ = server.Shutdown(c.q.Context()) // returns when the connection is over
}

// harmless reports whether an error of a connection is a normal end.
func harmless(err error) bool {
	if idle, ok := errors.AsType[*quic.IdleTimeoutError](err); ok && idle != nil {
		return true
	}
	if e, ok := errors.AsType[*quichttp3.Error](err); ok {
		return !e.Remote || e.ErrorCode == quichttp3.ErrCodeNoError || e.ErrorCode == 0 // some clients close with 0
	}
	return err == nil || errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed)
}

// count counts the requests in progress. A stream counts once its head has arrived: quic-go's own time-out for connections
// without requests ends with the first byte of a stream, so an incomplete head would keep the connection forever.
func (c *conn) count(n int, keepAlive time.Duration) {
	c.mu.Lock()
	if c.open += n; c.open == 0 {
		c.idle.Reset(keepAlive)
	} else {
		c.idle.Stop()
	}
	c.mu.Unlock()
	c.end()
}

// idled ends a connection that has had no request for long. Clients repeat requests elsewhere that they begin meanwhile.
func (c *conn) idled() {
	c.mu.Lock()
	idle := c.open == 0
	c.mu.Unlock()
	if idle {
		c.Leave()
	}
}

// end closes the connection soon if it should end and has no requests.
func (c *conn) end() {
	select {
	case <-c.left:
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open > 0 && c.bye != nil:
		c.bye.Stop()
		c.bye = nil
	case c.open == 0 && c.bye == nil:
		c.bye = time.AfterFunc(byeTime, func() { _ = c.Close() })
	}
}

// Leave implements httpproxy.Carrier.
func (c *conn) Leave() {
	c.leave.Do(func() { close(c.left) })
	c.end()
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
	if !served { // a limit is reached, or the listener is about to end
		return c.close(quichttp3.ErrCodeExcessiveLoad)
	}
	return c.close(quichttp3.ErrCodeNoError)
}

// Refuse implements httpproxy.Carrier.
func (c *conn) Refuse() { _ = c.close(quichttp3.ErrCodeExcessiveLoad) }

func (c *conn) close(code quichttp3.ErrCode) error {
	c.mu.Lock()
	if c.bye != nil {
		c.bye.Stop()
	}
	if c.idle != nil {
		c.idle.Stop()
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

// RemoteAddr implements net.Conn. A client that moves to another address keeps the connection. The result is its first
// address, which limits by address count.
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
