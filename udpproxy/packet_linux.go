package udpproxy

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// batchSize bounds the packets that one system call receives or sends. A larger batch saves little: with 32 the call is
// a small part of a datagram's cost.
const batchSize = 32

// socketKind holds what was found out about a socket.
type socketKind struct {
	six       bool        // its addresses are IPv6, with IPv4 in mapped form
	connected bool        // it has one peer
	noJoined  atomic.Bool // the interface cannot send joined packets
}

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// ancillary is room for a packet's control messages: the local address (40 bytes) and the size of joined datagrams
// (24).
type ancillary [128]byte

// receiver is room for a batch of packets. One goroutine at a time uses it.
type receiver struct {
	hdrs    [batchSize]mmsghdr
	iovs    [batchSize]unix.Iovec
	names   [batchSize]unix.RawSockaddrInet6
	control [batchSize]ancillary
	packets [batchSize]packet
	buffers []byte // of maxPacket each; only pages that were written to use memory
	dirty   int    // number of headers that the last receive has changed
}

var receivers = sync.Pool{New: func() any {
	r := &receiver{buffers: make([]byte, batchSize*maxPacket), dirty: batchSize}
	for i := range r.hdrs {
		r.iovs[i].Base = &r.buffers[i*maxPacket]
		r.iovs[i].SetLen(maxPacket)
		h := &r.hdrs[i].hdr
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		h.Control = &r.control[i][0]
	}
	return r
}}

// prepare finds out the kind of s, and asks the kernel for the local address of each packet if s has several addresses.
func (s *socket) prepare(connected, wildcard bool) (err error) {
	s.kind.connected = connected
	if connected { // all packets come from one sender
		return nil
	}
	failed := s.raw.Control(func(fd uintptr) {
		domain, e := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err = e; e != nil {
			return
		}
		s.kind.six = domain == unix.AF_INET6
		switch {
		case !wildcard:
		case s.kind.six:
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		default:
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
	})
	return errors.Join(failed, err)
}

// join asks the kernel to join datagrams. Kernels before 5.0 cannot, and deliver them one by one.
func (s *socket) join() {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) })
}

// receiveAll calls handle with each batch of packets. It returns nil when handle returns false, and otherwise the error
// when the read deadline has passed or the socket fails. The packets are valid during the call only. handle must not
// close s.
func (s *socket) receiveAll(handle func([]packet) bool) error {
	var failed error
	for again := true; again; {
		again = false
		err := s.raw.Read(func(fd uintptr) (over bool) {
			over, again, failed = receiveSome(int(fd), handle)
			return over
		})
		if failed = errors.Join(failed, err); failed != nil {
			return failed
		}
	}
	return nil
}

// maxBatches bounds the full batches that are received before the deadline and Close are checked; if the sender is
// faster than handle, batches never end.
const maxBatches = 4

// receiveSome receives the packets that have arrived. over is false to wait for more; again says that more may have
// arrived.
func receiveSome(fd int, handle func([]packet) bool) (over, again bool, err error) {
	r := receivers.Get().(*receiver) //nolint:forcetypeassert // the pool has no others
	defer receivers.Put(r)
	for full := 0; full < maxBatches; {
		n, err := r.receive(fd)
		switch {
		case err == unix.EAGAIN:
			return false, false, nil
		case err == unix.EINTR:
			continue
		case err != nil:
			return true, false, err
		}
		if !handle(r.packets[:n]) {
			return true, false, nil
		}
		if n < batchSize { // the socket was empty, and the poller reports later packets
			return false, false, nil
		}
		full++
	}
	return true, true, nil
}

// receive receives one batch of packets that have arrived.
func (r *receiver) receive(fd int) (int, error) {
	for i := range r.dirty {
		h := &r.hdrs[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(r.names[i]))
		h.SetControllen(len(r.control[i]))
	}
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.hdrs[0])), batchSize, unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		r.dirty = 1
		return 0, errno
	}
	r.dirty = int(n)
	for i := range r.dirty {
		r.packets[i] = packet{data: r.buffers[i*maxPacket:][:r.hdrs[i].n:r.hdrs[i].n]}
		r.describe(i)
	}
	return r.dirty, nil
}

// describe reads the sender and the control messages of packet i.
func (r *receiver) describe(i int) {
	p, h := &r.packets[i], &r.hdrs[i].hdr
	if h.Namelen > 0 {
		p.peer = addrPort(&r.names[i])
	}
	for b := r.control[i][:h.Controllen]; len(b) >= unix.SizeofCmsghdr; {
		hdr, data, rest, err := unix.ParseOneSocketControlMessage(b)
		if err != nil {
			return
		}
		switch {
		case hdr.Level == unix.IPPROTO_UDP && hdr.Type == unix.UDP_GRO && len(data) >= 4:
			p.size = int(binary.NativeEndian.Uint32(data))
		case hdr.Level == unix.IPPROTO_IPV6 && hdr.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			p.at = placeOf(netip.AddrFrom16([16]byte(data[:16])).Unmap(), binary.NativeEndian.Uint32(data[16:]))
		case hdr.Level == unix.IPPROTO_IP && hdr.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			// The local address that the packet came to, even if it was sent to a broadcast address.
			p.at = placeOf(netip.AddrFrom4([4]byte(data[4:8])), binary.NativeEndian.Uint32(data))
		}
		b = rest
	}
}

// placeOf returns a place that answers can be sent from, which excludes multicast addresses.
func placeOf(addr netip.Addr, index uint32) place {
	switch {
	case addr.IsMulticast(), addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return place{}
	case addr.IsLinkLocalUnicast() && addr.Is6():
		return place{addr, index}
	}
	return place{addr: addr}
}

// addrPort returns the address in a sockaddr of either IP version.
func addrPort(sa *unix.RawSockaddrInet6) netip.AddrPort {
	port := (*[2]byte)(unsafe.Pointer(&sa.Port)) // at the same offset in both
	if sa.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		return netip.AddrPortFrom(netip.AddrFrom4(four.Addr), binary.BigEndian.Uint16(port[:]))
	}
	addr := netip.AddrFrom16(sa.Addr).Unmap()
	if sa.Scope_id != 0 && addr.Is6() {
		addr = addr.WithZone(strconv.FormatUint(uint64(sa.Scope_id), 10))
	}
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(port[:]))
}

// sender is room for a batch of packets to send. One goroutine at a time uses it.
type sender struct {
	hdrs    [batchSize]mmsghdr
	iovs    [batchSize]unix.Iovec
	control [batchSize]ancillary
	name    unix.RawSockaddrInet6
	namelen uint32

	socket   *socket
	packets  []packet
	outcome  sent
	reported bool // the error of an earlier datagram was returned; the next error is the packet's own
	run      func(fd uintptr)
}

var senders = sync.Pool{New: func() any {
	t := &sender{}
	for i := range t.hdrs {
		t.hdrs[i].hdr.Iov = &t.iovs[i]
		t.hdrs[i].hdr.SetIovlen(1)
	}
	t.run = t.send
	return t
}}

// send sends packets without waiting: to the peer of a connected socket, or to an address from a place. Packets that do
// not fit into the socket's buffer are dropped.
func (s *socket) send(packets []packet, to netip.AddrPort, from place) sent {
	t := senders.Get().(*sender) //nolint:forcetypeassert // the pool has no others
	defer t.putBack()
	t.socket, t.outcome, t.reported = s, sent{}, false
	if !s.kind.connected {
		t.address(to)
	}
	for len(packets) > 0 {
		n := min(len(packets), batchSize)
		t.packets = packets[:n]
		packets = packets[n:]
		for i := range t.packets {
			t.fill(i, from)
		}
		if err := s.raw.Control(t.run); err != nil {
			t.drop(t.packets, err)
		}
	}
	return t.outcome
}

func (t *sender) putBack() {
	for i := range t.iovs {
		t.iovs[i].Base = nil
	}
	t.socket, t.packets, t.namelen = nil, nil, 0
	senders.Put(t)
}

// address writes the sockaddr that all packets share.
func (t *sender) address(to netip.AddrPort) {
	t.name = unix.RawSockaddrInet6{}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&t.name.Port))[:], to.Port())
	if !t.socket.kind.six {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&t.name))
		four.Family, four.Addr = unix.AF_INET, to.Addr().Unmap().As4()
		t.namelen = unix.SizeofSockaddrInet4
		return
	}
	t.name.Family, t.name.Addr = unix.AF_INET6, to.Addr().As16()
	if zone := to.Addr().Zone(); zone != "" {
		id, _ := strconv.ParseUint(zone, 10, 32)
		t.name.Scope_id = uint32(id)
	}
	t.namelen = unix.SizeofSockaddrInet6
}

// fill writes the header of a packet. The size of joined datagrams is the last control message; see sendSingly.
func (t *sender) fill(i int, from place) {
	p, h := &t.packets[i], &t.hdrs[i].hdr
	t.iovs[i].Base = unsafe.SliceData(p.data)
	t.iovs[i].SetLen(len(p.data))
	h.Name, h.Namelen = nil, t.namelen
	if t.namelen > 0 {
		h.Name = (*byte)(unsafe.Pointer(&t.name))
	}
	b := t.control[i][:0]
	if from.addr.IsValid() {
		b = t.socket.appendPlace(b, from)
	}
	if p.datagrams() > 1 {
		b = appendControl(b, unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
		binary.NativeEndian.PutUint16(b[len(b)-unix.CmsgSpace(2)+unix.CmsgLen(0):], uint16(p.size))
	}
	h.Control = nil
	if len(b) > 0 {
		h.Control = &t.control[i][0]
	}
	h.SetControllen(len(b))
}

// appendControl appends a control message with n bytes of zeros.
func appendControl(b []byte, level, kind int32, n int) []byte {
	at := len(b)
	b = b[:at+unix.CmsgSpace(n)]
	clear(b[at:])
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(n))
	return b
}

// appendPlace appends the control message for the address that a packet is sent from.
func (s *socket) appendPlace(b []byte, from place) []byte {
	if s.kind.six {
		b = appendControl(b, unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
		data := b[len(b)-unix.CmsgSpace(unix.SizeofInet6Pktinfo)+unix.CmsgLen(0):]
		addr := from.addr.As16()
		copy(data, addr[:])
		binary.NativeEndian.PutUint32(data[16:], from.index)
		return b
	}
	b = appendControl(b, unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
	data := b[len(b)-unix.CmsgSpace(unix.SizeofInet4Pktinfo)+unix.CmsgLen(0):]
	addr := from.addr.As4()
	copy(data[4:], addr[:])
	return b
}

// send sends the packets whose headers are filled.
func (t *sender) send(fd uintptr) {
	for i := 0; i < len(t.packets); {
		if t.packets[i].datagrams() > 1 && t.socket.kind.noJoined.Load() {
			t.sendSingly(fd, i)
			i++
			continue
		}
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&t.hdrs[i])), uintptr(len(t.packets)-i), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch {
		case errno == 0:
			t.count(t.packets[i : i+int(n)])
			i += int(n)
		case errno == unix.EINTR:
		case t.packets[i].datagrams() > 1 && (errno == unix.EIO || errno == unix.EINVAL || errno == unix.EMSGSIZE || errno == unix.ENOPROTOOPT):
			if errno == unix.EIO { // the interface does not compute checksums
				t.socket.kind.noJoined.Store(true)
			}
			t.sendSingly(fd, i)
			i++
		case t.socket.kind.connected && !t.reported && (blames(errno) || errno == unix.EMSGSIZE):
			t.reported = true // the error may be about an earlier datagram, so this one is sent again
			if blames(errno) {
				t.outcome.err = errno
			}
		case errno == unix.EMSGSIZE, errno == unix.EPERM: // errors that say nothing about the next packet
			t.drop(t.packets[i:i+1], errno)
			i++
		default:
			t.drop(t.packets[i:], errno)
			return
		}
	}
}

// sendSingly sends the datagrams of a joined packet one by one.
func (t *sender) sendSingly(fd uintptr, i int) {
	p, h := &t.packets[i], &t.hdrs[i].hdr
	h.SetControllen(int(h.Controllen) - unix.CmsgSpace(2))
	if h.Controllen == 0 {
		h.Control = nil
	}
	for rest := p.data; len(rest) > 0; {
		one := packet{data: rest[:min(p.size, len(rest))]}
		rest = rest[len(one.data):]
		t.iovs[i].Base = unsafe.SliceData(one.data)
		t.iovs[i].SetLen(len(one.data))
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno == 0 {
			t.count([]packet{one})
		} else {
			t.drop([]packet{one}, errno)
		}
	}
}

func (t *sender) count(packets []packet) {
	for i := range packets {
		t.outcome.datagrams += packets[i].datagrams()
		t.outcome.bytes += len(packets[i].data)
	}
}

func (t *sender) drop(packets []packet, err error) {
	for i := range packets {
		t.outcome.dropped += packets[i].datagrams()
	}
	if t.outcome.err == nil {
		t.outcome.err = err
	}
}

// interrupted reports whether receiveAll should be called again after an error: ICMP messages about other datagrams,
// and a shortage of memory.
func interrupted(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch errno {
	case unix.ENOMEM, unix.ENOBUFS, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN, unix.EHOSTDOWN,
		unix.EMSGSIZE, unix.EPROTO, unix.EACCES, unix.ENOPROTOOPT, unix.ENONET, unix.EOPNOTSUPP:
		return ok
	}
	return false
}
