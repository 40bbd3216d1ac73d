package udpproxy

import (
	"net"
	"testing"
	"time"
)

// ReceiveFlood receives from a socket which has a full batch of datagrams each time that it is asked, whose deadline passes with the first batch.
func ReceiveFlood(t *testing.T) error {
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := newSocket(conn)
	if err != nil {
		t.Fatal(err)
	}
	fill := func() {
		for range batchSize {
			if _, err := conn.WriteTo([]byte("x"), conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill()
	return s.receiveAll(func([]packet) bool {
		_ = conn.SetReadDeadline(time.Unix(1, 0))
		fill()
		return true
	})
}
