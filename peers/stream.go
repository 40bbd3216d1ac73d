package peers

import (
	"net"
	"sync"

	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/protocol"
)

// protocolTunnel is the protocol of streams that carry a session of package tunnel.
const protocolTunnel protocol.ID = "/headpond/tunnel/1"

// Addr is the address of the other end of a libp2p stream.
type Addr struct {
	Peer string // its proven ID
	Path string // the multiaddress of the connection
}

// Network returns "libp2p".
func (a Addr) Network() string { return "libp2p" }

// String returns the multiaddress, with the peer's ID.
func (a Addr) String() string { return a.Path + "/p2p/" + a.Peer }

// streamConn is a libp2p stream as a net.Conn.
type streamConn struct{ network.Stream }

var _ net.Conn = streamConn{}

// LocalAddr implements net.Conn.
func (c streamConn) LocalAddr() net.Addr {
	conn := c.Conn()
	return Addr{conn.LocalPeer().String(), conn.LocalMultiaddr().String()}
}

// RemoteAddr implements net.Conn.
func (c streamConn) RemoteAddr() net.Addr {
	conn := c.Conn()
	return Addr{conn.RemotePeer().String(), conn.RemoteMultiaddr().String()}
}

// streamListener is a net.Listener that accepts a host's streams of protocolTunnel. The resource
// manager bounds their number.
type streamListener struct {
	host    host.Host
	streams chan network.Stream
	done    chan struct{}
	closing sync.Once
}

func newStreamListener(h host.Host) *streamListener {
	l := &streamListener{host: h, streams: make(chan network.Stream), done: make(chan struct{})}
	h.SetStreamHandler(protocolTunnel, func(s network.Stream) {
		select {
		case l.streams <- s:
		case <-l.done:
			_ = s.Reset()
		}
	})
	return l
}

// Accept implements net.Listener.
func (l *streamListener) Accept() (net.Conn, error) {
	select {
	case s := <-l.streams:
		return streamConn{s}, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *streamListener) Close() error {
	l.closing.Do(func() {
		l.host.RemoveStreamHandler(protocolTunnel)
		close(l.done)
	})
	return nil
}

// Addr implements net.Listener.
func (l *streamListener) Addr() net.Addr { return Addr{Peer: l.host.ID().String()} }
