package tcpproxy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
)

// TestSlowReader has clients that read without a pause, but a small part of the sockets' buffers within the time-out.
// A machine that stops for longer than the time-out looks like a client that does, so the time-out is longer in the next try.
func TestSlowReader(t *testing.T) {
	for name, set := range map[string]func(*tcpproxy.Config, time.Duration){
		"idle_timeout":        func(c *tcpproxy.Config, d time.Duration) { c.IdleTimeout = d },
		"server_idle_timeout": func(c *tcpproxy.Config, d time.Duration) { c.ServerIdleTimeout = d },
		"client_fin_timeout":  func(c *tcpproxy.Config, d time.Duration) { c.ClientFINTimeout = d },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for limit := time.Second; ; limit *= 4 {
				err := readSlowly(t, limit, func(c *tcpproxy.Config) {
					c.IdleTimeout = -1
					set(c, limit)
				})
				if err == nil {
					return
				}
				if limit > 30*time.Second {
					t.Fatalf("with %v: %v", limit, err)
				}
			}
		})
	}
}

// readSlowly asks for more than the buffers hold, reads some of it for three times as long as limit, and then everything.
func readSlowly(t *testing.T, limit time.Duration, set func(*tcpproxy.Config)) error {
	const size = 16 << 20
	backend := conntest.Serve(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
	})
	p, _ := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, set)
	l, err := enginetest.Listener(listenOutside(t))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := smallWindow.Dial("tcp", conntest.Run(t, l, p.Serve, p.Close))
	if err != nil {
		return err
	}
	c := conn.(*net.TCPConn)
	defer c.Close()
	if _, err := io.WriteString(c, "everything, please"); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	var n int64
	const pieces = 20 // within the time-out
	tick := time.NewTicker(limit / pieces)
	defer tick.Stop()
	for range 3 * pieces {
		<-tick.C
		m, err := io.CopyN(io.Discard, c, 8<<10)
		if n += m; err != nil {
			return fmt.Errorf("after %d bytes: %w; errors: %v", n, err, p.Stats().Errors)
		}
	}
	m, err := io.Copy(io.Discard, c)
	if n += m; err == nil && n != size {
		err = fmt.Errorf("the stream ended after %d of %d bytes; errors: %v", n, size, p.Stats().Errors)
	}
	return err
}

// smallWindow connects as a client on a slow line.
var smallWindow = net.Dialer{Control: func(_, _ string, conn syscall.RawConn) error {
	var err error
	return errors.Join(conn.Control(func(fd uintptr) {
		err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 16<<10),
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 1400))
	}), err)
}}

// listenOutside listens at an address of this machine that is not loopback's, whose connections have small buffers here.
func listenOutside(t *testing.T) net.Listener {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && ip.IP.IsGlobalUnicast() {
			if l, err := net.Listen("tcp", net.JoinHostPort(ip.IP.String(), "0")); err == nil {
				return l
			}
		}
	}
	return conntest.Listen(t) // there is none: the test is easier to pass
}

// TestTimeoutsReset: the part of an answer that came before a time-out must not look like the whole.
func TestTimeoutsReset(t *testing.T) {
	server, client := certs.New().Configs()
	for name, set := range map[string]func(*tcpproxy.Config){
		"idle_timeout":        func(c *tcpproxy.Config) { c.IdleTimeout = 100 * time.Millisecond },
		"client_idle_timeout": func(c *tcpproxy.Config) { c.ClientIdleTimeout = 100 * time.Millisecond },
		"server_idle_timeout": func(c *tcpproxy.Config) { c.ServerIdleTimeout = 100 * time.Millisecond },
		"stall_timeout":       func(c *tcpproxy.Config) { c.StallTimeout = 100 * time.Millisecond },
	} {
		for _, encrypted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %v", name, encrypted), func(t *testing.T) {
				hung := make(chan error, 1)
				backend := conntest.Serve(t, func(c *net.TCPConn) {
					_, err := c.Read(make([]byte, 1))
					_, err2 := io.WriteString(c, "the first half")
					_, err3 := io.Copy(io.Discard, c)
					hung <- errors.Join(err, err2, err3)
				})
				p, addr := start(t, []string{backend}, tcpproxy.UpstreamOptions{}, func(c *tcpproxy.Config) {
					c.IdleTimeout = -1
					if set(c); encrypted {
						c.TLS = server
					}
				})
				if conn, ok := connect(t, addr); ok {
					c := net.Conn(conn)
					if encrypted {
						c = tls.Client(c, client)
					}
					if err := halfAnswer(c); !wasReset(err) {
						t.Errorf("the client got %v, want a reset", err)
					}
				}
				if err := <-hung; !wasReset(err) {
					t.Errorf("the server got %v, want a reset", err)
				}
				conntest.Eventually(t, "the session is over", func() bool { return p.Stats().Active == 0 })
				if e := p.Stats().Errors; e[listener.ReasonTimeout] != 1 || len(e) != 1 {
					t.Errorf("errors: %v, want one timeout", e)
				}
			})
		}
	}
}

// halfAnswer asks, gets a part of the answer, asks again, and returns all errors.
func halfAnswer(c net.Conn) error {
	_, err := io.WriteString(c, "?")
	_, err2 := io.ReadFull(c, make([]byte, len("the first half")))
	_, err3 := io.WriteString(c, "!")
	_, err4 := io.Copy(io.Discard, c)
	return errors.Join(err, err2, err3, err4)
}
