//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
		_ = unix.Madvise(a, unix.MADV_DONTNEED)
	}
}

func (b *sendBuffers) free() {
	for _, a := range b.arenas {
		_ = unix.Munmap(a)
	}
}

func mapMemory(size int) ([]byte, error) {
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", size, err)
	}
	return m, nil
}

func fill(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

// recvBuffers is a ring of buffers the kernel takes from when data has come (struct
// io_uring_buf_ring), so that no connection holds one while it waits.
type recvBuffers struct {
	ring  []byte // of bufEntry
	mem   []byte
	tail  uint16
	taken int
}

type bufEntry struct {
	addr uint64
	len  uint32
	id   uint16
	resv uint16 // of the first entry: the tail
}

func newRecvBuffers(r *ring) (*recvBuffers, error) {
	b := &recvBuffers{}
	var err error
	if b.ring, err = mapMemory(recvCount * int(unsafe.Sizeof(bufEntry{}))); err != nil {
		return nil, err
	}
	if b.mem, err = mapMemory(recvCount * recvSize); err != nil {
		b.free()
		return nil, err
	}
	reg := struct {
		addr    uint64
		entries uint32
		group   uint16
		flags   uint16
		_       [3]uint64
	}{addr: uint64(uintptr(unsafe.Pointer(&b.ring[0]))), entries: recvCount}
	if err := r.register(registerPbufRing, unsafe.Pointer(&reg), 1); err != nil {
		b.free()
		return nil, err
	}
	b.taken = recvCount
	for i := range uint16(recvCount) {
		b.put(i)
	}
	b.publish()
	return b, nil
}

// take returns the first n bytes of a buffer the kernel has filled; put gives it back, with the next
// publish.
func (b *recvBuffers) take(id uint16, n int) []byte {
	b.taken++
	at := int(id) * recvSize
	return b.mem[at : at+n : at+recvSize]
}

func (b *recvBuffers) put(id uint16) {
	b.taken--
	at := int(id) * recvSize
	if poisonFreed.Load() {
		fill(b.mem[at : at+recvSize])
	}
	entries := unsafe.Slice((*bufEntry)(unsafe.Pointer(&b.ring[0])), recvCount)
	e := &entries[b.tail%recvCount]
	e.addr, e.len, e.id = uint64(uintptr(unsafe.Pointer(&b.mem[at]))), recvSize, id
	b.tail++
}

// publish lets the kernel have what was put. There is no 16-bit atomic store; the one of 32 bits
// takes the first entry's id, which is beside the tail, with it.
func (b *recvBuffers) publish() {
	first := (*bufEntry)(unsafe.Pointer(&b.ring[0]))
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&first.id)), uint32(first.id)|uint32(b.tail)<<16)
}

func (b *recvBuffers) free() {
	if b.ring != nil {
		_ = unix.Munmap(b.ring)
	}
	if b.mem != nil {
		_ = unix.Munmap(b.mem)
	}
}
