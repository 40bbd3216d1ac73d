package mux

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

const (
	minClassBits = 7  // 128 bytes: smaller ones cost as much in bookkeeping
	maxClassBits = 26 // 64 MiB, the default bound of a message
)

// classes holds free buffers by size: class i has capacity 1<<(minClassBits+i).
var classes [maxClassBits - minClassBits + 1]sync.Pool

// buffer holds received bytes and counts references: a holder may read
// data[off:], and the last release returns the buffer to its class.
type buffer struct {
	data  []byte // received bytes
	off   int    // streams: how much of data was read
	next  *buffer
	gen   uint32 // grows each time the buffer is given back
	class int8   // -1: not from a class
	refs  atomic.Int32
	cost  uint64  // credit it holds until the application has it
	claim int     // bytes of core.assembly it holds until then
	kept  int     // or of core.windows
	owner *waiter // data is this receiver's own memory
}

// classOf is the class that holds n bytes, or -1.
func classOf(n int) int {
	if n <= 1<<minClassBits {
		return 0
	}
	c := bits.Len(uint(n-1)) - minClassBits
	if c >= len(classes) {
		return -1
	}
	return c
}

// newBuffer returns an empty buffer with room for n bytes and one reference.
func newBuffer(n int) *buffer {
	c := classOf(n)
	if c < 0 {
		b := &buffer{data: make([]byte, 0, n), class: -1}
		b.refs.Store(1)
		return b
	}
	b, _ := classes[c].Get().(*buffer)
	if b == nil {
		b = &buffer{data: make([]byte, 0, 1<<(minClassBits+c)), class: int8(c)}
	}
	b.refs.Store(1)
	return b
}

// release drops one reference.
func (b *buffer) release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("mux: buffer released more often than retained")
	}
	b.gen++
	b.data, b.off, b.next, b.cost, b.claim, b.kept = b.data[:0], 0, nil, 0, 0, 0
	if b.owner != nil {
		b.data, b.owner = nil, nil
	}
	if b.class >= 0 {
		classes[b.class].Put(b)
	}
}

// grow returns a buffer with the same bytes and room for n in all. It releases b.
func (b *buffer) grow(n int) *buffer {
	g := newBuffer(n)
	g.data = append(g.data, b.data...)
	g.cost = b.cost
	b.release()
	return g
}

// queue is a list of buffers, first in first out.
type queue struct {
	head, tail *buffer
}

func (q *queue) push(b *buffer) {
	if q.tail == nil {
		q.head = b
	} else {
		q.tail.next = b
	}
	q.tail = b
}

func (q *queue) pop() *buffer {
	b := q.head
	if b == nil {
		return nil
	}
	q.head, b.next = b.next, nil
	if q.head == nil {
		q.tail = nil
	}
	return b
}
