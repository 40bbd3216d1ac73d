//go:build linux && (amd64 || arm64)

package fiber

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The interface of io_uring as in linux/io_uring.h; see io_uring_setup(2), io_uring_enter(2)
// and io_uring_register(2).
const (
	opPollAdd     = 6
	opAsyncCancel = 14
	opSend        = 26
	opRecv        = 27

	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6 // no completion unless the operation fails

	recvPollFirst = 1 << 0 // in ioprio: wait before the first try, as no data is expected yet
	recvMultishot = 1 << 1 // in ioprio
	pollMultishot = 1 << 0 // in len

	cqeBuffer   = 1 << 0 // a provided buffer was used; its number is in the upper 16 bits
	cqeMore     = 1 << 1 // the operation stays active
	cqeNonEmpty = 1 << 2 // there is more to receive

	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupSubmitAll    = 1 << 7
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13

	sqOverflow = 1 << 1 // in the queue's flags: completions wait for room

	featSingleMmap = 1 << 0
	featNoDrop     = 1 << 1
	featExtArg     = 1 << 8

	enterGetEvents = 1 << 0
	enterExtArg    = 1 << 3

	registerPbufRing = 22

	offSQRing = 0
	offSQEs   = 0x10000000
)

type ringParams struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wqFD uint32
	_                                                      [3]uint32
	sq                                                     struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, _ uint32
		_                                                   uint64
	}
}

type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off, addr     uint64
	len, opFlags  uint32
	userData      uint64
	bufGroup, _   uint16
	_             uint32
	_             [2]uint64
}

type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

// enterArg is struct io_uring_getevents_arg.
type enterArg struct {
	_         uint64
	_         uint32
	_         uint32
	timespec  uint64 // address
	timeValue unix.Timespec
}

// ring is one io_uring, for the thread that made it.
type ring struct {
	fd              int
	rings, entries  []byte // mapped
	sqes            []sqe
	cqes            []cqe
	sqHead, sqTail  *uint32
	sqFlags         *uint32
	cqDropped       *uint32
	dropped         uint32 // cqDropped at the last call of hasDropped
	cqHead, cqTail  *uint32
	sqMask, cqMask  uint32
	tail, submitted uint32
	arg             *enterArg // on the heap as long as the ring exists
}

func newRing(entries, completions uint32) (*ring, error) {
	var p ringParams
	p.flags = setupCQSize | setupClamp | setupSubmitAll | setupSingleIssuer | setupDeferTaskrun
	p.cqEntries = completions
	fd, _, errno := syscall.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", errno)
	}
	r := &ring{fd: int(fd), arg: &enterArg{}}
	unix.CloseOnExec(r.fd)
	if missing := (featSingleMmap | featNoDrop | featExtArg) &^ p.features; missing != 0 {
		r.free()
		return nil, fmt.Errorf("io_uring: the kernel lacks features %#x", missing)
	}
	if err := r.mapRings(&p); err != nil {
		r.free()
		return nil, err
	}
	return r, nil
}

func (r *ring) mapRings(p *ringParams) (err error) {
	size := max(int(p.sq.array+p.sqEntries*4), int(p.cq.cqes)+int(p.cqEntries)*int(unsafe.Sizeof(cqe{})))
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	if r.rings, err = unix.Mmap(r.fd, offSQRing, size, prot, flags); err != nil {
		return fmt.Errorf("io_uring: mmap: %w", err)
	}
	if r.entries, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), prot, flags); err != nil {
		return fmt.Errorf("io_uring: mmap: %w", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.cqHead, r.cqTail = at(p.sq.head), at(p.sq.tail), at(p.cq.head), at(p.cq.tail)
	r.sqFlags, r.cqDropped = at(p.sq.flags), at(p.cq.overflow)
	r.sqMask, r.cqMask = *at(p.sq.mask), *at(p.cq.mask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	for i, array := uint32(0), unsafe.Slice(at(p.sq.array), p.sqEntries); i < p.sqEntries; i++ {
		array[i] = i // entry i is always at index i
	}
	return nil
}

// next returns an empty entry, which the next enter submits. If the queue is full, next submits it first, again and
// again if the kernel is short of memory: an overwritten entry would be an operation that never ends.
func (r *ring) next() *sqe {
	for r.tail-atomic.LoadUint32(r.sqHead) == uint32(len(r.sqes)) {
		r.enter(false, false, 0)
	}
	s := &r.sqes[r.tail&r.sqMask]
	*s = sqe{}
	r.tail++
	return s
}

// enter submits queued entries and runs work that the kernel has deferred. With wait it waits for one completion, for
// left nanoseconds at most (0 = no limit); raw waits unknown to Go's scheduler.
func (r *ring) enter(wait, raw bool, left int64) {
	n := r.tail - r.submitted
	atomic.StoreUint32(r.sqTail, r.tail)
	flags, least := uintptr(enterGetEvents), uintptr(0)
	var arg, size uintptr
	if wait {
		least = 1
		if left > 0 {
			flags |= enterExtArg
			r.arg.timeValue = unix.NsecToTimespec(left)
			r.arg.timespec = uint64(uintptr(unsafe.Pointer(&r.arg.timeValue)))
			arg, size = uintptr(unsafe.Pointer(r.arg)), 24
		}
	}
	if wait && !raw {
		_, _, _ = syscall.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), least, flags, arg, size)
	} else {
		_, _, _ = syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(n), least, flags, arg, size)
	}
	// Entries that the kernel has not taken, because it was interrupted or is short of memory, are submitted again.
	r.submitted = atomic.LoadUint32(r.sqHead)
}

// allReported reports, directly after enter, that the kernel has taken all entries, and that there is a completion of each operation
// that has ended, but for those with sqeSkipSuccess.
func (r *ring) allReported() bool { return r.submitted == r.tail && !r.hasOverflow() }

// hasOverflow reports whether the kernel keeps completions that have found no room. The next enter adds them as far as
// there is room.
func (r *ring) hasOverflow() bool { return atomic.LoadUint32(r.sqFlags)&sqOverflow != 0 }

// hasDropped reports whether the kernel has dropped completions since the last call, because it had no memory to keep
// them.
func (r *ring) hasDropped() bool {
	before := r.dropped
	r.dropped = atomic.LoadUint32(r.cqDropped)
	return r.dropped != before
}

// empty reports whether all completions are taken.
func (r *ring) empty() bool { return *r.cqHead == atomic.LoadUint32(r.cqTail) }

// completions returns the number of the first completion that is not taken, and the number after the last. at returns
// each, and taken gives their room back to the kernel.
func (r *ring) completions() (from, to uint32) { return *r.cqHead, atomic.LoadUint32(r.cqTail) }

func (r *ring) at(i uint32) cqe { return r.cqes[i&r.cqMask] }

func (r *ring) taken(to uint32) { atomic.StoreUint32(r.cqHead, to) }

// register is io_uring_register(2).
func (r *ring) register(op uintptr, arg unsafe.Pointer, n uintptr) error {
	if _, _, errno := syscall.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), n, 0, 0); errno != 0 {
		return fmt.Errorf("io_uring_register(%d): %w", op, errno)
	}
	return nil
}

// free closes the ring. When it returns, the kernel has finished with every buffer, or the buffers' memory outlives the
// ring.
func (r *ring) free() {
	_ = unix.Close(r.fd)
	if r.rings != nil {
		_ = unix.Munmap(r.rings)
	}
	if r.entries != nil {
		_ = unix.Munmap(r.entries)
	}
}
