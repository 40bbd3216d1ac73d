package listener

import (
	"net"
	"time"
	"unsafe"
)

// ConnSize is what a Conn takes of the heap.
const ConnSize = unsafe.Sizeof(Conn{})

// ReadProxyHeader reads the header raw begins with.
func ReadProxyHeader(raw net.Conn, timeout time.Duration) (*Conn, error) {
	c := &Conn{raw: raw}
	return c, readProxyHeader(c, timeout)
}

// Gate is the admission alone.
type Gate = gate

// NewGate returns a gate with limits.
func NewGate(limit, maxQueue int) *Gate { return &gate{limit: limit, maxQueue: maxQueue} }

// Enter, Leave, Resize, Shut and Counts are the gate's methods.
func (g *gate) Enter(timeout time.Duration) error { return g.enter(timeout) }
func (g *gate) Leave()                            { g.leave() }
func (g *gate) Resize(limit, maxQueue int)        { g.resize(limit, maxQueue) }
func (g *gate) Shut()                             { g.close() }
func (g *gate) Counts() (active, queued int)      { return g.counts() }
