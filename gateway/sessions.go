package gateway

import (
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/headpond/headpond/gateway/admin"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
	"github.com/headpond/headpond/traffic"
)

// registers returns all registers, including those that a reload has taken out of service.
func (g *Gateway) registers() (all []extend.Register) {
	g.mu.Lock()
	for _, s := range g.services {
		all = append(all, s.proxy)
	}
	for _, l := range g.retiring {
		if s, ok := l.part.(*service); ok {
			all = append(all, s.proxy)
		}
	}
	g.mu.Unlock()
	for _, p := range g.parts {
		all = append(all, p.Registers()...)
	}
	return all
}

// Sessions describes all sessions of the listeners and of extensions, in no order. During an upgrade it adds those of
// older processes, whose IDs end in @ and the number of the process: it waits up to a second for a process, and lists at
// most 10,000 sessions of one.
func (g *Gateway) Sessions() []listener.Info { return append(g.ownSessions(), g.oldSessions()...) }

// ownSessions describes the sessions of this process.
func (g *Gateway) ownSessions() []listener.Info {
	var all []listener.Info
	for _, r := range g.registers() {
		all = append(all, r.Sessions()...)
	}
	return all
}

// Kill ends the session or stream with an ID of Sessions, and reports whether there was one: PostgreSQL clients get
// 57P01 and their statements are canceled, HTTP connections are closed and streams reset, TCP connections are reset.
func (g *Gateway) Kill(id string) bool {
	if id, pid, ok := cutProcess(id); ok {
		return g.killOld(id, pid)
	}
	return g.killHere(id)
}

// killHere ends a session of this process.
func (g *Gateway) killHere(id string) bool {
	session, stream, ok := listener.ParseID(id)
	if !ok {
		return false
	}
	all := g.ownSessions()
	for _, r := range g.registers() {
		if !r.Kill(session, stream) {
			continue
		}
		attrs := []any{"session", id}
		if i := slices.IndexFunc(all, func(s listener.Info) bool { return s.ID == id }); i >= 0 {
			attrs = sessionAttrs(all[i])
		}
		g.logger.Info("session ended by an operator", attrs...)
		return true
	}
	return false
}

// sessionAttrs returns the attributes of a session for the log. Empty values are omitted.
func sessionAttrs(s listener.Info) []any {
	attrs := []any{"session", s.ID, "listener", s.Listener, "client", s.Client, "state", string(s.State)}
	for _, a := range []struct{ key, value string }{
		{"user", s.User}, {"database", s.Database}, {"application_name", s.Application}, {"method", s.Method}, {"host", s.Host}, {"path", s.Path},
		{"upstream", s.Upstream}, {"endpoint", s.Endpoint},
	} {
		if a.value != "" {
			attrs = append(attrs, a.key, a.value)
		}
	}
	if s.ServerPID != 0 {
		attrs = append(attrs, "server_pid", s.ServerPID)
	}
	return attrs
}

// How often the gateway looks for sessions that hold a connection for long while others wait, and how
// many of them it names for each upstream: the longest holders only, since a TCP upstream may have
// thousands.
const (
	holderInterval = time.Second
	maxHolders     = 5
)

// watchHolders is a goroutine that names such sessions in the log.
func (g *Gateway) watchHolders() {
	look := time.NewTicker(holderInterval)
	defer look.Stop()
	var h holders
	for {
		select {
		case <-g.hard.Done():
			return
		case now := <-look.C:
			g.mu.Lock()
			limit, backends := g.cfg.HeldWarning, slices.Clone(g.backends)
			g.mu.Unlock()
			h.check(g, backends, limit, now)
		}
	}
}

// keepTotals is a goroutine that records the counters of listeners and endpoints, for the figures of the last minute.
func (g *Gateway) keepTotals() {
	step := time.NewTicker(traffic.WindowStep)
	defer step.Stop()
	for {
		select {
		case <-g.hard.Done():
			return
		case now := <-step.C:
			g.keepTotal(now)
		}
	}
}

// keepTotal records the counters at a moment.
func (g *Gateway) keepTotal(now time.Time) {
	g.mu.Lock()
	services, backends := slices.Clone(g.services), slices.Clone(g.backends)
	g.mu.Unlock()
	for _, b := range backends {
		st := b.impl.Status()
		b.recent.keep(now, &st)
	}
	for _, svc := range services {
		if unit, total := totalOf(svc.proxy.Stats()); unit != "" {
			svc.recent.Keep(now, total)
		}
	}
}

// totalOf returns a listener's count and its unit; "" if its protocol has none.
func totalOf(s listener.Stats) (unit string, total traffic.Total) {
	for _, t := range s.Traffic {
		if t.Summary != nil {
			return t.Summary.Unit, t.Total()
		}
	}
	return "", total
}

// idForOperators returns the ID by which operators end a session of this process: at the process that has taken over, if
// one has.
func (g *Gateway) idForOperators(id string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left {
		return id + "@" + strconv.Itoa(os.Getpid())
	}
	return id
}

// holders are the sessions that were logged, with the time for which each had held its connection by
// then.
type holders struct {
	named map[holder]time.Duration
}

// holder is one session's hold on one connection.
type holder struct {
	session string
	since   time.Time
}

// check logs the sessions that have held a connection for limit or longer to an upstream with waiting
// sessions; 0 = none. A session is logged again when it has held the connection twice as long.
func (h *holders) check(g *Gateway, backends []*backend, limit time.Duration, now time.Time) {
	crowded := map[string]int{}
	for _, b := range backends {
		if limit == 0 {
			break
		}
		status := b.impl.Status()
		waiting := status.Waiting
		for _, e := range status.Endpoints {
			waiting += waitForLeases(e.Pool)
		}
		if waiting > 0 {
			crowded[status.Name] += waiting
		}
	}
	if len(crowded) == 0 {
		return
	}
	for _, s := range h.due(g.ownSessions(), crowded, limit, now) {
		g.logger.Warn("a session holds a connection that others wait for", append(sessionAttrs(s),
			"held", now.Sub(s.Held).Round(time.Second), "waiting", crowded[s.Upstream], "hint", "headpond ctl kill "+g.idForOperators(s.ID))...)
	}
}

// waitForLeases returns how many of a pool's waiters need a connection that somebody holds. Others get connections that are
// being opened, or wait for the end of a pause or, in a pool with room whose last open has failed, for the next open.
func waitForLeases(s pool.Stats) int {
	room := s.InUse+s.Idle+s.Opening+s.Busy < s.MaxSize
	if s.Paused || room && s.LastOpenError != nil {
		return 0
	}
	return max(s.Waiting-s.Opening, 0)
}

// due returns the sessions to name in the log now, and records them. crowded has the number of waiters for each
// upstream. A named session is remembered as long as it holds the connection, also while none waits: otherwise each new
// queue would name the same sessions again.
func (h *holders) due(all []listener.Info, crowded map[string]int, limit time.Duration, now time.Time) (due []listener.Info) {
	all = slices.DeleteFunc(all, func(s listener.Info) bool { return s.Held.IsZero() || now.Sub(s.Held) < limit })
	admin.SortSessions(all)
	seen, named := map[string]int{}, map[holder]time.Duration{}
	for _, s := range all {
		key, held := holder{s.ID, s.Held}, now.Sub(s.Held)
		last, again := h.named[key]
		if again {
			named[key] = last
		}
		if seen[s.Upstream]++; crowded[s.Upstream] == 0 || seen[s.Upstream] > maxHolders || again && held < 2*last {
			continue
		}
		named[key] = held
		due = append(due, s)
	}
	h.named = named
	return due
}
