package mux

// Messages larger than their windows. What the window of a channel does not hold is taken
// nevertheless while a receiver waits for it: all such messages of a session that are being
// put together take no more than maxMessage bytes, reserved when they begin, so that each
// of them can be finished. Once whole they count as all else that was received and not read.

// reserve lets a message that its window does not hold be put together while a
// receiver waits for it: its parts then count as read when they arrive. Who finds no
// room waits for its turn.
func (c *core) reserve(ch *channel) {
	b := ch.partial
	if b == nil || ch.ready.head != nil || ch.reserved == 0 && ch.receivers.head == nil {
		return
	}
	if ch.reserved == 0 {
		if uint64(ch.size) <= ch.rcv.size/4 && b.cost <= ch.rcv.size/8 { // it fits for sure
			c.quit(ch)
			return
		}
		if c.assembly+ch.size > c.maxMessage || !c.turn(ch) {
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

// turn tells whether ch may have a reservation before the channel that waits for one
// longest: not if that one only has to wait for messages that are on their way, of which
// smaller ones could keep it waiting for ever.
func (c *core) turn(ch *channel) bool {
	for len(c.reserveQueue) > 0 {
		first := c.reserveQueue[0]
		if first.partial != nil && first.receivers.head != nil {
			return first == ch || c.claimed+first.size > c.maxMessage
		}
		c.unqueue(first) // nobody waits there now
	}
	return true
}

func (c *core) unqueue(ch *channel) {
	if ch.queued {
		ch.queued = false
		c.reserveQueue = without(c.reserveQueue, ch)
	}
}

// quit ends ch's wait for a reservation; others may have waited for nothing else.
func (c *core) quit(ch *channel) {
	if ch.queued {
		c.unqueue(ch)
		c.dole()
	}
}

// unreserve gives up the reservation of the message being put together, or the wait for one.
func (c *core) unreserve(ch *channel) {
	c.quit(ch)
	n := ch.reserved
	ch.reserved = 0
	c.freeAssembly(n)
}

// claim ends the reservation of ch's message, which is whole in b. Until somebody takes it
// it has a place among all that is not read, if three quarters of that suffice: a message
// that nobody takes must not keep the others from being put together.
func (c *core) claim(ch *channel, b *buffer) {
	c.quit(ch)
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
	c.dole()
}

// unclaim gives up the place of a message that was taken or dropped.
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
		c.dole()
	}
}

// dole gives what room there is to the channels that wait for a reservation.
func (c *core) dole() {
	waiting := c.reserveQueue
	c.reserveQueue = nil
	for _, ch := range waiting {
		ch.queued = false
	}
	for _, ch := range waiting {
		c.reserve(ch)
	}
}
