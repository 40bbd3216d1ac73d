package fiber_test

import (
	"io"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
)

// TestAcked writes more than the sockets hold to a peer that reads late and in small pieces.
func TestAcked(t *testing.T) {
	const size = 16 << 20
	engines(t, func(t *testing.T, e *fiber.Engine) {
		near, peer := conntest.Pair(t, "tcp", "127.0.0.1:0")
		conn, err := e.Conn(near)
		if err != nil {
			t.Fatal(err)
		}
		c := fiber.StreamOf(conn)
		defer c.Close()
		defer peer.Close()
		before, all := c.Acked()
		if !all {
			t.Error("nothing was written, and not all of it is acknowledged")
		}
		wrote := make(chan error)
		go func() {
			_, err := c.Write(make([]byte, size))
			wrote <- err
		}()
		conntest.Eventually(t, "data waits for the peer", func() bool {
			_, all := c.Acked()
			return !all
		})
		n, _ := c.Acked()
		left, grew := size, 0
		for piece := make([]byte, 32<<10); left > 0; {
			m, err := peer.Read(piece)
			if err != nil {
				t.Fatal(err)
			}
			left -= m
			if now, _ := c.Acked(); now > n {
				n, grew = now, grew+1
			}
		}
		if grew < 10 {
			t.Errorf("the count grew %d times while the peer read %d bytes", grew, size)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		conntest.Eventually(t, "all is acknowledged", func() bool {
			n, all := c.Acked()
			return all && n == before+size
		})
		on(c, func() {
			if n, all := c.Acked(); !all || n != before+size {
				t.Errorf("on the connection's loop: %d of %d, %v", n-before, size, all)
			}
		})
	})
}

// TestAckedOfOthers asks connections that do not know: a unix socket and a closed connection.
func TestAckedOfOthers(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, network := range []string{"unix", "tcp"} {
			near, far := ends(t, network)
			conn, err := e.Conn(near)
			if err != nil {
				t.Fatal(err)
			}
			c := fiber.StreamOf(conn)
			if _, err := io.WriteString(c, "x"); err != nil {
				t.Fatal(err)
			}
			conntest.Want(t, far, "x")
			if network == "tcp" {
				_ = c.Close()
			}
			if n, all := c.Acked(); n != 0 || !all {
				t.Errorf("%s: %d, %v, want 0 and true", network, n, all)
			}
			_ = c.Close()
		}
	})
}
