//go:build !linux

package udpproxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
)

// socketKind holds what was found out about a socket. Only Linux tells where a datagram was sent to; elsewhere the
// system chooses the source address of answers from a socket bound to any address.
type socketKind struct{ connected bool }

func (s *socket) prepare(connected, _ bool) error {
	s.kind.connected = connected
	return nil
}

func (s *socket) join() {}

// receiveAll calls handle with each packet. It returns nil when handle returns false, and otherwise the error when the
// read deadline has passed or the socket fails. The packet is valid during the call only. handle must not close s.
func (s *socket) receiveAll(handle func([]packet) bool) error {
	b := make([]byte, maxPacket)
	for {
		n, peer, err := s.conn.ReadFromUDPAddrPort(b)
		if err != nil {
			return err
		}
		p := packet{data: b[:n]}
		if !s.kind.connected {
			p.peer = netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
		}
		if !handle([]packet{p}) {
			return nil
		}
	}
}

// send sends packets to the peer of a connected socket, or to an address.
func (s *socket) send(packets []packet, to netip.AddrPort, _ place) (outcome sent) {
	for i := range packets {
		var err error
		if s.kind.connected {
			_, err = s.conn.Write(packets[i].data)
		} else {
			_, err = s.conn.WriteToUDPAddrPort(packets[i].data, to)
		}
		if err == nil {
			outcome.datagrams++
			outcome.bytes += len(packets[i].data)
			continue
		}
		outcome.dropped++
		outcome.err = err
	}
	return outcome
}

// interrupted reports whether receiveAll should be called again after an error.
func interrupted(err error) bool {
	return !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded)
}
