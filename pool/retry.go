package pool

// Retry forgets that opens have failed, because their cause may be gone: the next open does not wait for the back-off,
// and opens that waiters need start at once. Opens under way are not affected.
func (p *Pool[T]) Retry() {
	var e effects[T]
	p.mu.Lock()
	c := &p.core
	if !c.closed && !c.paused && c.backoff.failures > 0 {
		p.touch(p.now())
		c.backoff.reset()
		c.lastErr = nil
		c.dispatch(&e)
	}
	p.unlockAsync(&e)
}
