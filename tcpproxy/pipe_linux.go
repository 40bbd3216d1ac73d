package tcpproxy

import (
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is as much as a process without privileges may ask for.
	pipeSize = 1 << 20
	// minPipe is the least worth having; the system gives less to a user who
	// has many pipes already.
	minPipe = 64 << 10
	// maxPipes bounds what receivers that do not read can hold: 128 file
	// descriptors, 64 MiB of kernel memory (and what a user without privileges
	// may have in pipes by default). Sessions that find none left copy.
	maxPipes = 64
	// maxIdlePipes stay open for the next splice.
	maxIdlePipes = 8
)

// pipe is what a splice goes through. It belongs to whoever took it.
type pipe struct{ r, w int }

// pipes are those of the process. A pipe is held only while there is something
// in it.
var pipes pipePool

type pipePool struct {
	mu   sync.Mutex
	open int
	idle []*pipe // empty ones, the last used last
}

// take returns an empty pipe, or nil when there is none to be had.
func (p *pipePool) take() *pipe {
	p.mu.Lock()
	if n := len(p.idle) - 1; n >= 0 {
		last := p.idle[n]
		p.idle = p.idle[:n]
		p.mu.Unlock()
		return last
	}
	if p.open >= maxPipes {
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

// put takes back a pipe that is empty.
func (p *pipePool) put(back *pipe) {
	p.mu.Lock()
	if len(p.idle) < maxIdlePipes {
		p.idle = append(p.idle, back)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.drop(back)
}

// drop closes a pipe.
func (p *pipePool) drop(old *pipe) {
	old.close()
	p.mu.Lock()
	p.open--
	p.mu.Unlock()
}

// newPipe returns nil when the system has none, or only a small one.
func newPipe() *pipe {
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return nil
	}
	p := &pipe{r: fds[0], w: fds[1]}
	if _, err := unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, pipeSize); err == nil {
		return p
	}
	if size, err := unix.FcntlInt(uintptr(p.w), unix.F_GETPIPE_SZ, 0); err != nil || size < minPipe {
		p.close()
		return nil
	}
	return p
}

func (p *pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}
