package listener_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/internal/conntest"
	"github.com/headpond/headpond/listener"
)

func v2Header(t testing.TB, src, dst *net.TCPAddr) []byte {
	t.Helper()
	b, err := proxyproto.HeaderProxyFromAddrs(2, src, dst).Format()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestProxyHeaders(t *testing.T) {
	src, dst := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1234}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 80}
	for _, test := range []struct{ name, header, says string }{
		{"v1", "PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", "192.0.2.1:1234 192.0.2.2:80\n"},
		{"v1 IPv6", "PROXY TCP6 2001:db8::1 2001:db8::2 1234 80\r\n", "[2001:db8::1]:1234 [2001:db8::2]:80\n"},
		{"v1 unknown", "PROXY UNKNOWN\r\n", ""},
		{"v2", string(v2Header(t, src, dst)), "192.0.2.1:1234 192.0.2.2:80\n"},
		{"v2 local", "\r\n\r\n\x00\r\nQUIT\n\x20\x00\x00\x00", ""},
		{"v2 unspecified", "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x00", ""},
		{"v2 unspecified with parts", "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x05\x04\x00\x02xx", ""},
		{"v2 unspecified with addresses", "\r\n\r\n\x00\r\nQUIT\n\x21\x00\x00\x05abcde", ""},
		{"v2 local of an unknown family", "\r\n\r\n\x00\r\nQUIT\n\x20\xff\x00\x02ab", ""},
		{"v2 of the largest size", v2With(t, part(4, strings.Repeat("x", 4096-12-3))), "192.0.2.1:1234 192.0.2.2:80\n"},
		{"v2 with a checksum", summed(v2With(t, part(4, "noop"), part(3, "\x00\x00\x00\x00"), part(1, "h2"))), "192.0.2.1:1234 192.0.2.2:80\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, addr := start(t, listener.Config{AcceptProxy: true}, sayClient)
			c := conntest.Dial(t, addr)
			io.WriteString(c, test.header+"payload")
			if test.says == "" {
				test.says = c.LocalAddr().String() + " " + addr + "\n"
			}
			conntest.Want(t, c, test.says+"payload")
		})
	}
}

// part is a type-length-value part of a version 2 header.
func part(kind byte, value string) string {
	return string([]byte{kind, byte(len(value) >> 8), byte(len(value))}) + value
}

// v2With is a version 2 header with parts.
func v2With(t testing.TB, parts ...string) string {
	t.Helper()
	h := v2Header(t, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1234}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 80})
	all := strings.Join(parts, "")
	binary.BigEndian.PutUint16(h[14:], uint16(12+len(all)))
	return string(h) + all
}

// summed puts the checksum of a header into its part of zeros.
func summed(header string) string {
	sum := crc32.Checksum([]byte(header), crc32.MakeTable(crc32.Castagnoli))
	return strings.Replace(header, "\x03\x00\x04\x00\x00\x00\x00", "\x03\x00\x04"+string(binary.BigEndian.AppendUint32(nil, sum)), 1)
}

// TestProxyHeaderInPieces: a network may cut a header anywhere.
func TestProxyHeaderInPieces(t *testing.T) {
	for _, header := range []string{"PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\n", "PROXY UNKNOWN\r\n", summed(v2With(t, part(4, strings.Repeat("x", 500)), part(3, "\x00\x00\x00\x00")))} {
		for _, size := range []int{1, 5, 13, 100} {
			c, err := listener.ReadProxyHeader(&packets{data: []byte(header + "payload"), size: size}, time.Minute)
			if err != nil {
				t.Errorf("%.20q in pieces of %d bytes: %v", header, size, err)
				continue
			}
			if rest, err := io.ReadAll(c); string(rest) != "payload" || err != nil {
				t.Errorf("%.20q in pieces of %d bytes is followed by %q, %v", header, size, rest, err)
			}
		}
	}
}

func TestBadProxyHeaders(t *testing.T) {
	for _, header := range []string{
		"GET / HTTP/1.1\r\n\r\n",
		"PROXY TCP4 nonsense\r\n",
		"PROXY TCP4 192.0.2.1 192.0.2.2 1234 99999\r\n",
		"PROXY TCP4 " + string(bytes.Repeat([]byte("1"), 500)) + "\r\n",
		"\r\n\r\n\x00\r\nQUIT\n\x21\x12\x00\x0c\x01\x02\x03\x04\x05\x06\x07\x08\x00\x01\x00\x02", // UDP
		"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff",                                                 // 64 KiB of TLVs
		"\r\n\r\n\x00\r\nQUIT\n\x31\x11\x00\x0c",
		v2With(t, part(4, strings.Repeat("x", 4096-12-2))), // larger than the limit
		v2With(t, part(3, "\x00\x00\x00\x00")),             // a wrong checksum
		v2With(t, part(3, "\x00\x00")),                     // half of one
		v2With(t, "\x04"),                                  // half of a part
		v2With(t, "\x04\x00\x09short"),                     // a part that is longer than the header
		"P",
	} {
		s, addr := start(t, listener.Config{AcceptProxy: true}, sayClient)
		c := conntest.Dial(t, addr)
		io.WriteString(c, header)
		c.CloseWrite()
		conntest.WantGone(t, c)
		s.Close()
		if st := s.Stats(); st.Errors[listener.ReasonProxyHeader] != 1 || st.Rejected != 1 {
			t.Errorf("%q: rejected %d, errors %v, want 1", header, st.Rejected, st.Errors)
		}
	}
}

// TestLeavesBeforeHeader: clients that must send a header, and disconnect without sending anything, count the same
// before they are accepted and after.
func TestLeavesBeforeHeader(t *testing.T) {
	for name, leave := range map[string]func(c *net.TCPConn){
		"end":   func(c *net.TCPConn) { c.CloseWrite() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		for _, accepted := range []bool{true, false} {
			s, addr := start(t, listener.Config{AcceptProxy: true}, sayClient)
			c := conntest.Dial(t, addr)
			if accepted {
				conntest.Eventually(t, "the client is accepted", func() bool { return s.Stats().Accepted == 1 })
			}
			leave(c)
			conntest.Eventually(t, "the client is gone", func() bool { return s.Stats().Gone+s.Stats().Rejected == 1 })
			s.Close()
			if st := s.Stats(); st.Errors[listener.ReasonClientGone] != 1 || st.Errors[listener.ReasonProxyHeader] != 0 || st.Gone != 1 {
				t.Errorf("%s, accepted %t: %d gone, errors %v, want 1 gone", name, accepted, st.Gone, st.Errors)
			}
		}
	}
}

func TestUntrustedPeersHaveNoHeader(t *testing.T) {
	_, addr := start(t, listener.Config{
		AcceptProxy:    true,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")},
	}, sayClient)
	c := conntest.Dial(t, addr)
	const header = "PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n"
	io.WriteString(c, header)
	conntest.Want(t, c, c.LocalAddr().String()+" "+addr+"\n"+header)
}

func TestSilentProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		defer client.Close()
		start := time.Now()
		_, err := listener.ReadProxyHeader(server, 5*time.Second)
		if !errors.Is(err, listener.ErrProxyHeader) || time.Since(start) != 5*time.Second {
			t.Errorf("%v after %v, want ErrProxyHeader after 5s", err, time.Since(start))
		}
	})
}

// FuzzProxyHeader checks that no byte after a header is lost or added, however
// the input is cut into packets, and that a header that was accepted gives the
// addresses the library sees in the whole.
func FuzzProxyHeader(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1234 80\r\nrest"), uint8(3))
	f.Add(append(v2Header(f, &net.TCPAddr{IP: net.IPv6loopback, Port: 1}, &net.TCPAddr{IP: net.IPv6loopback, Port: 2}), "rest"...), uint8(200))
	f.Add([]byte("PROXY UNKNOWN\r\n"), uint8(255))
	f.Fuzz(func(t *testing.T, input []byte, cut uint8) {
		raw := &packets{data: input, size: int(cut) + 1}
		c, err := listener.ReadProxyHeader(raw, time.Minute)
		if err != nil {
			return
		}
		rest, err := io.ReadAll(c)
		if err != nil {
			t.Fatal(err)
		}
		header := input[:len(input)-len(rest)]
		if !bytes.HasSuffix(input, rest) || !bytes.HasPrefix(header, []byte("PROXY")) && !bytes.HasPrefix(header, proxyproto.SIGV2) {
			t.Fatalf("header %q, rest %q, of %q", header, rest, input)
		}
		if bytes.HasPrefix(header, []byte("PROXY")) != bytes.HasSuffix(header, []byte("\r\n")) && header[0] == 'P' {
			t.Fatalf("version 1 header %q does not end its line", header)
		}
		if c.RemoteAddr() == nil || c.LocalAddr() == nil {
			t.Fatal("no address")
		}
	})
}

// packets is a connection that delivers data in pieces.
type packets struct {
	net.Conn
	data []byte
	size int
}

func (p *packets) Read(b []byte) (int, error) {
	if len(p.data) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.data[:min(p.size, len(p.data))])
	p.data = p.data[n:]
	return n, nil
}
func (p *packets) RemoteAddr() net.Addr            { return &net.TCPAddr{} }
func (p *packets) LocalAddr() net.Addr             { return &net.TCPAddr{} }
func (p *packets) SetReadDeadline(time.Time) error { return nil }
