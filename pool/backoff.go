package pool

import "time"

const (
	// minBackoff is short: one lost packet must not keep callers waiting.
	minBackoff = 10 * time.Millisecond
	// maxBackoff bounds how long a backend that is up again stays unnoticed.
	maxBackoff = time.Second
	// After stalledRounds rounds of failed opens in a row, with no caller served in
	// between, waiters no longer wait for the resources that are in use.
	stalledRounds = 3
)

// backoff counts rounds of failed opens. Opens that ran side by side and failed
// together are one round.
type backoff struct {
	round    uint64
	failures int   // rounds in a row
	stalled  int   // rounds since the last hand-over
	retryAt  int64 // no open starts before
}

// failed records that an open of the given round failed; rnd is from [0, 1).
func (b *backoff) failed(round uint64, now int64, rnd float64) {
	if round != b.round {
		return
	}
	b.round++
	b.failures++
	b.stalled++
	d := maxBackoff
	if shift := b.failures - 1; shift < 7 {
		d = min(minBackoff<<shift, maxBackoff)
	}
	b.retryAt = now + int64(float64(d)*(0.5+rnd/2))
}

func (b *backoff) reset() {
	b.failures, b.stalled, b.retryAt = 0, 0, 0
	b.round++
}
