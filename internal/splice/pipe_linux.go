package splice

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// PipeSize is the largest size that an unprivileged process may request.
	PipeSize = 1 << 20
	// minPipe is the smallest useful size. The system gives a user with many pipes less than
	// requested.
	minPipe = 64 << 10
	// Max bounds the resources held by receivers that do not read: 128 file descriptors and 64 MiB
	// of kernel memory (the default limit of pipes for an unprivileged user). Sessions without a
	// pipe copy instead.
	Max = 64
	// MaxIdle pipes stay open for later splices.
	MaxIdle = 8
)

// Pipe is a pipe to splice through. It belongs to the caller of Take.
type Pipe struct{ R, W int }

// pipes are the pipes of the process.
var pipes pipePool

// Take returns an empty pipe, or nil if none is available. Hold a pipe only while it
// has data.
func Take() *Pipe { return pipes.take() }

// Put returns an empty pipe for the next Take.
func Put(p *Pipe) { pipes.put(p) }

// Drop closes a pipe and discards its data.
func Drop(p *Pipe) { pipes.drop(p) }

// Open returns how many pipes the process has open, and how many of them are idle.
func Open() (open, idle int) {
	pipes.mu.Lock()
	defer pipes.mu.Unlock()
	return pipes.open, len(pipes.idle)
}

// Once moves up to limit bytes between a pipe and a socket. It does not wait if the socket is in
// non-blocking mode.
func Once(from, to, limit int) (int, error) {
	for {
		n, err := unix.Splice(from, nil, to, nil, limit, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if !errors.Is(err, unix.EINTR) {
			return max(int(n), 0), err
		}
	}
}

// Unsupported reports whether the system cannot splice from a socket, or is not
// allowed to (seccomp).
func Unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM)
}

type pipePool struct {
	mu   sync.Mutex
	open int
	idle []*Pipe // empty ones, the last used last
}

func (p *pipePool) take() *Pipe {
	p.mu.Lock()
	if n := len(p.idle) - 1; n >= 0 {
		last := p.idle[n]
		p.idle = p.idle[:n]
		p.mu.Unlock()
		return last
	}
	if p.open >= Max {
		p.mu.Unlock()
		return nil
	}
	p.open++
	p.mu.Unlock()
	if made := newPipe(); made != nil {
		return made
	}
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
	return nil
}

func (p *pipePool) put(back *Pipe) {
	p.mu.Lock()
	if len(p.idle) < MaxIdle {
		p.idle = append(p.idle, back)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.drop(back)
}

func (p *pipePool) drop(old *Pipe) {
	old.close()
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

// newPipe returns nil if the system gives no pipe, or only a small one.
func newPipe() *Pipe {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return nil
	}
	p := &Pipe{R: fds[0], W: fds[1]}
	if _, err := unix.FcntlInt(uintptr(p.W), unix.F_SETPIPE_SZ, PipeSize); err == nil {
		return p
	}
	if size, err := unix.FcntlInt(uintptr(p.W), unix.F_GETPIPE_SZ, 0); err != nil || size < minPipe {
		p.close()
		return nil
	}
	return p
}

func (p *Pipe) close() {
	_ = unix.Close(p.R)
	_ = unix.Close(p.W)
}
