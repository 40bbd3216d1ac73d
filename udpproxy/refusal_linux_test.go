package udpproxy_test

import (
	"errors"
	"net"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/udpproxy"
)

// fickle is a server that sends back what it gets, but refuses datagrams at times: its socket is connected to another one then.
type fickle struct {
	t    *testing.T
	conn *net.UDPConn
}

func newFickle(t *testing.T) *fickle {
	t.Helper()
	var conn *net.UDPConn
	for err := errors.New("none yet"); err != nil; { // bound to a number, so that it survives the end of a connection
		addr, _ := net.ResolveUDPAddr("udp", conntest.FreeAddress(t))
		if conn, err = net.ListenUDP("udp", addr); err != nil && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 100)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(b[:n], from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return &fickle{t, conn}
}

// refuse makes the server refuse datagrams, or take them again.
func (f *fickle) refuse(on bool) {
	f.t.Helper()
	sa := unix.RawSockaddrInet4{Family: unix.AF_UNSPEC}
	if on {
		sa = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: [4]byte{127, 0, 0, 1}, Port: 9 << 8}
	}
	raw, err := f.conn.SyscallConn()
	if err != nil {
		f.t.Fatal(err)
	}
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&sa)), unsafe.Sizeof(sa))
	})
	if err != nil || errno != 0 {
		f.t.Fatal(err, errno)
	}
}

// TestRefusalByEndpointThatAnswers: one refusal of an endpoint that has answered before, which may be forged, ends no session and is no
// failure, as long as the endpoint answers what the client sends next.
func TestRefusalByEndpointThatAnswers(t *testing.T) {
	s := newFickle(t)
	p := run(t, "127.0.0.1:0", before(s.conn.LocalAddr().String()), nil)
	c := client(t, p.address)
	sent := uint64(0)
	for range 5 {
		send(t, c, "a")
		want(t, c, "a")
		s.refuse(true)
		send(t, c, "refused")
		sent += 2
		conntest.Eventually(t, "it is forwarded", func() bool { return p.Datagrams().Forwarded == sent })
		s.refuse(false)
	}
	send(t, c, "b")
	want(t, c, "b")
	if st := p.Stats(); st.Accepted != 1 || st.Active != 1 || len(st.Errors) != 0 {
		t.Errorf("%d sessions, %d are left, errors %v", st.Accepted, st.Active, st.Errors)
	}
	if e := p.upstream.Status().Endpoints[0]; e.Failures != 0 {
		t.Errorf("%d failures of the endpoint", e.Failures)
	}
}

// TestReceiveEndsAtDeadline: the deadline counts also while there is always more to receive.
func TestReceiveEndsAtDeadline(t *testing.T) {
	err := udpproxy.ReceiveFlood(t)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the deadline's error", err)
	}
}
