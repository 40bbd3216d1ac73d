package pool

// Retry forgets that opens have failed, because their cause may be gone: the next open does not wait for the back-off,
// and opens that waiters need start at once. Resources and opens under way are not affected; see Renew.
func (p *Pool[T]) Retry() {
	var e effects[T]
	p.mu.Lock()
	if c := &p.core; !c.closed {
		p.touch(p.now())
		c.retry(&e)
	}
	p.unlockAsync(&e)
}

// retry ends the back-off.
func (c *core[T]) retry(e *effects[T]) {
	if !c.paused && c.backoff.failures > 0 {
		c.backoff.reset()
		c.lastErr = nil
	}
	c.dispatch(e)
}
