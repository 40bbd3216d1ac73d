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

// useReno makes a socket between two ends of this machine send as fast as the other end reads, if the system's default
// is to pace (BBR). Pacing protects the bottleneck of a network, and there is none here; its timers, one for every few
// segments, were two thirds of the cost of bulk. Reno is in every kernel and needs no privilege.
func useReno(fd int) {
	if !systemPaces.Load() {
		return
	}
	name := [...]byte{'r', 'e', 'n', 'o'}
	_, _, _ = syscall.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION,
		uintptr(unsafe.Pointer(&name)), unsafe.Sizeof(name), 0)
}

// systemPaces says that the system paces by default. It is read when the process starts.
var systemPaces atomic.Bool

func init() {
	name, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	systemPaces.Store(strings.HasPrefix(string(name), "bbr"))
}
