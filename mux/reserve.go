package mux

// Messages larger than their windows. While a receiver waits for it, a message that does not
// fit in its channel's window is assembled nevertheless. All such messages of a session that
// are being assembled take at most maxMessage bytes, reserved when they begin, so that each
// of them can be finished. Once whole they count like all other unread data.

// reserve lets a message that its window does not hold be assembled while a
// receiver waits for it: its parts then count as read when they arrive. A channel that
// finds no room waits in reserveQueue.
func (c *core) reserve(ch *channel) {
	b := ch.partial
	if b == nil || ch.ready.head != nil || ch.reserved == 0 && ch.receivers.head == nil {
		return
	}
	if ch.reserved == 0 {
		if uint64(ch.size) <= ch.rcv.size/4 && b.cost <= ch.rcv.size/8 { // it fits for sure
			c.stopReserving(ch)
			return
		}
		if c.assembly+ch.size > c.maxMessage || !c.mayReserve(ch) {
			if !ch.queued {
				ch.queued = true
				c.reserveQueue = append(c.reserveQueue, ch)
			}
			return
		}
		c.unqueue(ch)
		ch.reserved = ch.size
		c.assembly += ch.size
	}
	c.consume(ch, b.cost)
	b.cost = 0
}

// mayReserve reports whether ch may get a reservation before the first channel of the queue:
// not if that one waits only for messages that are being assembled, because smaller ones could
// keep it waiting forever.
func (c *core) mayReserve(ch *channel) bool {
	for len(c.reserveQueue) > 0 {
		first := c.reserveQueue[0]
		if first.partial != nil && first.receivers.head != nil {
			return first == ch || c.claimed+first.size > c.maxMessage
		}
		c.unqueue(first) // no receiver waits there now
	}
	return true
}

func (c *core) unqueue(ch *channel) {
	if ch.queued {
		ch.queued = false
		c.reserveQueue = without(c.reserveQueue, ch)
	}
}

// stopReserving ends ch's wait for a reservation; other channels may get one then.
func (c *core) stopReserving(ch *channel) {
	if ch.queued {
		c.unqueue(ch)
		c.grantReservations()
	}
}

// unreserve gives up the reservation of the message being assembled, or the wait for one.
func (c *core) unreserve(ch *channel) {
	c.stopReserving(ch)
	n := ch.reserved
	ch.reserved = 0
	c.freeAssembly(n)
}

// claim ends the reservation of ch's message, which is whole in b. Until a receiver takes it
// it counts as unread data, if three quarters of that budget suffice: a message that is not
// received must not prevent others from being assembled.
func (c *core) claim(ch *channel, b *buffer) {
	c.stopReserving(ch)
	n := ch.reserved
	if ch.reserved = 0; n == 0 {
		return
	}
	if c.windows+uint64(n) <= c.budget/4*3 {
		b.kept = n
		c.kept += n
		c.windows += uint64(n)
		c.freeAssembly(n)
		return
	}
	b.claim = n
	c.claimed += n
	c.grantReservations()
}

// unclaim returns the memory that claim counted for a message that was received or dropped.
func (c *core) unclaim(b *buffer) {
	n := b.claim
	c.windows -= uint64(b.kept)
	c.kept -= b.kept
	c.claimed -= n
	if b.kept > 0 {
		c.wakeOpeners()
	}
	b.claim, b.kept = 0, 0
	c.freeAssembly(n)
}

func (c *core) freeAssembly(n int) {
	if n > 0 {
		c.assembly -= n
		c.grantReservations()
	}
}

// grantReservations gives free room to the channels that wait for a reservation.
func (c *core) grantReservations() {
	waiting := c.reserveQueue
	c.reserveQueue = nil
	for _, ch := range waiting {
		ch.queued = false
	}
	for _, ch := range waiting {
		c.reserve(ch)
	}
}
