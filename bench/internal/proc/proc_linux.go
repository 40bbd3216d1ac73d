package proc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/headpond/headpond/internal/freeport"
)

// stopTime is how long a process may take to end before it is killed.
const stopTime = 5 * time.Second

// Spec says what to start.
type Spec struct {
	Name string // in errors and for the log file
	Path string
	Args []string
	Env  []string // added to the environment
	// Unprivileged starts the process as user postgres or nobody when this one runs as root, for programs that refuse to be root.
	Unprivileged bool
	// Quit is the signal that asks the process to end. Default: SIGTERM.
	Quit syscall.Signal
}

// Group is the processes of one benchmark and a directory for their files. Its methods may be called concurrently.
type Group struct {
	Dir string // removed by Stop

	mu    sync.Mutex // guards procs
	procs []*Process
}

// NewGroup makes the directory, which every user can enter.
func NewGroup() (*Group, error) {
	dir, err := os.MkdirTemp(base(), prefix)
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.WriteFile(filepath.Join(dir, ownerFile), []byte(identity(os.Getpid())), 0o644), os.Chmod(dir, 0o755))
	return &Group{Dir: dir}, err
}

// prefix is the beginning of the directories' names.
const prefix = "hp-bench-"

// base is the parent of the directories.
func base() string {
	if dir := os.TempDir(); len(dir) <= 60 { // the path of a Unix socket has 107 bytes
		return dir
	}
	return "/tmp"
}

// File writes a file that every process of the group can read.
func (g *Group) File(name, content string) (string, error) {
	path := filepath.Join(g.Dir, name)
	return path, os.WriteFile(path, []byte(content), 0o644)
}

// Stop ends all processes and removes the directory.
func (g *Group) Stop() error {
	g.mu.Lock()
	procs := g.procs
	g.procs = nil
	g.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range procs {
		wg.Go(p.Stop)
	}
	wg.Wait()
	return os.RemoveAll(g.Dir)
}

// Process is one process under test, with its children.
type Process struct {
	Name string
	pid  int
	quit syscall.Signal
	log  string
	done chan struct{}
	err  error // valid when done is closed
}

// Start starts a process. Its output goes to a file.
func (g *Group) Start(s Spec) (*Process, error) {
	log, err := os.Create(filepath.Join(g.Dir, fmt.Sprintf("%s-%d.log", s.Name, rand.Uint32())))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = g.Dir, log, log, append(os.Environ(), s.Env...)
	p := &Process{Name: s.Name, quit: s.Quit, log: log.Name(), done: make(chan struct{})}
	if p.quit == 0 {
		p.quit = syscall.SIGTERM
	}
	// A session of its own, as with service managers. An interrupt for this process then does not reach it. Where the
	// kernel divides processor time by sessions it does not share with the load generator; each of PostgreSQL's
	// processes has its own session.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGTERM}
	if p.quit == syscall.SIGINT || p.quit == syscall.SIGQUIT {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
	}
	if s.Unprivileged {
		if cmd.SysProcAttr.Credential, err = Unprivileged(); err != nil {
			return nil, err
		}
	}
	started := make(chan error, 1)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.procs = append(g.procs, p)
	return p, nil
}

// run keeps the thread that started the process: the kernel would take the end of the thread for the end of the parent.
func (p *Process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	if err == nil {
		p.pid = cmd.Process.Pid
	}
	started <- err
	if err == nil {
		p.err = cmd.Wait()
		close(p.done)
	}
}

// Unprivileged returns the user to run as: nil if this process does not run as root.
func Unprivileged() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("this program runs as root, and there is neither a user postgres nor nobody for what must not")
}

// Stop asks the process to end, then kills it and all it started. It returns when the process has ended.
func (p *Process) Stop() {
	if p.Ended() != nil {
		return
	}
	_ = syscall.Kill(p.pid, p.quit)
	select {
	case <-p.done:
	case <-time.After(stopTime):
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // the whole group
	<-p.done
}

// ErrEnded means that a process has ended.
var ErrEnded = errors.New("the process has ended")

// Ended returns nil while the process runs, otherwise an error that tells how it ended, with its
// last output.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		if p.err == nil {
			return fmt.Errorf("%s: %w by itself: %s", p.Name, ErrEnded, p.Log())
		}
		return fmt.Errorf("%s: %w (%w): %s", p.Name, ErrEnded, p.err, p.Log())
	default:
		return nil
	}
}

// Log returns the end of the process's output.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// WaitListening returns when addr accepts a connection. After 15 seconds it returns an error.
func (p *Process) WaitListening(addr string) error {
	deadline := time.Now().Add(15 * time.Second)
	for {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return c.Close()
		}
		if ended := p.Ended(); ended != nil {
			return ended
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer at %s: %w\n%s", p.Name, addr, err, p.Log())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// pids returns the process and its descendants.
func (p *Process) pids() []int {
	all := []int{p.pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children(all[i])...)
	}
	return all
}

// children returns the processes that the threads of pid have started.
func children(pid int) []int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid))
	if len(lists) == 0 {
		return childrenBySearch(strconv.Itoa(pid))
	}
	var found []int
	for _, path := range lists {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}

// childrenBySearch is for kernels without those lists (CONFIG_PROC_CHILDREN): it reads the parent of every process.
func childrenBySearch(parent string) []int {
	var found []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if f := stat(pid); err == nil && len(f) > 1 && f[1] == parent {
			found = append(found, pid)
		}
	}
	return found
}

// CPU returns the processor time, user and system, of the process and its descendants. It is utime plus stime of
// /proc/PID/stat, but read from the process's clock, which counts nanoseconds instead of hundredths of a second and
// includes ended threads. For ended descendants it is cutime and cstime, in hundredths. Interrupts and the kernel's
// half of a loopback packet count for the sender.
func (p *Process) CPU() (time.Duration, error) {
	if err := p.Ended(); err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range p.pids() {
		const schedClock = 2 // CPUCLOCK_SCHED of a whole process
		var ts syscall.Timespec
		_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(^pid<<3|schedClock), uintptr(unsafe.Pointer(&ts)), 0)
		if errno == 0 {
			sum += time.Duration(ts.Nano()) + ended(pid)
		} else if pid == p.pid {
			return 0, fmt.Errorf("processor time of %s: %w", p.Name, errno)
		}
	}
	return sum, nil
}

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// ended returns the processor time of the ended descendants of a process.
func ended(pid int) time.Duration {
	const cutime, cstime = 13, 14
	var sum time.Duration
	if f := stat(pid); len(f) > cstime {
		for _, field := range f[cutime : cstime+1] {
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// Memory is the resident memory now and at its peak since ResetPeak, in bytes, summed over the process and its descendants.
// Data is the part of RSS without the pages of files, such as the program's own, which are the same for any number of clients
// and which the kernel or the process may drop and read again.
type Memory struct{ RSS, Data, Peak int64 }

// Memory reads VmRSS, RssAnon, RssShmem and VmHWM of /proc/PID/status.
func (p *Process) Memory() Memory {
	var m Memory
	for _, pid := range p.pids() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		m.RSS += field(string(data), "\nVmRSS:") << 10
		m.Data += (field(string(data), "\nRssAnon:") + field(string(data), "\nRssShmem:")) << 10
		m.Peak += field(string(data), "\nVmHWM:") << 10
	}
	return m
}

// field reads the number of a line such as "VmRSS:   1234 kB".
func field(status, name string) int64 {
	_, rest, _ := strings.Cut(status, name)
	f := strings.Fields(rest)
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(f[0], 10, 64)
	return n
}

// ResetPeak resets the peak to the current memory.
func (p *Process) ResetPeak() {
	for _, pid := range p.pids() {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // fails for another user's process: its peak is not reset
	}
}

// Switches returns the number of context switches, voluntary and not, of the living threads of the process and its
// descendants.
func (p *Process) Switches() int64 {
	var sum int64
	for _, pid := range p.pids() {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/status", pid))
		for _, path := range tasks {
			if data, err := os.ReadFile(path); err == nil {
				sum += field(string(data), "\nvoluntary_ctxt_switches:") + field(string(data), "\nnonvoluntary_ctxt_switches:")
			}
		}
	}
	return sum
}

// FreePort returns a free port of 127.0.0.1; see package freeport.
func FreePort() (string, error) {
	port, err := freeport.Get()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}
