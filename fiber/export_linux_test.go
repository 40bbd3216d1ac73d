//go:build linux && (amd64 || arm64)

package fiber

import (
	"context"
	"net"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/headpond/headpond/internal/splice"
)

// The system's clock has been set back by an hour since the loops' began: the first word of a time.Time counts its seconds from bit 30 on.
func init() { *(*uint64)(unsafe.Pointer(&epoch)) += 3600 << 30 }

// PipeFiles returns how many descriptors wait for the next splice.
func PipeFiles() int {
	open, _ := splice.Open()
	return 2 * open
}

// CanSplice reports whether there is a pipe to splice by.
func CanSplice() bool {
	p := splice.Take()
	if p != nil {
		splice.Put(p)
	}
	return p != nil
}

// WatchdogSleeps reports whether the watchdog sleeps.
func (e *Engine) WatchdogSleeps() bool { return e.noWatch.Load() }

// PoisonFreed makes buffers unusable when they are given back.
func PoisonFreed(on bool) { poisonFreed.Store(on) }

// Buffers returns how many of the loops' buffers are in use. It must not be called on a fiber.
func (e *Engine) Buffers() (receiving, sending int) {
	for _, l := range e.loops {
		l.call(func() {
			if p, ok := l.poller.(*uring); ok {
				p.reclaimUnread()
				receiving += p.recv.taken
				sending += p.send.used
			} else if p, ok := l.poller.(*readiness); ok {
				sending += p.send.used
			}
		})
	}
	return receiving, sending
}

// Operations returns how many the kernel was asked for, by io_uring.
func (e *Engine) Operations() (n int) {
	for _, l := range e.loops {
		l.call(func() {
			if p, ok := l.poller.(*uring); ok {
				n += int(p.ring.tail)
			}
		})
	}
	return n
}

// Completions returns how many operations the kernel has reported the end of, by io_uring.
func (e *Engine) Completions() (n int) {
	for _, l := range e.loops {
		l.call(func() {
			if p, ok := l.poller.(*uring); ok {
				n += int(*p.ring.cqHead)
			}
		})
	}
	return n
}

// LoseReport pretends that the kernel has dropped a completion. It runs on a fiber of the connection's loop.
func (c *Conn) LoseReport() { *c.loop.Load().poller.(*uring).ring.cqDropped++ }

// Timers returns how many timers are armed.
func (e *Engine) Timers() (n int) {
	for _, l := range e.loops {
		l.call(func() { n += len(l.timers) })
	}
	return n
}

// SleepEnd returns when, in the loops' clock, a Sleep that begins now ends.
func SleepEnd(d time.Duration) int64 { return addClamped(d) }

// DialAny connects to the first of several addresses that can be connected to.
func (e *Engine) DialAny(ctx context.Context, addrs ...netip.AddrPort) (net.Conn, error) {
	var targets []socketAddr
	for _, a := range addrs {
		targets = append(targets, sockaddr(a))
	}
	return e.dialAny(ctx, "tcp", targets, netip.Addr{})
}

// ToItself is asked about every dialled IPv4 connection.
func ToItself(fd int, to netip.AddrPort) bool { return connectedToItself(fd, sockaddr(to)) }

// Ephemeral reports whether the system may choose a port for a socket that connects, by a file with the range.
func Ephemeral(path string, port int) bool { return readEphemeral(path).has(port) }

// ConnSize is the heap size of a connection.
const ConnSize = unsafe.Sizeof(Conn{})

// SameLoop reports whether two connections live on one loop.
func SameLoop(a, b net.Conn) bool { return a.(*Conn).loop.Load() == b.(*Conn).loop.Load() }

// Expire does what happens when a connection's timer fires.
func Expire(c net.Conn) {
	conn := c.(*Conn)
	l := conn.loop.Load()
	l.call(func() { conn.expired(l) })
}

// Paces says that the system systemPaces by default, or does not.
func Paces(on bool) (before bool) { return systemPaces.Swap(on) }

// Congestion returns the name of a connection's congestion control.
func (c *Conn) Congestion() (name string, err error) {
	c.loop.Load().call(func() { name, err = unix.GetsockoptString(c.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION) })
	return name, err
}

// Zone returns the number of the interface that an address is dialled through.
func Zone(ctx context.Context, address string) (uint32, error) {
	targets, err := resolve(ctx, "tcp", address)
	if err != nil {
		return 0, err
	}
	return targets[0].(*unix.SockaddrInet6).ZoneId, nil
}

// BulkMemory sets how much may wait in the sockets of connections that move bulk.
func BulkMemory(n int64) (before int64) {
	before, bulkMemory = bulkMemory, n
	return before
}

// ReceiveBuffer is the size of the socket's receive buffer, for a fiber of its loop.
func (c *Conn) ReceiveBuffer() int { return receiveBuffer(c.fd) }

// InPipe reports whether the Transfer's received data is in a pipe.
func (t *Transfer) InPipe() bool { return t.pipe != nil }

// PipesHeld returns how many pipes are in use.
func PipesHeld() int {
	open, idle := splice.Open()
	return open - idle
}

// Loops returns how many loops the process has.
func Loops() int {
	if all := allLoops.Load(); all != nil {
		return len(*all)
	}
	return 0
}

// RawWaits reports whether the engine's loops may wait in the kernel unknown to Go's scheduler.
func (e *Engine) RawWaits() bool {
	if p, ok := e.loops[0].poller.(*uring); ok {
		return p.raw.allowed()
	}
	return e.loops[0].poller.(*readiness).raw.allowed()
}

// KeepsProcessor reports whether the loop of the calling fiber would wait in the kernel unknown to Go's scheduler.
func KeepsProcessor() bool { return currentFiber().loop.isBusy() }
