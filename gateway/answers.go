package gateway

import (
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/internal/link"
	"github.com/headpond/headpond/listener"
)

// Requests between the processes of a gateway. Newer versions may add to the types, and must not change a name.
const (
	askState    = "state"    // what operators have changed: operatorChanges. The process that takes over asks
	askChange   = "change"   // take over this operatorChanges, which is newer than the answer to askState
	askTakeBack = "takeback" // one request for the pause of an upstream, a name, is taken back
	askPause    = "pause"    // a pauseChange, which the process that serves has made
	askVacated  = "vacated"  // nothing: the process has given up the addresses that it cannot hand over
	askLink     = "link"     // a link for one more new process, as the file of the answer
	askStatus   = "status"   // the progress of the process: processStatus
	askSessions = "sessions" // processSessions
	askKill     = "kill"     // end the session of an ID, a string: whether there was one
	askCancel   = "cancel"   // a cancelRequest: whether it was for a client there
)

// processStatus is the progress of a process.
type processStatus struct {
	Version  string    `json:"version"`
	Sessions int       `json:"sessions"`
	Since    time.Time `json:"since,omitzero"` // when it stopped accepting
	Until    time.Time `json:"until,omitzero"` // when its sessions are cut off
}

// processSessions are the sessions of a process, as many as fit.
type processSessions struct {
	Sessions []listener.Info `json:"sessions"` // the names of its fields are those in the message
}

// Limits of processSessions. With names of usual length maxSessions take a third of what a message may have; clients can
// choose names of 10,000 bytes.
const (
	maxSessions     = 10_000
	maxSessionBytes = 6 << 20
)

// fitting returns the first sessions of a list, as many as fit.
func fitting(all []listener.Info) (s processSessions) {
	all = all[:min(len(all), maxSessions)]
	size := 0
	for i := range all {
		text, err := json.Marshal(&all[i])
		if size += len(text); err != nil || size > maxSessionBytes {
			all = all[:i]
			break
		}
	}
	return processSessions{all}
}

// cancelRequest is a PostgreSQL cancel request.
type cancelRequest struct {
	ProcessID uint32 `json:"process_id"`
	Key       []byte `json:"key"`
}

// pauseChange is the beginning or the end of a pause.
type pauseChange struct {
	Upstream string    `json:"upstream"`
	Until    time.Time `json:"until,omitzero"` // missing: it ends
}

// answerTo answers the requests of a process.
func (g *Gateway) answerTo(p *process) link.Handler {
	return func(ctx context.Context, ask string, body json.RawMessage) (answer any, f *os.File, err error) {
		p.silent.Store(false)
		if err := p.may(ask); err != nil {
			return nil, nil, err
		}
		switch ask {
		case askState:
			answer, err = g.handOverChanges(p)
		case askChange:
			var c operatorChanges
			if err = json.Unmarshal(body, &c); err == nil {
				err = g.takeChanges(c)
			}
		case askTakeBack:
			var name string
			if err = json.Unmarshal(body, &name); err == nil {
				g.takeBackInherited(name)
			}
		case askPause:
			var c pauseChange
			if err = json.Unmarshal(body, &c); err == nil {
				g.pauseToo(c)
			}
		case askVacated:
			g.noteVacated()
		case askLink:
			f, err = g.newLink()
		case askStatus:
			answer = g.processStatus()
		case askSessions:
			all := g.ownSessions()
			admin.SortSessions(all)
			answer = fitting(all)
		case askKill:
			var id string
			if err = json.Unmarshal(body, &id); err == nil {
				answer = g.killHere(id)
			}
		case askCancel:
			var c cancelRequest
			if err = json.Unmarshal(body, &c); err == nil {
				answer = g.cancelHere(ctx, c.ProcessID, c.Key)
			}
		default:
			err = link.ErrUnknown
		}
		return answer, f, err
	}
}

// may returns an error for a request that only a process on the other side of an upgrade may make.
func (p *process) may(ask string) error {
	switch {
	case (ask == askState || ask == askPause) && p.older:
		return errOlder
	case (ask == askChange || ask == askTakeBack || ask == askVacated) && !p.older:
		return errNewer
	}
	return nil
}

// processStatus is the answer to askStatus.
func (g *Gateway) processStatus() processStatus {
	s := processStatus{Version: g.opts.Version}
	for _, r := range g.registers() {
		if proxy, ok := r.(extend.Proxy); ok {
			s.Sessions += proxy.Stats().Active
		} else {
			s.Sessions += len(r.Sessions())
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Since, s.Until = g.leftAt, g.drainsUntil
	return s
}

// oldSessions describes the sessions of older processes. Each ID ends in @ and the number of the process.
func (g *Gateway) oldSessions() (all []listener.Info) {
	older := g.processes.answering()
	lists := make([][]listener.Info, len(older))
	var asked sync.WaitGroup
	for i, p := range older {
		asked.Go(func() { lists[i] = p.sessions() })
	}
	asked.Wait()
	for i, p := range older {
		for _, s := range lists[i] {
			s.ID += "@" + strconv.Itoa(p.pid)
			all = append(all, s)
		}
	}
	return all
}

// sessionsAnswer is an answer to askSessions, for which several may wait.
type sessionsAnswer struct {
	done chan struct{} // closed when list is set
	list []listener.Info
}

// sessions asks a process for its sessions. Concurrent callers get the same answer: it may be large, and many answers
// at once would block the link.
func (p *process) sessions() []listener.Info {
	p.mu.Lock()
	a, waits := p.asked, p.asked != nil
	if !waits {
		a = &sessionsAnswer{done: make(chan struct{})}
		p.asked = a
	}
	p.mu.Unlock()
	if waits {
		<-a.done
		return a.list
	}
	for _, got := range askAll[processSessions]([]*process{p}, askPatience, askSessions, nil) {
		a.list = got.answer.Sessions
	}
	p.mu.Lock()
	p.asked = nil
	p.mu.Unlock()
	close(a.done)
	return a.list
}

// killOld ends a session of an older process.
func (g *Gateway) killOld(id, pid string) bool {
	for _, p := range g.processes.older() {
		if strconv.Itoa(p.pid) != pid {
			continue
		}
		for _, a := range askAll[bool]([]*process{p}, askPatience, askKill, id) {
			return a.answer
		}
	}
	return false
}

// cutProcess separates the ID of a session of an older process from the process's number; ok is false for one of this process.
func cutProcess(id string) (session, pid string, ok bool) { return strings.Cut(id, "@") }

// cancelAnywhere is extend.Gateway.Cancel.
func (g *Gateway) cancelAnywhere(ctx context.Context, processID uint32, key []byte) (found bool) {
	if g.cancelHere(ctx, processID, key) {
		return true
	}
	others := g.processes.list()
	if len(others) == 0 {
		return false
	}
	defer g.processes.passing.Add(-1)
	if g.processes.passing.Add(1) > maxPassing {
		return false
	}
	fiber.Block(func() { found = cancelAt(ctx, others, cancelRequest{processID, key}) })
	return found
}

// cancelAt passes a cancel request on to processes, until one of them has its client.
func cancelAt(ctx context.Context, others []*process, c cancelRequest) bool {
	ctx, cancel := context.WithTimeout(ctx, cancelPatience)
	defer cancel() // ends the others
	answers := make(chan bool, len(others))
	for _, p := range others {
		go func() {
			var found bool
			err := p.ask(ctx, askCancel, c, &found)
			answers <- err == nil && found
		}()
	}
	for range others {
		if <-answers {
			return true
		}
	}
	return false
}

// cancelHere passes a cancel request on to a client of this process.
func (g *Gateway) cancelHere(ctx context.Context, processID uint32, key []byte) bool {
	for _, r := range g.registers() {
		if c, ok := r.(extend.Canceler); ok && c.Cancel(ctx, processID, key) {
			return true
		}
	}
	return false
}
