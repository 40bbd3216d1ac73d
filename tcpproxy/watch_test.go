package tcpproxy_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/tcpproxy"
)

// A session may stop a look at its connection in the middle, though the look asks the loop that the
// session runs on.
func TestWatchIsStoppedDuringALook(t *testing.T) {
	l := conntest.Listen(t)
	defer l.Close()
	conn, err := enginetest.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	looking, goOn := make(chan struct{}), make(chan struct{})
	w := tcpproxy.NewWatch(time.Nanosecond, func() time.Duration {
		close(looking)
		<-goOn
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Error(err)
			return 0
		}
		if err := raw.Control(func(uintptr) {}); err != nil {
			t.Error(err)
		}
		return 0
	})
	<-looking
	stopped := make(chan struct{})
	fiber.Spawn(conn, func() {
		defer close(stopped)
		close(goOn)
		w.Stop()
		_ = conn.Close()
	})
	<-stopped
}
