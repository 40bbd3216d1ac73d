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
	// sizingSlack is what a pool may be larger than its highest use.
	sizingSlack = 2
)

// sizing are sentences about pools of PostgreSQL connections whose counters show that max_size is too small, or larger than needed. The
// connections of other protocols cost a server little, and their limits are there for accidents.
func sizing(s *Status) []string {
	lines := []string{}
	for _, u := range s.Upstreams {
		if u.Protocol != "postgres" {
			continue
		}
		for _, e := range u.Endpoints {
			if text := e.Pool.advice(time.Duration(s.UptimeSeconds * float64(time.Second))); text != "" && !e.Removed {
				lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s: %s", u.Name, e.Address, text))
			}
		}
	}
	return lines
}

// advice says what a pool's counters since the start say about its size, "" if it is right or there is too little to tell.
func (p *Pool) advice(up time.Duration) string {
	if p.Acquired+p.TimedOut+p.Rejected < sizingAcquires {
		return ""
	}
	refused := p.TimedOut + p.Rejected
	part := float64(p.Waited) / float64(p.Acquired+refused)
	switch {
	case p.PeakInUse >= p.MaxSize && (part > sizingWaits || refused > 0):
		return fmt.Sprintf("max_size %d is small: %.1f %% of the acquires waited (99 of 100 took at most %v), %d were refused; raise it as far as the server has room",
			p.MaxSize, 100*part, seconds(p.AcquireSeconds.P99), refused)
	case up >= sizingTime && p.MaxSize > sizingSlack*p.PeakInUse && p.Waited == 0:
		return fmt.Sprintf("max_size %d is more than needed: never more than %d were in use in %v", p.MaxSize, p.PeakInUse, span(up))
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
