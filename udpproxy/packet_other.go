//go:build !linux

package udpproxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
)

// socketKind is what is known of a socket. Answers of a socket for any address come from the one that the system
// chooses: only Linux tells us where a datagram was sent to.
type socketKind struct{ connected bool }

func (s *socket) prepare(connected, _ bool) error {
	s.kind.connected = connected
	return nil
}

func (s *socket) join() {}

// receiveAll calls handle with each packet until it returns false, and then returns nil; or until the read deadline has
// passed or the socket fails, and returns that error. The packet is valid during the call only. handle must not close s.
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

// send sends packets: to the peer of a connected socket, or else to an address.
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

// interrupted reports whether an error of receiveAll is worth another call.
func interrupted(err error) bool {
	return !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded)
}
