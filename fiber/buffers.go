package fiber

import "sync/atomic"

// Buffers of the pollers. io_uring gets only this memory. The memory is mapped, so the collector neither moves nor
// frees it, and the loop owns it until the kernel has completed the operation. Nothing that happens to a fiber, its
// connection or its caller's slices can free memory that an operation uses, or put other data into it.

// sendSizes are the sizes of send buffers: for a small message, a page of a protocol, bulk.
var sendSizes = [...]int{1 << 10, 8 << 10, 64 << 10}

const (
	sendArena = 1 << 20 // mapped at a time
	// recvCount is the number of buffers shared by all connections of a loop. Each is used for at most a tick; when one
	// tick uses all of them, the remaining data is received in the next.
	recvCount = 128
	recvSize  = 16 << 10
	// recvStride is the distance of these buffers. Their first bytes, which are used most, would compete for the same few
	// lines of the processor's caches at a distance of whole pages.
	recvStride = recvSize + 5*64
)

// poisonFreed overwrites buffers when they are given back, so that tests detect any later use.
var poisonFreed atomic.Bool

const poison = 0xdb

// sendBuffer holds bytes to be sent, mem[:n].
type sendBuffer struct {
	mem        []byte
	n          int
	class      uint8
	unreported bool // see uring.sendGathered
}

// sendBuffers is a loop's supply of sendBuffers.
type sendBuffers struct {
	spare  [len(sendSizes)][]*sendBuffer
	arenas [][]byte
	used   int
	bytes  int // size of the used buffers
}

// get returns an empty buffer for n bytes, or of the largest size; nil if the system has no memory.
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
	b.bytes += len(s.mem)
	return s
}

func (b *sendBuffers) put(s *sendBuffer) {
	if poisonFreed.Load() {
		fill(s.mem)
	}
	s.n = 0
	b.spare[s.class] = append(b.spare[s.class], s)
	b.used--
	b.bytes -= len(s.mem)
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

// trim gives the memory back to the system unless a buffer is in use; using it again costs page faults.
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

// aheadSize is the size of a buffer for received data that is not read yet: maxAhead, plus what may arrive in the tick
// in which maxAhead is reached. More data is rare and gets an allocated slice. A loop keeps maxSpareAhead of these
// buffers. Without a spare buffer, up to littleAhead bytes get a slice of their exact size, because very many
// connections may have a byte that is never read.
const (
	aheadSize     = 96 << 10
	maxSpareAhead = 32
	littleAhead   = 4 << 10
)

type aheadBuffer [aheadSize]byte
