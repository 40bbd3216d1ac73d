package httpproxy

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool/httppool"
)

// about is the entry of a connection or stream in the register of sessions. Its mutex is held for a few instructions.
type about struct {
	mu       sync.Mutex
	text     []byte   // method, host, path and user agent of the last request, in an array of abouts or of their size; nil = no request
	ends     [4]uint8 // the ends of these four parts in text
	idle     bool     // there is no request
	waits    bool     // the request waits for a connection, until endpoint is set
	upstream string   // empty = the request has no route yet
	mirror   string   // the upstream for a copy of the request; empty = none
	endpoint string   // endpoint whose connection the request uses; empty = none
	since    time.Time
	held     time.Time
}

// Limits of the parts of a request in the register, in bytes.
const (
	maxMethod = 15
	maxHost   = 64
	maxPath   = 128
	maxAgent  = 48
	maxAbout  = maxMethod + maxHost + maxPath + maxAgent
)

var abouts = sync.Pool{New: func() any { return new([maxAbout]byte) }}

// set records a request. path has no query, which may hold secrets.
func (a *about) set(since time.Time, waits bool, to *target, method, host, path, agent string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cap(a.text) < maxAbout {
		a.text = abouts.Get().(*[maxAbout]byte)[:]
	}
	n := copy(a.text[:maxMethod], method)
	a.ends[0] = uint8(n)
	n += copy(a.text[n:n+maxHost], host)
	a.ends[1] = uint8(n)
	n += copy(a.text[n:n+maxPath], path)
	a.ends[2] = uint8(n)
	n += copy(a.text[n:n+maxAgent], agent)
	a.ends[3] = uint8(n)
	a.idle, a.waits, a.upstream, a.mirror, a.endpoint, a.since = false, waits, "", "", "", since
	if to == nil {
		return
	}
	if a.upstream = to.name; to.mirror != nil {
		a.mirror = to.mirror.Upstream.Name()
	}
}

// holds records that the request has got a connection.
func (a *about) holds(endpoint string, since time.Time) {
	a.mu.Lock()
	a.endpoint, a.held = endpoint, since
	a.mu.Unlock()
}

// setIdle records that the connection has no request.
func (a *about) setIdle(since time.Time) {
	a.mu.Lock()
	a.idle, a.since = true, since
	a.mu.Unlock()
}

// drop frees the memory.
func (a *about) drop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.free()
}

// free frees the memory. mu is held.
func (a *about) free() {
	if cap(a.text) == maxAbout {
		abouts.Put((*[maxAbout]byte)(a.text))
	}
	a.text = nil
}

// shrink makes the entry of a request that may take long as small as it can be.
func (a *about) shrink() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cap(a.text) == maxAbout {
		text := bytes.Clone(a.text[:a.ends[3]])
		a.free()
		a.text = text
	}
}

// describe returns info completed with the entry.
func (a *about) describe(info listener.Info) listener.Info {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.idle:
		info.State, info.Since = listener.StateIdle, a.since
		return info
	case a.text == nil:
		info.State = listener.StateStarting
		return info
	}
	text, e := string(a.text[:a.ends[3]]), a.ends
	info.Method, info.Host, info.Path, info.Application = text[:e[0]], text[e[0]:e[1]], text[e[1]:e[2]], text[e[2]:]
	info.State, info.Since, info.Upstream, info.Mirror = listener.StateActive, a.since, a.upstream, a.mirror
	switch {
	case a.endpoint != "":
		info.Endpoint, info.Held = a.endpoint, a.held
	case a.waits:
		info.State = listener.StateWaiting
	}
	return info
}

const userAgent = "user-agent"

// note records the request that the session serves. It has no target yet if waits is false: something else is awaited before, which may
// decide about the target.
func (s *session) note(path string, waits bool) {
	agent := ""
	for i := range s.req.Fields {
		if f := &s.req.Fields[i]; len(f.Name) == len(userAgent) && strings.EqualFold(view(f.Name), userAgent) {
			agent = view(f.Value)
		}
	}
	var to *target
	if waits {
		to = s.ex.target
	}
	s.about.set(s.now, waits, to, view(s.req.Method), view(s.req.Host), path, agent)
}

// Describe implements listener.Session, for the connection and its streams.
func (h *http2) Describe(all []listener.Info, base listener.Info) []listener.Info {
	h.mu.Lock()
	defer h.mu.Unlock()
	return describeStreams(all, base, h.idle, h.streams, func(st *h2Stream) (*about, time.Time) { return &st.about, st.received })
}

// describeStreams describes a connection and its requests by their numbers. idle is since when it has had none, entry returns that of a
// request and when it came.
func describeStreams[N uint32 | uint64, S any](all []listener.Info, base listener.Info, idle time.Time, streams map[N]S, entry func(S) (*about, time.Time)) []listener.Info {
	whole := base
	if whole.Streams = len(streams); whole.Streams == 0 {
		whole.State, whole.Since = listener.StateIdle, idle
	}
	all = append(all, whole)
	base.BytesIn, base.BytesOut = 0, 0
	for id, st := range streams {
		base.ID = listener.StreamID(whole.ID, uint64(id))
		about, came := entry(st)
		base.Since = came
		all = append(all, about.describe(base))
	}
	return all
}

var errKilled = errors.New("an operator has ended it")

// killed reports whether an operator has ended the request, or its connection.
func (s *session) killed() bool {
	return s.lc.Killed() || s.stream != nil && s.stream.killed()
}

// byKill returns the error of a request that its client seems to have given up, but an operator has ended.
func (s *session) byKill(err error) error {
	if err == nil || errors.Is(err, errKilled) || reasonOf(err) != listener.ReasonClientGone || !s.killed() {
		return err
	}
	return fmt.Errorf("%w: %w", httppool.ErrClientGone, errKilled)
}

// Kill implements listener.Session.
func (h *http2) Kill(stream uint64) bool {
	if stream == 0 {
		return h.p.srv.KillConn(h.lc)
	}
	if stream > math.MaxUint32 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.streams[uint32(stream)]
	if st == nil || st.err != nil {
		return false
	}
	h.p.srv.CountError(listener.ReasonKilled)
	st.reset(errKilled)
	return true
}

// Sessions describes the connections and their streams, in no particular order.
func (p *Proxy) Sessions() []listener.Info { return p.srv.Sessions() }

// Kill closes the connection or resets the stream with an ID from Sessions; false = there is none.
func (p *Proxy) Kill(id listener.ID, stream uint64) bool { return p.srv.Kill(id, stream) }
