package tunnel

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/mux"
)

// Conn is the dialling side's end of a connection through a tunnel. It is a net.Conn with CloseWrite like a TCP
// connection, and a fiber.Stream. Its methods may be called from any goroutine or fiber, but only one Read at a time.
type Conn struct {
	fiber.NoLoop
	st      *mux.Stream
	tunnel  string
	reached atomic.Bool // the target was reached; the byte that reports it is read
	abort   atomic.Bool // Close is a reset
}

var _ fiber.Stream = (*Conn)(nil)

// Read reads data of the target. The first Read reports whether the target was reached: the error
// wraps ErrRefused, ErrUnreachable or ErrBusy if it was not. io.EOF is the target's end; one that
// broke the connection gives ErrBroken.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err := c.st.Read(p)
		if err != nil {
			return 0, c.error(err)
		}
		if c.reached.Load() {
			return n, nil
		}
		if p[0] != connected {
			return 0, c.error(fmt.Errorf("%w: the stream begins with the byte %#02x", ErrProtocol, p[0]))
		}
		c.reached.Store(true)
		if n = copy(p, p[1:n]); n > 0 {
			return n, nil
		}
	}
}

// await waits until the target is reached.
func (c *Conn) await(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = c.st.SetReadDeadline(time.Unix(1, 0)) })
	var b [1]byte
	_, err := c.st.Read(b[:])
	switch {
	case !stop() && ctx.Err() != nil:
		return c.error(context.Cause(ctx))
	case err != nil:
		return c.error(err)
	case b[0] != connected:
		return c.error(fmt.Errorf("%w: the stream begins with the byte %#02x", ErrProtocol, b[0]))
	}
	c.reached.Store(true)
	return nil
}

// Write sends p to the target; data written before the target is reached waits for it.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.st.Write(p)
	if err != nil {
		err = c.error(err)
	}
	return n, err
}

// CloseWrite ends the sent data; the target's connection gets a FIN.
func (c *Conn) CloseWrite() error { return c.st.CloseWrite() }

// SetLinger makes Close break the target's connection with a reset if seconds is
// 0, as it does for a net.TCPConn; other values do nothing.
func (c *Conn) SetLinger(seconds int) error {
	c.abort.Store(seconds == 0)
	return nil
}

// Close ends both directions.
func (c *Conn) Close() error {
	if c.abort.Load() {
		c.st.Reset(codeBroken, "the client's connection broke")
	}
	return c.st.Close()
}

// Addr is the address of the end of a Conn.
type Addr struct{ Tunnel, Target string }

// Network is "tunnel".
func (a Addr) Network() string { return "tunnel" }

// String is the tunnel's name and the target.
func (a Addr) String() string { return a.Tunnel + "/" + a.Target }

// LocalAddr is the address of the tunnel's socket.
func (c *Conn) LocalAddr() net.Addr { return c.st.LocalAddr() }

// RemoteAddr is an [Addr].
func (c *Conn) RemoteAddr() net.Addr { return Addr{c.tunnel, c.st.Name()} }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(at time.Time) error { return c.st.SetDeadline(at) }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(at time.Time) error { return c.st.SetReadDeadline(at) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(at time.Time) error { return c.st.SetWriteDeadline(at) }

func (c *Conn) error(err error) error {
	if err = explain(err); err == nil || err == io.EOF {
		return err
	}
	return &Error{Tunnel: c.tunnel, Target: c.st.Name(), Err: err}
}

// State implements fiber.Stream. Before the first Read, which reports whether the target was reached (see Open),
// received data does not count: the connection is Silent unless it has ended.
func (c *Conn) State() fiber.State {
	state := c.st.State()
	if state == fiber.Pending && !c.reached.Load() {
		return fiber.Silent
	}
	return state
}

// CopyTo implements fiber.Stream, by reading and writing.
func (c *Conn) CopyTo(dst net.Conn, moved, _ func(n int)) (readErr, writeErr error) {
	return fiber.Copy(c, dst, moved)
}

// Detach returns the connection itself, which lives on no loop.
func (c *Conn) Detach() (conn net.Conn, ahead []byte, err error) { return c, nil, nil }

// Ended reports that the target, or the tunnel, has ended the connection, and that nothing before that is unread, not even the byte
// that says that the target was reached.
func (c *Conn) Ended() bool { return c.st.Ended() }

// PeerClosed is Ended, whether or not something before the end is unread.
func (c *Conn) PeerClosed() bool { return c.st.PeerClosed() }

// Acked is the mux stream's.
func (c *Conn) Acked() (n uint64, all bool) { return c.st.Acked() }

// Draining reports whether the session that carries the connection takes no more
// streams: one side drains it, or it is over. A connection that is idle in a pool
// should be closed then, because it would delay the drain.
func (c *Conn) Draining() bool { return c.st.Session().Draining() }
