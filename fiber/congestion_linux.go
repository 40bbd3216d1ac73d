//go:build linux && (amd64 || arm64)

package fiber

import (
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// unpaced has a socket between two ends of this machine send as fast as the other end reads, where the system's way is
// to pace (BBR). That is meant for the narrowest part of a network, of which there is none here; its timers, one for
// every few segments, were two thirds of what moving bulk costs. Reno is in every kernel and allowed to everybody.
func unpaced(fd int) {
	if !paces.Load() {
		return
	}
	name := [...]byte{'r', 'e', 'n', 'o'}
	_, _, _ = syscall.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION,
		uintptr(unsafe.Pointer(&name)), unsafe.Sizeof(name), 0)
}

// paces says that the system does by default, as far as could be read when the process began.
var paces atomic.Bool

func init() {
	name, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	paces.Store(strings.HasPrefix(string(name), "bbr"))
}
