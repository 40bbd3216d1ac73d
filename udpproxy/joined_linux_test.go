package udpproxy_test

import (
	"bytes"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/udpproxy"
)

// segment makes a socket send what is written to it as datagrams of a size, joined as far as into the kernel of the
// receiver. ok is false where the kernel cannot.
func segment(t *testing.T, c *net.UDPConn, size int) (ok bool) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) })
	return err == nil
}

// TestJoined: datagrams that the kernel has joined arrive one by one, whole and in order, in both directions, also
// those that are too long for the way when they are joined.
func TestJoined(t *testing.T) {
	const size, count, rounds = 1200, 10, 20
	echo, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	echoed := make(chan struct{})
	go func() { // collects the datagrams of a round and sends them back joined
		defer close(echoed)
		if !segment(t, echo, size) {
			t.Log("the kernel joins no datagrams")
		}
		b, all := make([]byte, 1<<16), []byte(nil)
		for {
			n, from, err := echo.ReadFromUDP(b)
			if err != nil {
				return
			}
			if all = append(all, b[:n]...); len(all) == count*size-100 {
				if _, err := echo.WriteToUDP(all, from); err != nil {
					t.Error(err)
				}
				all = all[:0]
			}
		}
	}()
	t.Cleanup(func() { _ = echo.Close(); <-echoed })
	p := run(t, "127.0.0.1:0", before(echo.LocalAddr().String()), nil)
	c := client(t, p.address)
	segment(t, c.(*net.UDPConn), size)
	b := make([]byte, 1<<16)
	for round := range rounds {
		text := bytes.Repeat(fmt.Appendf(nil, "%04d", round), count*size/4)[:count*size-100]
		if _, err := c.Write(text); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
		for i := range count {
			n, err := c.Read(b)
			want := text[i*size : min((i+1)*size, len(text))]
			if err != nil || !bytes.Equal(b[:n], want) {
				t.Fatalf("round %d, datagram %d: %d bytes, %v; want %d", round, i, n, err, len(want))
			}
		}
	}
	want := udpproxy.Datagrams{Received: rounds * count, Forwarded: rounds * count, Sent: rounds * count}
	conntest.Eventually(t, "not all are counted", func() bool { return p.Datagrams() == want })
}
