package fiber

// waiter is a fiber or a goroutine that waits to be woken once. It may be copied.
type waiter struct {
	fiber *coroutine
	done  chan struct{} // for a goroutine
}

// newWaiter returns a waiter for the caller.
func newWaiter() waiter {
	if f := currentFiber(); f != nil {
		return waiter{fiber: f}
	}
	return waiter{done: make(chan struct{})}
}

func (w waiter) wait() {
	if w.fiber != nil {
		w.fiber.park()
		return
	}
	<-w.done
}

// wake may be called before wait.
func (w waiter) wake() {
	if w.fiber != nil {
		w.fiber.loop.wake(w.fiber)
		return
	}
	close(w.done)
}
