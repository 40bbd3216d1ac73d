package fiber_test

import (
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestSent: data that is queued when the peer's reset arrives has not been sent; data that the peer's system has taken
// has been.
func TestSent(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, tc := range []struct {
			name string
			size int
		}{{"small", 10}, {"gathered", 8 << 10}, {"large", 64 << 10}} {
			t.Run(tc.name, func(t *testing.T) {
				c, peer := halves(t, e)
				if c == nil {
					return
				}
				go func() { _, _ = io.CopyN(peer, peer, 1) }()
				on(c, func() {
					conntest.Exchange(t, c, "x")
					if !c.Sent() {
						t.Error("the data that was echoed has not been sent")
					}
					c.MarkSent()
					if c.Sent() {
						t.Error("something has been sent since MarkSent")
					}
					reset(peer)
					for !c.PeerClosed() {
					}
					_, _ = c.Write(make([]byte, tc.size))
					_, _ = c.Read(make([]byte, 1))
					_ = c.Close()
					if c.Sent() {
						t.Error("a message has been sent after the peer's reset")
					}
				})
				if c.Sent() {
					t.Error("Sent reports to a goroutine that a message has been sent")
				}
			})
		}
	})
}

// TestSentInPart: a message that the peer has a part of has been sent, also while the rest waits for room.
func TestSentInPart(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		c, peer := halves(t, e)
		if c == nil {
			return
		}
		c.MarkSent()
		written := make(chan error)
		fiber.Spawn(c, func() {
			_, err := c.Write(make([]byte, 16<<20))
			written <- err
		})
		if _, err := peer.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		reset(peer)
		if err := <-written; err == nil {
			t.Error("16 MiB were written to a peer that has reset the connection")
		}
		_ = c.Close()
		if !c.Sent() {
			t.Error("nothing has been sent")
		}
	})
}

// halves returns an engine's connection to a socket of package net; nil if the engine's connections are those, too:
// they take or refuse written data at once.
func halves(t *testing.T, e *fiber.Engine) (fiber.Stream, *net.TCPConn) {
	t.Helper()
	near, far := conntest.Pair(t, "tcp", "127.0.0.1:0")
	conn, err := e.Conn(near)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), far.Close() })
	c, _ := conn.(fiber.Stream)
	return c, far.(*net.TCPConn)
}

// reset has the peer reset the connection.
func reset(peer *net.TCPConn) {
	_ = peer.SetLinger(0)
	_ = peer.Close()
}
