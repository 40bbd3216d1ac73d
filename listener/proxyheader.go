package listener

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	proxyproto "github.com/pires/go-proxyproto"

	"github.com/headpond/headpond/fiber"
)

// ErrProxyHeader is wrapped by the error about a trusted peer that did not send a valid PROXY
// protocol header first.
var ErrProxyHeader = errors.New("listener: no valid PROXY protocol header")

// errNoByte means that the client ended its stream, or reset the connection, before it sent a byte.
var errNoByte = errors.New("the client disconnected without sending anything")

const (
	// headerBuffer holds a version 1 header and every usual version 2 header.
	headerBuffer = 256
	// maxHeaderV1 is the greatest length of a version 1 header (section 2.1).
	maxHeaderV1 = 107
	// maxHeaderV2 bounds the bytes of a version 2 header after its fixed part of headerV2 bytes.
	// The protocol allows 64 KiB. The largest field in use is a client's certificate, of about 2
	// KiB.
	maxHeaderV2 = 4096
	headerV2    = 16
)

// readProxyHeader reads the PROXY header that c must begin with, and sets the addresses of c to
// those in the header. After the command LOCAL, or with an unknown address family, c keeps its own
// addresses. The next Read of c returns the bytes after the header. The protocol is
// https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt.
func readProxyHeader(c *Conn, timeout time.Duration) error {
	if err := c.stream.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	raw, rest, err := cutHeader(c.stream)
	_ = c.stream.SetReadDeadline(time.Time{}) // an error is reported by the next read
	var header *proxyproto.Header
	if err == nil {
		header, err = parseHeader(raw)
	}
	if err != nil {
		return fmt.Errorf("%w from %s: %w", ErrProxyHeader, c.stream.RemoteAddr(), err)
	}
	c.header = &proxyHeader{source: fiber.Ahead(c.stream, rest), relayed: header.Version == 1 || !header.Command.IsLocal()} // version 1 has no commands
	if !header.Command.IsLocal() && !header.TransportProtocol.IsUnspec() {
		c.header.remote, c.header.local = header.SourceAddr, header.DestinationAddr
	}
	return nil
}

// cutHeader reads until it has a whole header. It returns the header, and the bytes that it has
// read after it.
func cutHeader(r io.Reader) (header, rest []byte, err error) {
	buf := make([]byte, 0, headerBuffer)
	for {
		n, err := headerLength(buf)
		switch {
		case err != nil:
			return nil, nil, err
		case n > 0 && len(buf) >= n:
			return buf[:n:n], buf[n:], nil
		}
		buf = slices.Grow(buf, max(n-len(buf), 0))
		m, err := r.Read(buf[len(buf):cap(buf)])
		switch buf = buf[:len(buf)+m]; {
		case len(buf) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
			return nil, nil, fmt.Errorf("%w: %w", errNoByte, err)
		case m == 0 && err != nil:
			return nil, nil, err
		}
	}
}

// headerLength returns the length of the header that b begins with, or 0 if b is too short to tell.
func headerLength(b []byte) (int, error) {
	switch v1, v2 := []byte("PROXY "), proxyproto.SIGV2; {
	case bytes.HasPrefix(b, v1):
		n := bytes.IndexByte(b[:min(len(b), maxHeaderV1)], '\n') + 1
		if n == 0 && len(b) >= maxHeaderV1 {
			return 0, fmt.Errorf("no line end within %d bytes", maxHeaderV1)
		}
		return n, nil
	case bytes.HasPrefix(b, v2) && len(b) >= headerV2:
		n := int(binary.BigEndian.Uint16(b[headerV2-2:]))
		if n > maxHeaderV2 {
			return 0, fmt.Errorf("its length is %d bytes, more than %d", n, maxHeaderV2)
		}
		return headerV2 + n, nil
	case bytes.HasPrefix(v1, b), bytes.HasPrefix(v2, b[:min(len(b), len(v2))]):
		return 0, nil
	}
	return 0, proxyproto.ErrNoProxyProtocol
}

// parseHeader parses a whole header, with the checks that the protocol requires of a receiver.
func parseHeader(raw []byte) (*proxyproto.Header, error) {
	if v2 := raw[0] != 'P'; v2 && (raw[12] == byte(proxyproto.LOCAL) || raw[12] == byte(proxyproto.PROXY) && raw[13] == byte(proxyproto.UNSPEC)) {
		// Section 2.2: the addresses are those of the connection; the family of LOCAL and the bytes after it are
		// ignored. The library is stricter.
		return &proxyproto.Header{Version: 2, Command: proxyproto.ProtocolVersionAndCommand(raw[12])}, nil
	}
	header, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(raw), len(raw)))
	if err != nil {
		return nil, err
	}
	if !header.TransportProtocol.IsStream() && !header.TransportProtocol.IsUnspec() {
		return nil, errors.New("it announces a datagram protocol")
	}
	if n := addressLength[header.TransportProtocol]; raw[0] != 'P' {
		return header, checkParts(raw, raw[headerV2+n:])
	}
	return header, nil
}

// addressLength has the number of bytes that the addresses of each family take in a version 2
// header.
var addressLength = map[proxyproto.AddressFamilyAndProtocol]int{proxyproto.TCPv4: 12, proxyproto.TCPv6: 36, proxyproto.UnixStream: 216}

// checkParts checks that the type-length-value fields of a version 2 header end where the header
// ends, and the checksum if there is one (sections 2.2.3 and 2.2.6).
func checkParts(raw, parts []byte) error {
	for len(parts) > 0 {
		if len(parts) < 3 || len(parts) < 3+int(binary.BigEndian.Uint16(parts[1:])) {
			return errors.New("a field of it extends beyond the header")
		}
		kind, value := proxyproto.PP2Type(parts[0]), parts[3:3+int(binary.BigEndian.Uint16(parts[1:]))]
		parts = parts[3+len(value):]
		if kind != proxyproto.PP2_TYPE_CRC32C {
			continue
		}
		if len(value) != crc32.Size {
			return errors.New("its checksum has a wrong length")
		}
		sum := binary.BigEndian.Uint32(value)
		clear(value) // the checksum is computed with zeros in its place
		if crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)) != sum {
			return errors.New("its checksum is wrong")
		}
	}
	return nil
}

// expectsHeader reports whether a connection must begin with a PROXY header.
func (c *Config) expectsHeader(conn *Conn) bool {
	if !c.AcceptProxy {
		return false
	}
	switch peer := conn.stream.RemoteAddr().(type) {
	case *net.TCPAddr:
		ip := addressOf(peer)
		return ip.IsValid() && c.expectsHeaderFrom(ip)
	case *net.UnixAddr:
		return true
	}
	return false
}

// expectsHeaderFrom is like expectsHeader, for a peer with an IP address. The zero Addr is a peer
// on a Unix socket.
func (c *Config) expectsHeaderFrom(ip netip.Addr) bool {
	if !c.AcceptProxy || !ip.IsValid() {
		return c.AcceptProxy
	}
	if len(c.TrustedProxies) == 0 {
		return ip.IsLoopback()
	}
	return Within(c.TrustedProxies, ip)
}
