package fiber

import "golang.org/x/sys/unix"

// acked implements Stream.Acked for a socket. Only TCP sockets report it.
func acked(fd int) (n uint64, all bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, true
	}
	return info.Bytes_acked, info.Unacked == 0 && info.Notsent_bytes == 0
}
