//go:build unix

package tcppool_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/headpond/headpond/internal/certs"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/pool/tcppool"
)

var versions = map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

// secureServer does the handshake of every connection and hands it to the test.
type secureServer struct {
	*server
	client *tls.Config // that trusts it
	ready  chan *tls.Conn
}

func listenTLS(t testing.TB, version uint16) *secureServer {
	t.Helper()
	cfg, client := certs.New().Configs()
	cfg.MinVersion, cfg.MaxVersion = version, version
	s := &secureServer{server: listen(t), client: client, ready: make(chan *tls.Conn, 100)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for c := range s.conns {
			v := &valve{Conn: c}
			if version == tls.VersionTLS13 {
				v.keep = 10 // of the ticket, which ends the flight: it comes after the handshake
			}
			tc := tls.Server(v, cfg)
			if tc.Handshake() != nil || v.open() != nil {
				c.Close()
				continue
			}
			s.ready <- tc
		}
		close(s.ready)
	})
	t.Cleanup(func() {
		s.Listener.Close()
		wg.Wait()
		for c := range s.ready {
			c.Close()
		}
	})
	return s
}

func (s *secureServer) accept(t testing.TB) *tls.Conn {
	t.Helper()
	c := <-s.ready
	t.Cleanup(func() { c.Close() })
	return c
}

// valve keeps the last bytes of each Write back.
type valve struct {
	net.Conn
	keep int
	kept []byte
}

func (v *valve) Write(p []byte) (int, error) {
	out := max(len(p)-v.keep, 0)
	v.kept = append(v.kept, p[out:]...)
	_, err := v.Conn.Write(p[:out])
	return len(p), err
}

func (v *valve) open() error {
	v.keep = 0
	_, err := v.Conn.Write(v.kept)
	return err
}

// watched dials, and shows the socket of the newest connection.
type watched struct{ conns chan net.Conn }

func (w *watched) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err == nil {
		w.conns <- c
	}
	return c, err
}

func watch() *watched { return &watched{make(chan net.Conn, 100)} }

func TestTLSSessionsAreResumed(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			s := listenTLS(t, version)
			d := dialer(t, tcppool.Config{TLS: s.client})
			for i := range 4 {
				c := get(t, d, s.server)
				remote := s.accept(t)
				exchange(t, c, remote)
				exchange(t, remote, c) // TLS 1.3's ticket comes before it
				if resumed := remote.ConnectionState().DidResume; resumed != (i > 0) {
					t.Errorf("connection %d: resumed is %v", i, resumed)
				}
				c.Close()
			}
		})
	}
}

// warm returns a connection in use and the server's end of another that waits in
// the pool, opened ahead of demand; await waits until that has something to read.
func warm(t *testing.T, s *secureServer) (d *tcppool.Dialer, used *tcppool.Conn, idle *tls.Conn, await func()) {
	t.Helper()
	w := watch()
	d = dialer(t, tcppool.Config{TLS: s.client, Dial: w.dial, Limits: &pool.Limits{MinIdle: 1, MaxSize: 2}})
	used = get(t, d, s.server)
	for range 2 {
		if remote := s.accept(t); remote.RemoteAddr().String() != used.LocalAddr().String() {
			idle = remote
		}
		if c := <-w.conns; c.LocalAddr().String() != used.LocalAddr().String() {
			await = readable(t, c)
		}
	}
	return d, used, idle, await
}

// TestTLSWarm: a connection opened ahead of demand has done the handshake, and a waiting TLS 1.3
// ticket is no reason to close it.
func TestTLSWarm(t *testing.T) {
	for name, version := range versions {
		t.Run(name, func(t *testing.T) {
			s := listenTLS(t, version)
			d, _, idle, await := warm(t, s)
			if version == tls.VersionTLS13 {
				await()
			}
			c := get(t, d, s.server)
			if n := opened(d); c.Reused() || n != 2 {
				t.Errorf("reused %v, %d opened", c.Reused(), n)
			}
			exchange(t, c, idle)
			exchange(t, idle, c)
			local := c.LocalAddr().String()
			if !c.Release() {
				t.Error("not kept")
			}
			if again := get(t, d, s.server); !again.Reused() || again.LocalAddr().String() != local {
				t.Error("not lent again")
			}
		})
	}
}

// TestTLSBanner: a server speaks first; the check of the connection loses none of it.
func TestTLSBanner(t *testing.T) {
	s := listenTLS(t, tls.VersionTLS13)
	d, _, idle, await := warm(t, s)
	if _, err := io.WriteString(idle, "220 hello\n"); err != nil {
		t.Fatal(err)
	}
	if err := idle.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await()
	c := get(t, d, s.server)
	if line, err := io.ReadAll(c); err != nil || string(line) != "220 hello\n" || opened(d) != 2 {
		t.Errorf("greeting %q, %v, %d opened", line, err, opened(d))
	}
	if c.Release() {
		t.Error("kept after its end")
	}
}

func TestTLSReleaseRefuses(t *testing.T) {
	for name, keep := range map[string]int{"a byte": 0, "part of a record": 9, "part of its header": 20} {
		t.Run(name, func(t *testing.T) {
			s, w := listenTLS(t, tls.VersionTLS13), watch()
			d := dialer(t, tcppool.Config{TLS: s.client, Dial: w.dial})
			c := get(t, d, s.server)
			await, remote := readable(t, <-w.conns), s.accept(t)
			exchange(t, c, remote)
			exchange(t, remote, c)
			remote.NetConn().(*valve).keep = keep // of 23
			if _, err := remote.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			await()
			if c.Release() {
				t.Error("kept")
			}
		})
	}
}

func TestTLSClosedWhileIdle(t *testing.T) {
	s, w := listenTLS(t, tls.VersionTLS13), watch()
	d := dialer(t, tcppool.Config{TLS: s.client, Dial: w.dial})
	c := get(t, d, s.server)
	await, remote := readable(t, <-w.conns), s.accept(t)
	exchange(t, c, remote)
	exchange(t, remote, c)
	if !c.Release() {
		t.Fatal("not kept")
	}
	remote.Close()
	await()
	if get(t, d, s.server).Reused() {
		t.Error("lent although the server has closed it")
	}
}

func TestTLSUntrusted(t *testing.T) {
	s := listenTLS(t, tls.VersionTLS13)
	d := dialer(t, tcppool.Config{TLS: &tls.Config{RootCAs: x509.NewCertPool()}})
	var unknown *tls.CertificateVerificationError
	if _, err := d.Get(ctx, "tcp", s.Addr().String()); !errors.Is(err, pool.ErrOpen) || !errors.As(err, &unknown) {
		t.Errorf("got %v", err)
	}
}
