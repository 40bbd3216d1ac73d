package admin

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"
)

const (
	// sizingAcquires and sizingTime are the least use and age of a pool whose counters say something about
	// its size.
	sizingAcquires = 1000
	sizingTime     = time.Hour
	// sizingWaits is the fraction of acquires that may wait. In a pool of the right size some do:
	// connections that are used only at peaks cost the server memory.
	sizingWaits = 0.01
	// sizingRefused is the fraction of acquires that may be refused: one outage of a server must not count
	// against its pool forever.
	sizingRefused = 0.001
	// sizingSlack is how much larger than its highest use a pool may be.
	sizingSlack = 2
	// warmGain is the least time of connecting for which a warm connection pays. On one machine connecting
	// takes less, about as long as a warm connection costs the gateway and the server.
	warmGain = 100 * time.Microsecond
	// warmMissed is the fraction of sessions that may find no warm connection.
	warmMissed = 0.1
)

// sizing returns sentences about pools of heavy connections whose counters show that max_size is too
// small, or larger than needed, and about warm connections for one session each that do not pay. Other
// connections cost a server little, and their limits only prevent accidents.
func sizing(s *Status, now time.Time) []string {
	lines := []string{}
	for _, u := range s.Upstreams {
		for _, e := range u.Endpoints {
			text := ""
			switch {
			case !e.Pool.Reuses:
				text = e.Pool.warmAdvice()
			case e.Pool.heavy && len(u.Pairs) == 0 && e.Pool.MaxSize > 0: // max_size is that of one pair: their sum says nothing about it
				text = e.Pool.advice(now.Sub(e.Pool.Since))
			}
			if text != "" && !e.Removed {
				lines = append(lines, fmt.Sprintf("upstream %s, endpoint %s: %s", u.Name, e.Address, text))
			}
		}
	}
	return lines
}

// advice returns a sentence about a pool's size, "" if the size is right or there is too little data;
// age is the pool's.
func (p *Pool) advice(age time.Duration) string {
	refused := p.TimedOut + p.Rejected + p.GaveUp
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

// warmAdvice returns a sentence about connections that are opened in advance for one session each, ""
// if there are none, they pay or there is too little data.
func (p *Pool) warmAdvice() string {
	if p.MaxWarm == 0 || p.Acquired < sizingAcquires || p.OpenSeconds == 0 {
		return ""
	}
	takes := seconds(p.OpenSeconds).Round(time.Microsecond)
	missed := float64(p.Waited) / float64(p.Acquired)
	switch {
	case takes < warmGain || onThisMachine(p.Endpoint):
		return fmt.Sprintf("min_idle %d gains nothing: connecting takes %v, as long as what a connection kept ready costs; leave it out", p.MinIdle, takes)
	case missed > warmMissed && p.MaxWarm > p.MinIdle && p.WarmTarget == p.MaxWarm:
		return fmt.Sprintf("max_warm %d is small: %.0f %% of the sessions found no connection ready and waited; connecting takes %v", p.MaxWarm, 100*missed, takes)
	case missed > warmMissed:
		return fmt.Sprintf("min_idle %d is small: %.0f %% of the sessions found no connection ready and waited; connecting takes %v", p.MinIdle, 100*missed, takes)
	}
	return ""
}

// onThisMachine reports whether an endpoint is a loopback address or a Unix socket. On a busy machine
// connecting to these takes time, too, but so does the use of warm connections.
func onThisMachine(endpoint string) bool {
	if strings.HasPrefix(endpoint, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(endpoint)
	ip, _ := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || ip.Unmap().IsLoopback())
}

// span formats a time of an hour or more.
func span(d time.Duration) string {
	if days := int(d.Hours() / 24); days >= 2 {
		return fmt.Sprintf("%d days", days)
	}
	return fmt.Sprintf("%d hours", int(d.Hours()))
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
