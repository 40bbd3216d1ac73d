package pool

import (
	"fmt"
	"runtime"
	"strings"
	"time"
)

const (
	// The first leakEvery acquires have their call stack taken, and then one
	// in leakEvery: a leak that matters happens again and again. After a leak
	// without a call stack all have it taken, until a leak is found with one.
	leakEvery = 16
	leakDepth = 16
)

// Leak is a lease held for longer than Config.LeakAfter.
type Leak struct {
	Pool string
	Held time.Duration
	// Site is the call stack of the Acquire, one "function file:line" per
	// line, innermost first. It is taken for a sample of the acquires (the
	// first 16, then one in 16), and empty for the others. After a leak with
	// an empty Site it is taken for all acquires, until a leak has one: a leak
	// that happens again is found, however rare it is.
	Site string
}

// hold is when and where the current lease of a slot began, if leaks are
// reported.
type hold struct {
	since    int64
	site     []uintptr
	reported bool
}

// hold records the call stack of an Acquire, for a sample. Under mu; called from Acquire.
func (p *Pool[T]) hold(s *slot[T]) {
	c := &p.core
	if c.leakAfter == 0 || (!c.wantSite && c.acquired > leakEvery && c.acquired%leakEvery != 0) {
		return
	}
	pcs := make([]uintptr, leakDepth)
	s.hold.site = pcs[:runtime.Callers(3, pcs)]
}

// findLeaks returns the leases held for too long that were not reported yet.
func (c *core[T]) findLeaks() []Leak {
	if c.leakAfter == 0 {
		return nil
	}
	var leaks []Leak
	sites := 0
	for s := c.all; s != nil; s = s.nxt {
		if s.gen%2 == 1 && !s.hold.reported && c.clock-s.hold.since >= c.leakAfter {
			s.hold.reported = true
			leaks = append(leaks, Leak{c.name, time.Duration(c.clock - s.hold.since), site(s.hold.site)})
			if len(s.hold.site) > 0 {
				sites++
			}
		}
	}
	if len(leaks) > 0 {
		c.wantSite = sites == 0
	}
	return leaks
}

// nextLeak is when the next lease becomes a leak.
func (c *core[T]) nextLeak() int64 {
	at := int64(never)
	if c.leakAfter > 0 {
		for s := c.all; s != nil; s = s.nxt {
			if s.gen%2 == 1 && !s.hold.reported {
				at = min(at, s.hold.since+c.leakAfter)
			}
		}
	}
	return at
}

// site renders a call stack, without the pool's own frames.
func site(pcs []uintptr) string {
	var b strings.Builder
	frames := runtime.CallersFrames(pcs)
	for more := len(pcs) > 0; more; {
		var f runtime.Frame
		f, more = frames.Next()
		if strings.Contains(f.Function, "headpond/pool.(*Pool") {
			continue
		}
		fmt.Fprintf(&b, "%s %s:%d\n", f.Function, f.File, f.Line)
	}
	return b.String()
}
