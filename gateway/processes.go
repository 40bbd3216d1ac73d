package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/link"
)

// During an upgrade a gateway has several processes: the one that serves, and older ones that drain. Each has a link to
// each other one, because any of them may end first. A new process inherits its links together with the listening
// sockets. The processes pass on requests that reach the wrong one, and show the sessions of all in the one that serves.

// process is another process of this gateway.
type process struct {
	link  *link.Link
	pid   int  // of an older one
	older bool // this process has taken over from it, or from a process that has

	// silent says that the process did not answer in time. It is not asked for its sessions before it has sent something.
	silent atomic.Bool

	mu       sync.Mutex
	status   processStatus // of an older one, its last answer
	statusAt time.Time     // when that came

	asked *sessionsAnswer // that is on its way; nil: none
}

// processes are the other processes of a gateway.
type processes struct {
	passing atomic.Int32 // cancel requests that are being passed on

	mu        sync.Mutex // not held while a process is asked
	closed    bool
	all       []*process
	successor *process        // the process that has asked for the state; nil: none
	inherited operatorChanges // what it got
}

// linkPrefix begins Socket.Listen of a link, which ends with the number of the process at its other end. No address of a
// configuration has a space. Versions without links close the socket, because their configuration does not have it.
const linkPrefix = "link "

// maxProcesses bounds the other processes of a gateway. Each drains for drain_timeout only.
const maxProcesses = 32

const (
	// askPatience is how long a process may take to answer what operators wait for.
	askPatience = time.Second
	// cancelPatience is how long another process may take to have a server cancel a statement.
	cancelPatience = 5 * time.Second
	// linkPatience bounds the wait for an older process, which may be busy, when a new one is about to start.
	linkPatience = 5 * time.Second
	// statePatience bounds the wait for what operators have changed, at the start of a new process.
	statePatience = 10 * time.Second
	// trackInterval is how often the process that serves asks older ones for their status.
	trackInterval = time.Second
	// trackPatience is how long it waits for the answer, before it asks again. A process that hangs may recover.
	trackPatience = time.Minute
)

// maxPassing bounds the cancel requests that are passed on to other processes at the same time. Clients need no login
// to send any.
const maxPassing = 32

var (
	errOlder   = errors.New("this process has taken over from the other one")
	errNewer   = errors.New("this process has not taken over from the other one")
	errTooMany = fmt.Errorf("there are %d other processes of this gateway already", maxProcesses)
)

// divide separates the links among sockets from the others, which are nil only if list is.
func divide(list []Socket) (links, sockets []Socket) {
	if list != nil {
		sockets = []Socket{}
	}
	for _, s := range list {
		if strings.HasPrefix(s.Listen, linkPrefix) {
			links = append(links, s)
		} else {
			sockets = append(sockets, s)
		}
	}
	return links, sockets
}

// join takes links to older processes over.
func (g *Gateway) join(links []Socket) {
	for _, s := range links {
		pid, err := strconv.Atoi(strings.TrimPrefix(s.Listen, linkPrefix))
		if err == nil {
			err = g.linkTo(s.File, pid, true)
		}
		if err != nil {
			g.logger.Warn("an older process of this gateway cannot be asked", "socket", s.Listen, "error", err)
		}
	}
}

// linkTo adds a process at the other end of a link, which it takes over.
func (g *Gateway) linkTo(f *os.File, pid int, older bool) error {
	ps := &g.processes
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		_ = f.Close()
		return ErrClosed
	}
	if len(ps.all) >= maxProcesses {
		_ = f.Close()
		return errTooMany
	}
	p := &process{pid: pid, older: older}
	p.silent.Store(!older) // a newer one does not run yet
	var err error
	if p.link, err = link.New(f, g.answerTo(p)); err != nil {
		return err
	}
	ps.all = append(ps.all, p)
	g.tasks.Go(func() { g.track(p) })
	return nil
}

// newLink makes a link for a newer process and returns its other end.
func (g *Gateway) newLink() (*os.File, error) {
	ours, theirs, err := link.Pair()
	if err != nil {
		return nil, err
	}
	if err := g.linkTo(ours, 0, false); err != nil {
		_ = theirs.Close()
		return nil, err
	}
	return theirs, nil
}

// links returns links for a new process, to this process and to the older ones.
func (g *Gateway) links() (list []Socket, err error) {
	f, err := g.newLink()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list = []Socket{{linkPrefix + strconv.Itoa(os.Getpid()), f}}
	ctx, cancel := context.WithTimeout(context.Background(), linkPatience)
	defer cancel()
	older := g.processes.older()
	files := make([]*os.File, len(older))
	var asked sync.WaitGroup
	for i, p := range older {
		asked.Go(func() { files[i], _ = p.link.CallFile(ctx, askLink, nil, nil) }) // without it the new process does not know that one
	}
	asked.Wait()
	for i, f := range files {
		if f != nil {
			list = append(list, Socket{linkPrefix + strconv.Itoa(older[i].pid), f})
		}
	}
	return list, nil
}

// track is a goroutine that runs as long as another process. It keeps the status of an older process current.
func (g *Gateway) track(p *process) {
	again := time.NewTicker(trackInterval)
	defer again.Stop()
	for ended := false; !ended; {
		if p.older {
			p.updateStatus()
		}
		select {
		case <-p.link.Done():
			ended = true
		case <-again.C:
		}
	}
	g.processes.remove(p)
	switch why := p.link.Err(); {
	case errors.Is(why, link.ErrClosed) || !p.older:
	case errors.Is(why, io.EOF):
		g.logger.Info("an old process has ended", "pid", os.Getpid(), "old", p.pid)
	default:
		g.logger.Warn("an old process cannot be asked any more", "pid", os.Getpid(), "old", p.pid, "error", why)
	}
}

// updateStatus asks an older process for its status.
func (p *process) updateStatus() {
	ctx, cancel := context.WithTimeout(context.Background(), trackPatience)
	defer cancel()
	late := time.AfterFunc(askPatience, func() { p.silent.Store(true) })
	defer late.Stop()
	var status processStatus
	if p.link.Call(ctx, askStatus, nil, &status) != nil {
		return
	}
	p.silent.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.statusAt = status, time.Now()
}

// ask sends a process a request whose answer an operator or a client waits for.
func (p *process) ask(ctx context.Context, what string, body, answer any) error {
	err := p.link.Call(ctx, what, body, answer)
	if errors.Is(err, context.DeadlineExceeded) {
		p.silent.Store(true)
	}
	return err
}

// answered is what a process has answered.
type answered[T any] struct {
	by     *process
	answer T
}

// askAll asks processes at once, and returns the answers of those that give one within the limit.
func askAll[T any](list []*process, limit time.Duration, what string, body any) (all []answered[T]) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	answers := make([]T, len(list))
	errs := make([]error, len(list))
	var asked sync.WaitGroup
	for i, p := range list {
		asked.Go(func() { errs[i] = p.ask(ctx, what, body, &answers[i]) })
	}
	asked.Wait()
	for i, p := range list {
		if errs[i] == nil {
			all = append(all, answered[T]{p, answers[i]})
		}
	}
	return all
}

// list returns the processes that are linked now.
func (ps *processes) list() []*process {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Clone(ps.all)
}

// answering returns the older ones, without those that are silent.
func (ps *processes) answering() []*process {
	return slices.DeleteFunc(ps.older(), func(p *process) bool { return p.silent.Load() })
}

// older returns those from which this one has taken over.
func (ps *processes) older() []*process {
	return slices.DeleteFunc(ps.list(), func(p *process) bool { return !p.older })
}

func (ps *processes) remove(p *process) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.all = slices.DeleteFunc(ps.all, func(other *process) bool { return other == p })
}

// close ends all links, and makes no other.
func (ps *processes) close() {
	ps.mu.Lock()
	ps.closed = true
	all := slices.Clone(ps.all)
	ps.mu.Unlock()
	for _, p := range all {
		p.link.Close()
	}
}
