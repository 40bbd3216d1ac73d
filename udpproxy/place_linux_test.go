package udpproxy_test

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/udpproxy"
)

// TestAnswersComeFromTheAddressAsked: a socket for any address answers each client from the address that it asked.
func TestAnswersComeFromTheAddressAsked(t *testing.T) {
	s := serve(t, "", false)
	for _, bound := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		p := run(t, bound, before(s.address), nil)
		_, port, _ := net.SplitHostPort(p.address)
		for _, host := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "::1"} {
			if host == "::1" && !hasIPv6() {
				t.Log("this machine has no ::1")
				continue
			}
			c := client(t, net.JoinHostPort(host, port))
			send(t, c, host)
			want(t, c, host) // its socket is connected and would not get it from elsewhere
		}
	}
}

// TestOnePortTwoAddresses: a client that sends from one port to two addresses of a socket has two sessions.
func TestOnePortTwoAddresses(t *testing.T) {
	s := serve(t, "", false)
	p := run(t, "0.0.0.0:0", before(s.address), nil)
	port := netip.MustParseAddrPort(p.address).Port()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, host := range []string{"127.0.0.2", "127.0.0.3"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(host), port)
		if _, err := c.WriteToUDPAddrPort([]byte(host), to); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		_ = c.SetReadDeadline(time.Now().Add(conntest.Patience))
		if n, from, err := c.ReadFromUDPAddrPort(b); err != nil || from != to || string(b[:n]) != host {
			t.Errorf("%q from %v, %v; want it from %v", b[:n], from, err, to)
		}
	}
	if n := p.Stats().Active; n != 2 {
		t.Errorf("%d sessions, want 2", n)
	}
}

// hasIPv6 reports whether ::1 is there.
func hasIPv6() bool {
	c, err := net.ListenPacket("udp6", "[::1]:0")
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// TestErrorsOfDatagrams: what ICMP says of one datagram, such as that it was too large for the path, ends no session.
func TestErrorsOfDatagrams(t *testing.T) {
	for _, err := range []error{syscall.EMSGSIZE, syscall.EPROTO, syscall.EACCES, syscall.ENOPROTOOPT, os.NewSyscallError("recvmmsg", syscall.EMSGSIZE)} {
		if !udpproxy.Interrupted(err) || udpproxy.Blames(err) {
			t.Errorf("%v: interrupted %v, blames %v, want the session to continue", err, udpproxy.Interrupted(err), udpproxy.Blames(err))
		}
	}
	for _, err := range []error{syscall.EBADF, net.ErrClosed, os.ErrDeadlineExceeded} {
		if udpproxy.Interrupted(err) {
			t.Errorf("%v is worth another call", err)
		}
	}
}
