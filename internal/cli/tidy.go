package cli

import (
	"runtime/metrics"
	"time"
)

// After a burst (many logins, large requests) the collector keeps the memory for the next one: the
// heap may stay at twice what is in use, and the stacks of sessions that have become idle stay
// until the next collection, which in an idle process comes after minutes. So memory is collected
// and returned to the system once the burst is over, and idle clients cost only the memory that
// they use.
const (
	tidyLook  = time.Second
	tidyQuiet = 256 << 10        // bytes allocated between two looks of a process that has nothing to do
	tidyWorth = 1 << 20          // bytes allocated since the last time, to make it worth while, and
	tidyShare = 8                // at least this part of what is in use, which the collector has to look at
	tidyPause = 10 * time.Second // between two times, so that load that comes and goes is left alone
)

// tidier decides when to return memory.
type tidier struct {
	last, tidied uint64 // bytes allocated by the last look, and by the last time
	at           time.Time
}

// due reports whether to return memory now; allocated is the total allocated so far, of which live bytes were in use when the
// collector looked last.
func (t *tidier) due(now time.Time, allocated, live uint64) bool {
	quiet := allocated-t.last < tidyQuiet
	t.last = allocated
	if !quiet || allocated-t.tidied < max(tidyWorth, live/tidyShare) || now.Sub(t.at) < tidyPause {
		return false
	}
	t.tidied, t.at = allocated, now
	return true
}

// tidy calls trim when memory should be returned, until done is closed.
func tidy(done <-chan struct{}, trim func()) {
	var t tidier
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(tidyLook)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-ticker.C:
			metrics.Read(samples)
			if t.due(now, samples[0].Value.Uint64(), samples[1].Value.Uint64()) {
				trim()
			}
		}
	}
}
