//go:build !((linux && (amd64 || arm64)) || darwin)

package fiber

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"time"
)

// There is no engine with loops on these systems: newPoller returns an error, and no other function of this file is
// called. A port implements an eventQueue and these functions, as kqueue_darwin.go and sys_darwin.go do.

var automatic []Kind

func newPoller(_ *loop, kind Kind) (p poller, lacks, err error) {
	return nil, nil, fmt.Errorf("%s is for other systems than %s/%s", kind, runtime.GOOS, runtime.GOARCH)
}

type socketAddr = netip.AddrPort

func sockaddr(ap netip.AddrPort) socketAddr                { return ap }
func zonedSockaddr(ap netip.AddrPort, _ uint32) socketAddr { return ap }
func unixSockaddr(string) socketAddr                       { return socketAddr{} }
func isIP4(sa socketAddr) bool                             { return sa.Addr().Is4() }
func peerOf(socketAddr) peer                               { return peer{} }
func toAddr(socketAddr, bool) net.Addr                     { return noAddr(false) }
func connectedToItself(int, socketAddr) bool               { return false }

func openSocket(socketAddr) (fd int, to netip.Addr, err error) { return -1, to, errors.ErrUnsupported }
func connectSocket(int, socketAddr) error                      { return errors.ErrUnsupported }
func takeSocket(any) (fd int, isUnix bool, err error)          { return -1, false, errors.ErrUnsupported }
func duplicate(int) (int, error)                               { return -1, errors.ErrUnsupported }
func acceptOne(int) (fd int, from peer, err error, done bool) {
	return -1, from, errors.ErrUnsupported, true
}
func localAddrOf(int) (net.Addr, error)  { return nil, errors.ErrUnsupported }
func remoteAddrOf(int) (net.Addr, error) { return nil, errors.ErrUnsupported }
func shutdownSocket(int) error           { return errors.ErrUnsupported }

func closeSocket(int)               {}
func noDelay(int)                   {}
func useReno(int)                   {}
func keepAlive(int, bool)           {}
func setTCPOptions(int, TCPOptions) {}
func resetOnClose(int, bool)        {}
func peerEnded(int) bool            { return false }
func unsent(int) int                { return 0 }

// FinReceived is that of Linux. Here nothing reports it.
func FinReceived(int) bool { return false }

func mapMemory(size int) ([]byte, error) { return make([]byte, size), nil }
func releaseMemory([]byte)               {}
func unmapMemory([]byte)                 {}

func threadID() int             { return 0 }
func cpuTime(int) time.Duration { return 0 }
func asleep(int) bool           { return false }
