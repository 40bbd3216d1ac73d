package tcpproxy_test

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/tcpproxy"
)

// TestResetTakenByAWrite: a write is told of a reset, and a read sees the end of the stream. That is the real end if a FIN came before.
func TestResetTakenByAWrite(t *testing.T) {
	for _, fin := range []bool{true, false} {
		l := conntest.Listen(t)
		client := conntest.Dial(t, l.Addr().String())
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if fin {
			_ = client.CloseWrite()
		}
		_ = client.SetLinger(0)
		_ = client.Close()
		want := map[bool]error{true: syscall.EPIPE, false: syscall.ECONNRESET}[fin]
		conntest.Eventually(t, "a write is told", func() bool {
			_, err = io.WriteString(c, "x")
			return err != nil
		})
		if !errors.Is(err, want) {
			t.Errorf("fin %v: the write is told %v, want %v", fin, err, want)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("fin %v: read %d, %v, want the end", fin, n, err)
		}
		if tcpproxy.ResetTaken(fiber.StreamOf(c)) == fin {
			t.Errorf("fin %v: a reset without a FIN before it: %v", fin, fin)
		}
		_ = c.Close()
	}
}
