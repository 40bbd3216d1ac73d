package mux_test

import (
	"net"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/mux"
)

// TestLostBesideAReceiver: a receiver that reads the connection gets the beginning of a frame, and
// the connection is lost before the receiver looks at it. The session continues on another
// connection.
func TestLostBesideAReceiver(t *testing.T) {
	n := newLine(t, false, mux.Config{Resume: &mux.Resume{}})
	c, s := n.join(mux.Config{})
	here, there := channels(t, c, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for size := 0; size != 2; {
			m, err := there.Receive(bg)
			if err != nil {
				t.Error(err)
				return
			}
			size = m.Len()
			m.Release()
		}
	}()
	client, server := n.conns[0], n.conns[1].(*net.TCPConn)
	begin := func() {
		before := arrived(t, server)
		if _, err := client.Write([]byte{0}); err != nil {
			t.Error(err)
		}
		// Another frame may have woken the receiver before; then there is nothing to see.
		for start := time.Now(); time.Since(start) < time.Second; runtime.Gosched() {
			if arrived(t, server) > before && unread(t, server) == 0 {
				break
			}
		}
	}
	for lost := false; !lost; runtime.Gosched() { // the test's time limit bounds it
		if !mux.Leads(s) {
			if err := here.Send(bg, []byte("1")); err != nil {
				t.Fatal(err)
			}
		}
		_, sent, _, _ := mux.Numbers(c)
		lost = mux.LoseAfter(s, sent, begin)
	}
	if err := here.Send(bg, []byte("22")); err != nil {
		t.Fatal(err)
	}
	<-done
	if st := s.Stats(); st.Resumed != 1 {
		t.Errorf("%+v", st)
	}
	n.end(c, s)
}

// arrived is how many bytes have come on conn.
func arrived(t *testing.T, conn *net.TCPConn) (n uint64) {
	t.Helper()
	ask(t, conn, func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			n = info.Bytes_received
		}
		return err
	})
	return n
}

// unread is the number of unread ones.
func unread(t *testing.T, conn *net.TCPConn) (n int) {
	t.Helper()
	ask(t, conn, func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n
}

func ask(t *testing.T, conn *net.TCPConn, f func(fd int) error) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err == nil {
		var failed error
		if err = raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err == nil {
			err = failed
		}
	}
	if err != nil {
		t.Error(err)
	}
}
