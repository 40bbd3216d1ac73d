//go:build linux && (amd64 || arm64)

package fiber

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aio sends on many sockets with one system call if io_uring is not available. It uses io_submit(2), the kernel's older
// interface for asynchronous I/O. On non-blocking sockets the call is synchronous: every submitted send is done or has
// failed when the call returns, so the kernel never holds a buffer. (A broken connection raises SIGPIPE, as with
// package net; only a program that asks for that signal notices.) Besides system calls, aio saves context switches: the
// receiver of one message cannot take the processor before the next message is sent.
type aio struct {
	ring  *aioRing // where the kernel writes results; its address is also the context's id
	probe [1]byte  // used by try
	block [aioSize]aioBlock
	list  [aioSize]*aioBlock
}

// aioSize bounds the messages sent by one call.
const aioSize = 128

// aioBlock is the kernel's struct iocb (io_submit(2)).
type aioBlock struct {
	data   uint64
	_      uint32 // the kernel writes here
	_      uint32
	opcode uint16
	_      int16
	fd     uint32
	buf    uint64
	size   uint64
	_      [3]uint64
}

const aioWrite = 1 // IOCB_CMD_PWRITE

// aioRing is the header of the memory that the kernel shares (struct aio_ring); values of aioEvent follow it. A process may read
// them without a system call, as io_getevents(3) of libaio does.
type aioRing struct {
	_, entries uint32
	head, tail uint32
	magic      uint32
	_          [2]uint32
	header     uint32
}

const aioMagic = 0xa10a10a1

// aioEvent is struct io_event.
type aioEvent struct {
	data, _ uint64
	result  int64
	_       int64
}

// newAIO returns an error if the system does not have or allow io_submit, or if it behaves otherwise than expected.
func newAIO() (*aio, error) {
	a := new(aio)
	if _, _, errno := syscall.RawSyscall(unix.SYS_IO_SETUP, aioSize, uintptr(unsafe.Pointer(&a.ring)), 0); errno != 0 {
		return nil, fmt.Errorf("io_setup: %w", errno)
	}
	if err := a.try(); err != nil {
		a.free()
		return nil, err
	}
	return a, nil
}

// try sends one byte on a socket.
func (a *aio) try() error {
	if a.ring.magic != aioMagic || a.ring.entries < aioSize || a.ring.header != uint32(unsafe.Sizeof(aioRing{})) {
		return errors.New("io_setup: its memory is of an unknown form")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	a.probe[0] = 'x'
	a.put(0, fds[0], a.probe[:])
	sent := int64(0)
	err = a.submit(1, func(_ int, result int64) { sent = result })
	in := [2]byte{}
	if n, errno := rawReceive(fds[1], in[:]); err == nil && (sent != 1 || errno != 0 || n != 1 || in[0] != 'x') {
		err = fmt.Errorf("io_submit: sending a byte gave %d", sent)
	}
	return err
}

// put makes b, which must not move in memory, the i-th message.
func (a *aio) put(i, fd int, b []byte) {
	a.block[i] = aioBlock{
		data: uint64(i), opcode: aioWrite, fd: uint32(fd),
		buf: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))), size: uint64(len(b)),
	}
	a.list[i] = &a.block[i]
}

// submit sends the first n messages, and reports for each how many bytes were accepted, or a negative error number. An
// error concerns the messages without a report.
func (a *aio) submit(n int, report func(i int, result int64)) error {
	for from := 0; from < n; {
		m, _, errno := syscall.RawSyscall(unix.SYS_IO_SUBMIT, uintptr(unsafe.Pointer(a.ring)), uintptr(n-from),
			uintptr(unsafe.Pointer(&a.list[from])))
		if errno == unix.EINTR {
			continue
		}
		a.results(report)
		if errno != 0 {
			return fmt.Errorf("io_submit: %w", errno)
		}
		from += int(m)
	}
	return nil
}

func (a *aio) results(report func(i int, result int64)) {
	head, tail := a.ring.head, atomic.LoadUint32(&a.ring.tail)
	events := unsafe.Slice((*aioEvent)(unsafe.Add(unsafe.Pointer(a.ring), a.ring.header)), a.ring.entries)
	for ; head != tail; head = (head + 1) % a.ring.entries {
		report(int(events[head].data), events[head].result)
	}
	atomic.StoreUint32(&a.ring.head, head)
}

func (a *aio) free() {
	_, _, _ = syscall.Syscall(unix.SYS_IO_DESTROY, uintptr(unsafe.Pointer(a.ring)), 0, 0)
}
