package listener

import (
	"net"
	"time"
	"unsafe"

	"github.com/headpond/headpond/fiber"
)

// ConnSize is what a Conn takes of the heap.
const ConnSize = unsafe.Sizeof(Conn{})

// ReadProxyHeader reads the header raw begins with.
func ReadProxyHeader(raw net.Conn, timeout time.Duration) (*Conn, error) {
	c := &Conn{stream: fiber.StreamOf(raw)}
	return c, readProxyHeader(c, timeout)
}

// ConnLimit is the limit of connections with its queue.
type ConnLimit = connLimit

// NewConnLimit returns a ConnLimit.
func NewConnLimit(limit, maxQueue int) *ConnLimit {
	return &connLimit{limit: limit, maxQueue: maxQueue}
}

// Acquire, Release, Resize, Shut and Counts are its methods.
func (l *connLimit) Acquire(timeout time.Duration) error { return l.acquire(timeout) }
func (l *connLimit) Release()                            { l.release() }
func (l *connLimit) Resize(limit, maxQueue int)          { l.resize(limit, maxQueue) }
func (l *connLimit) Shut()                               { l.close() }
func (l *connLimit) Counts() (active, queued int)        { return l.counts() }
