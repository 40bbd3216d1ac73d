package fiber

import "sync/atomic"

// Buffers of the io_uring poller. The kernel is given no other memory than these: mapped, so
// that the collector neither moves nor frees them, and owned by the loop until the kernel says
// that it is done. So nothing that happens to a fiber, its connection or its caller's slices
// can pull memory from under an operation, or put other data into it.

// Sizes of send buffers: a small message, a page of a protocol, bulk.
var sendSizes = [...]int{1 << 10, 8 << 10, 64 << 10}

const (
	sendArena = 1 << 20 // mapped at a time
	// recvCount buffers wait for data of whichever connection gets some. None is held for longer
	// than a tick; when one tick uses them up, the rest is received in the next.
	recvCount = 128
	recvSize  = 16 << 10
)

// poisonFreed overwrites buffers when they are given back, so that a test sees any later use.
var poisonFreed atomic.Bool

const poison = 0xdb

// sendBuffer holds bytes on their way to the kernel: mem[:n].
type sendBuffer struct {
	mem   []byte
	n     int
	class uint8
}

// sendBuffers is a loop's store of them.
type sendBuffers struct {
	spare  [len(sendSizes)][]*sendBuffer
	arenas [][]byte
	used   int
}

// get returns an empty buffer for n bytes or as many as there is a size for; nil when the
// system has no memory.
func (b *sendBuffers) get(n int) *sendBuffer {
	class := 0
	for class < len(sendSizes)-1 && n > sendSizes[class] {
		class++
	}
	if len(b.spare[class]) == 0 && !b.grow(class) {
		return nil
	}
	last := len(b.spare[class]) - 1
	s := b.spare[class][last]
	b.spare[class][last] = nil
	b.spare[class] = b.spare[class][:last]
	b.used++
	return s
}

func (b *sendBuffers) put(s *sendBuffer) {
	if poisonFreed.Load() {
		fill(s.mem)
	}
	s.n = 0
	b.spare[s.class] = append(b.spare[s.class], s)
	b.used--
}

func (b *sendBuffers) grow(class int) bool {
	size := min(sendArena, 64*sendSizes[class])
	arena, err := mapMemory(size)
	if err != nil {
		return false
	}
	b.arenas = append(b.arenas, arena)
	for ; len(arena) > 0; arena = arena[sendSizes[class]:] {
		b.spare[class] = append(b.spare[class], &sendBuffer{mem: arena[:sendSizes[class]:sendSizes[class]], class: uint8(class)})
	}
	return true
}

// trim gives the memory back to the system, but not the addresses: it costs page faults.
func (b *sendBuffers) trim() {
	if b.used > 0 {
		return
	}
	for _, a := range b.arenas {
		releaseMemory(a)
	}
}

func (b *sendBuffers) free() {
	for _, a := range b.arenas {
		unmapMemory(a)
	}
}

func fill(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

// aheadSize is that of a buffer for it, with what may come in the tick in which the limit is
// reached; more is rare and takes memory of its own. A loop keeps maxSpareAhead of them. When it has none,
// up to littleAhead is not worth one: there may be very many connections with a byte that nobody reads.
const (
	aheadSize     = 96 << 10
	maxSpareAhead = 32
	littleAhead   = 4 << 10
)

type aheadBuffer [aheadSize]byte
