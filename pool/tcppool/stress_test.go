//go:build unix

package tcppool_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

// rude answers each line with the same line, and now and then says more with it than it was asked for, or hangs up.
func rude(c net.Conn, rnd *rand.Rand) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			return
		}
		switch rnd.IntN(8) {
		case 0:
			_, err = io.WriteString(c, line+"and an unexpected line\n")
		case 1:
			_, _ = io.WriteString(c, line)
			return
		default:
			_, err = io.WriteString(c, line)
		}
		if err != nil {
			return
		}
	}
}

// TestBorrowersOfARudeServer: whatever a server does between loans, no borrower reads bytes of another's exchange. A
// borrower that has seen more than its answer closes.
func TestBorrowersOfARudeServer(t *testing.T) {
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("tls=%v", secure), func(t *testing.T) {
			cfg := tcppool.Config{Limits: &pool.Limits{MaxSize: 4, MinIdle: 1, CheckInterval: time.Millisecond, Overflow: pool.OverflowDirect}}
			var s *server
			var next func() (net.Conn, bool)
			if secure {
				ss := listenTLS(t, tls.VersionTLS13)
				s, cfg.TLS = ss.server, ss.client
				next = func() (net.Conn, bool) { c, ok := <-ss.ready; return c, ok }
			} else {
				s = listen(t)
				next = func() (net.Conn, bool) { c, ok := <-s.conns; return c, ok }
			}
			var serving sync.WaitGroup
			serving.Go(func() {
				for n := uint64(0); ; n++ {
					c, ok := next()
					if !ok {
						return
					}
					serving.Go(func() { rude(c, rand.New(rand.NewPCG(n, 1))) })
				}
			})
			d := dialer(t, cfg)
			var borrowing sync.WaitGroup
			for who := range 8 {
				borrowing.Go(func() {
					for i := range 12 {
						borrow(t, d, s, fmt.Sprintf("%d asks %d\n", who, i))
					}
				})
			}
			borrowing.Wait()
			if st := d.Stats()[0]; st.Reused == 0 {
				t.Errorf("nothing was reused: %+v", st)
			}
			d.Close()
			s.Listener.Close()
			serving.Wait()
		})
	}
}

// borrow asks one question on a connection, until one has answered: a server may have hung up.
func borrow(t *testing.T, d *tcppool.Dialer, s *server, question string) {
	for range 100 {
		c, err := d.Get(ctx, "tcp", s.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		answer := make([]byte, 256)
		n := 0
		if _, err = io.WriteString(c, question); err == nil {
			for n < len(question) && err == nil {
				var m int
				m, err = c.Read(answer[n:])
				n += m
			}
		}
		if err != nil && n == 0 {
			c.Close()
			continue
		}
		if string(answer[:min(n, len(question))]) != question {
			t.Errorf("asked %q, got %q", question, answer[:n])
		}
		if n == len(question) && err == nil {
			c.Release()
		} else {
			c.Close()
		}
		return
	}
	t.Errorf("no answer to %q", question)
}
