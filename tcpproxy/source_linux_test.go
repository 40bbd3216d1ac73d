package tcpproxy_test

import (
	"io"
	"net"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

// TestGoneWhileQueued: connections that died in the queue never reach a backend; one that was half closed after a request does.
func TestGoneWhileQueued(t *testing.T) {
	p, addr, reached := counted(t, func(c *listener.Config) { c.MaxConns, c.QueueTimeout = 1, conntest.Patience })
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "first")
	queued := make([]*net.TCPConn, 9)
	for i := range queued {
		queued[i] = conntest.Dial(t, addr)
		conntest.Eventually(t, "the queue", func() bool { return p.Stats().Queued == i+1 })
	}
	waits := queued[4]
	for i, c := range queued {
		switch {
		case c == waits:
			_, _ = io.WriteString(c, "still here")
			_ = c.CloseWrite()
		case i%3 == 0: // a reset behind bytes
			_, _ = io.WriteString(c, "bytes")
			_ = c.SetLinger(0)
			_ = c.Close()
		case i%3 == 1:
			_ = c.SetLinger(0)
			_ = c.Close()
		default:
			_ = c.Close()
		}
	}
	conntest.Eventually(t, "the ends of the clients", func() bool { return conntest.Established(t, addr) == 1 })
	first.Close()
	conntest.Want(t, waits, "still here")
	_ = waits.Close()
	conntest.Eventually(t, "an empty queue", func() bool { st := p.Stats(); return st.Queued == 0 && st.Active == 0 })
	p.Close()
	st := p.Stats()
	if st.Errors[listener.ReasonClientGone] != uint64(len(queued)-1) || reached.Load() != 2 || st.Gone != uint64(len(queued)-1) || st.Rejected != 0 {
		t.Errorf("errors %v, %d gone, %d rejected, %d reached the backend; want 8 gone and 2 there", st.Errors, st.Gone, st.Rejected, reached.Load())
	}
}
