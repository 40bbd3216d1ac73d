package tcpproxy_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// TestGoneBeforeAcceptReachesNoBackend: clients that reset their connections while they wait to be accepted cost no connection to a backend.
func TestGoneBeforeAcceptReachesNoBackend(t *testing.T) {
	var room listener.Room
	room.Resize(1)
	p, addr, reached := counted(t, func(c *listener.Config) { c.Room = &room })
	first := conntest.Dial(t, addr)
	conntest.Exchange(t, first, "the only one that is accepted")
	const n = 300
	for i := range n {
		c := conntest.Dial(t, addr)
		if i%2 == 0 {
			_, _ = io.WriteString(c, "bytes")
		}
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	half := conntest.Dial(t, addr)
	_ = half.CloseWrite()
	conntest.Eventually(t, "the ends of the clients", func() bool { return conntest.Established(t, addr) == 1 })
	room.Resize(0)
	conntest.WantGone(t, half)                            // the backend has seen its end, and ended
	conntest.Exchange(t, conntest.Dial(t, addr), "after") // behind all others
	if st := p.Stats(); reached.Load() != 3 || st.Gone != n || st.Rejected != 0 || st.Errors[listener.ReasonClientGone] != n {
		t.Errorf("%d have reached the backend, %d are gone, errors %v; want 3 and %d", reached.Load(), st.Gone, st.Errors, n)
	}
}

// TestHonestClientsDuringFloods are all answered, while thousands of others connect and leave, and every connection is accounted for.
func TestHonestClientsDuringFloods(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"resets": func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
		"ends":   func(c *net.TCPConn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			backend := conntest.Serve(t, conntest.Echo)
			p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, nil)
			kept := conntest.Dial(t, addr)
			var flood sync.WaitGroup
			done := make(chan struct{})
			for range 2 {
				flood.Go(func() {
					for range 1500 {
						select {
						case <-done:
							return
						default:
						}
						if c, err := net.Dial("tcp", addr); err == nil {
							leave(c.(*net.TCPConn))
						}
					}
				})
			}
			for range 30 {
				conntest.Exchange(t, kept, "a session that runs")
				c := conntest.Dial(t, addr)
				conntest.Exchange(t, c, "a new one")
				_ = c.Close()
			}
			close(done)
			flood.Wait()
			_ = kept.Close()
			last := conntest.Dial(t, addr)
			conntest.Exchange(t, last, "behind the flood")
			_ = last.Close()
			conntest.Eventually(t, "no session is left", func() bool { return p.Stats().Active == 0 })
			if st := p.Stats(); st.Rejected != 0 || st.Gone > st.Errors[listener.ReasonClientGone] {
				t.Errorf("%d rejected, %d gone, errors %v", st.Rejected, st.Gone, st.Errors)
			}
		})
	}
}
