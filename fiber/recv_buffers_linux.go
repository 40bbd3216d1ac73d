//go:build linux && (amd64 || arm64)

package fiber

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// recvBuffers is a ring of buffers (struct io_uring_buf_ring). The kernel takes one when data has come, so that no
// connection holds a buffer while it waits.
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
	if b.mem, err = mapMemory(recvCount * recvStride); err != nil {
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

// take returns the first n bytes of a buffer that the kernel has filled; put gives the buffer back, with the next
// publish.
func (b *recvBuffers) take(id uint16, n int) []byte {
	b.taken++
	at := int(id) * recvStride
	return b.mem[at : at+n : at+recvSize]
}

func (b *recvBuffers) put(id uint16) {
	b.taken--
	at := int(id) * recvStride
	if poisonFreed.Load() {
		fill(b.mem[at : at+recvSize])
	}
	entries := unsafe.Slice((*bufEntry)(unsafe.Pointer(&b.ring[0])), recvCount)
	e := &entries[b.tail%recvCount]
	e.addr, e.len, e.id = uint64(uintptr(unsafe.Pointer(&b.mem[at]))), recvSize, id
	b.tail++
}

// publish makes the added buffers available to the kernel. There is no 16-bit atomic store; the 32-bit one also writes
// the first entry's id, which is next to the tail.
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
