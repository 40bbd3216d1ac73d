//go:build !race

package tcpproxy_test

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/enginetest"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/tcpproxy"
	"github.com/headpond/headpond/upstream"
)

// serveRaw answers one byte on each connection with one byte, and allocates nothing for that.
func serveRaw(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	_ = l.Close()
	fd := int(file.Fd()) // in blocking mode from now on
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(fd), 0, 0, unix.SOCK_CLOEXEC, 0, 0)
			if errno != 0 {
				return
			}
			var b [1]byte
			_, _ = unix.Read(int(c), b[:])
			_, _ = unix.Write(int(c), b[:])
			_, _ = unix.Read(int(c), b[:]) // the end
			_ = unix.Close(int(c))
		}
	}()
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RD) // ends accept4
		<-done
		_ = file.Close()
	})
	return address
}

// connectRaw connects to addr, exchanges one byte, and waits for the end after its own. It allocates nothing.
func connectRaw(t *testing.T, addr *unix.SockaddrInet4) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, addr); err != nil {
		t.Fatal(err)
	}
	b := [1]byte{'x'}
	if _, err := unix.Write(fd, b[:]); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{1, 0} { // the byte, then the end
		if n, err := unix.Read(fd, b[:]); n != want || err != nil {
			t.Fatalf("read %d bytes, want %d: %v", n, want, err)
		}
		_ = unix.Shutdown(fd, unix.SHUT_WR)
	}
}

// TestConnectionAllocatesLittle counts what a connection allocates that exchanges one byte with the backend. Each allocation costs the
// collector as well; the bounds are a tenth above what there is.
func TestConnectionAllocatesLittle(t *testing.T) {
	up, err := tcpproxy.NewUpstream("raw", tcpproxy.UpstreamOptions{
		Settings: upstream.Settings{Endpoints: upstream.Endpoints(serveRaw(t))}, Logger: quiet, Dial: enginetest.Dial, Go: fiber.Go,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	p, err := tcpproxy.New(tcpproxy.Config{Listener: listener.Config{Logger: quiet}, Upstream: up})
	if err != nil {
		t.Fatal(err)
	}
	l := enginetest.Listen(t)
	served := make(chan error, 1)
	go func() { served <- p.Serve(l) }()
	a := l.Addr().(*net.TCPAddr)
	addr := &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())}
	most := 27.0
	if enginetest.Kind() == fiber.Goroutine {
		most = 72
	}
	if n := testing.AllocsPerRun(500, func() { connectRaw(t, addr) }); n > most {
		t.Errorf("%v allocations for each connection, want at most %v", n, most)
	}
	p.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
