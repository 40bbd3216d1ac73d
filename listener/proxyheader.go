package listener

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	proxyproto "github.com/pires/go-proxyproto"
)

// ErrProxyHeader is wrapped by the error about a trusted peer that did not
// begin with a valid PROXY protocol header.
var ErrProxyHeader = errors.New("listener: no valid PROXY protocol header")

// headerBuffer holds a version 1 header (107 bytes at most) and every usual
// version 2 header; larger ones are read in several steps, up to
// proxyproto.MaxV2HeaderSize.
const headerBuffer = 256

// readProxyHeader reads the PROXY header c must begin with (the protocol is
// https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt) and puts its
// addresses on c; with the header's LOCAL command or an unknown family c keeps
// its own. Bytes that came after the header stay with c for its next Read.
func readProxyHeader(c *Conn, timeout time.Duration) error {
	br := bufio.NewReaderSize(c.raw, headerBuffer)
	header, err := proxyproto.ReadHeaderTimeout(c.raw, br, timeout)
	if err != nil {
		return fmt.Errorf("%w from %s: %w", ErrProxyHeader, c.raw.RemoteAddr(), err)
	}
	c.header = &proxyHeader{}
	if n := br.Buffered(); n > 0 {
		c.header.pending, _ = br.Peek(n) // br is dropped here, c keeps its buffer
	}
	if header.Command.IsLocal() || header.TransportProtocol.IsUnspec() {
		return nil
	}
	if !header.TransportProtocol.IsStream() {
		return fmt.Errorf("%w from %s: it announces a datagram protocol", ErrProxyHeader, c.raw.RemoteAddr())
	}
	c.header.remote, c.header.local = header.SourceAddr, header.DestinationAddr
	return nil
}

// trusts reports whether the PROXY header of a peer is to be read where headers
// are accepted.
func (c Config) trusts(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		_, unix := peer.(*net.UnixAddr)
		return unix
	}
	ip, ok := netip.AddrFromSlice(tcp.IP)
	if !ok {
		return false
	}
	ip = ip.Unmap()
	if len(c.TrustedProxies) == 0 {
		return ip.IsLoopback()
	}
	for _, p := range c.TrustedProxies {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
