package cli

import (
	"runtime/metrics"
	"time"
)

// After a burst (many logins, large requests) the garbage collector keeps memory for the next one:
// the heap may stay twice as large as what is in use, and the stacks of idle sessions stay until
// the next collection, which an idle process runs after minutes. So memory is collected and
// returned to the system when the burst is over, and idle clients take only the memory that they
// use.
const (
	tidyLook  = time.Second
	tidyQuiet = 256 << 10        // at most this many bytes allocated between two checks of an idle process, or
	tidyStill = 32               // this fraction of the live heap, as clients that wait for long are checked now and then
	tidyWorth = 1 << 20          // at least this many bytes allocated since the last trim, and
	tidyShare = 8                // at least this fraction of the live heap, which the collector must scan
	tidyCost  = 500              // between two trims pass this many times as long as the first took, and at most
	tidyPause = 10 * time.Second // this long, so that alternating load does not spend its time on trims
)

// tidier decides when to return memory.
type tidier struct {
	last, tidied uint64        // bytes allocated at the last check, and at the last trim
	at           time.Time     // of the last trim
	pause        time.Duration // until the next
}

// due reports whether to trim now. allocated is the total allocated so far; live is the memory in use at the last
// collection.
func (t *tidier) due(now time.Time, allocated, live uint64) bool {
	quiet := allocated-t.last < max(tidyQuiet, live/tidyStill)
	t.last = allocated
	if !quiet || allocated-t.tidied < max(tidyWorth, live/tidyShare) || now.Sub(t.at) < t.pause {
		return false
	}
	t.tidied, t.at = allocated, now
	return true
}

// took notes how long the last trim took.
func (t *tidier) took(d time.Duration) { t.pause = min(tidyCost*d, tidyPause) }

// tidy calls trim when the start is over, as ready tells, and then when it is due, until done is closed.
func tidy(ready, done <-chan struct{}, trim func()) {
	select {
	case <-ready:
		trim()
	case <-done:
		return
	}
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
				began := time.Now()
				trim()
				t.took(time.Since(began))
			}
		}
	}
}
