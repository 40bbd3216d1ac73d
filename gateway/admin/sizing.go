package admin

import (
	"fmt"
	"time"
)

const (
	// sizingAcquires and sizingTime are how much a pool must have seen for its counters to say something about its size.
	sizingAcquires = 1000
	sizingTime     = time.Hour
	// sizingWaits is the part of acquires that may wait. A pool that is well sized has some that do: connections that are
	// idle at every peak cost the server memory for nothing.
	sizingWaits = 0.01
	// sizingRefused is the part of acquires that may be refused: one outage of a server must not speak against its pool for ever.
	sizingRefused = 0.001
	// sizingSlack is how much larger than its highest use a pool may be.
	sizingSlack = 2
)

// sizing are sentences about pools of PostgreSQL connections whose counters show that max_size is too small, or larger than needed. The
// connections of other protocols cost a server little, and their limits are there for accidents.
func sizing(s *Status, now time.Time) []string {
	lines := []string{}
	for _, u := range s.Upstreams {
		if u.Protocol != "postgres" {
			continue
		}
		for _, e := range u.Endpoints {
			if text := e.Pool.advice(now.Sub(e.Pool.Since)); text != "" && !e.Removed {
				lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s: %s", u.Name, e.Address, text))
			}
		}
	}
	return lines
}

// advice returns a sentence about a pool's size, "" if it is right or there is too little data; age is the pool's.
func (p *Pool) advice(age time.Duration) string {
	refused := p.TimedOut + p.Rejected
	all := p.Acquired + refused + p.Canceled
	if all < sizingAcquires {
		return ""
	}
	// Callers also wait while a connection is opened for them, in a pool of any size.
	waited := p.Waited - min(p.Waited, p.Opened+p.OpenFailed)
	part := func(n uint64) float64 { return float64(n) / float64(all) }
	switch {
	case p.PeakInUse >= p.MaxSize && (part(waited) > sizingWaits || part(refused) > sizingRefused):
		return fmt.Sprintf("max_size %d is small: %.1f %% of the acquires waited (99 of 100 took at most %v), %d were refused; raise it as far as the server has room",
			p.MaxSize, 100*part(waited), seconds(p.AcquireSeconds.P99), refused)
	case age >= sizingTime && p.MaxSize > sizingSlack*p.PeakInUse && waited == 0 && refused == 0:
		return fmt.Sprintf("max_size %d is more than needed: never more than %d were in use in %v", p.MaxSize, p.PeakInUse, span(age))
	}
	return ""
}

// span writes a time of an hour or more.
func span(d time.Duration) string {
	if days := int(d.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return fmt.Sprintf("%d hours", int(d.Hours()))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
