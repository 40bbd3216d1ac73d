package fiber

import "golang.org/x/sys/unix"

// acked is Stream's Acked of a socket. One that is not TCP's does not tell.
func acked(fd int) (n uint64, all bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, true
	}
	return info.Bytes_acked, info.Unacked == 0 && info.Notsent_bytes == 0
}
