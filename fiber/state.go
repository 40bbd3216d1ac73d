package fiber

// State implements Stream.
func (c *Conn) State() State {
	l := c.loop.Load()
	if !l.isCaller() {
		return c.stateOffLoop(l)
	}
	return c.state(l)
}

func (c *Conn) stateOffLoop(l *loop) State {
	var err error
	state := Dead
	c.onItsLoop(l, func(l *loop) { state = c.state(l) }, &err)
	return state
}

func (c *Conn) state(l *loop) State {
	switch {
	case c.closed:
		return Dead
	case l.poller.quiet(c):
		return Silent
	case l.poller.ended(c):
		return Dead
	case c.hungUp():
		return Closing
	}
	return Pending
}

// Ended implements Stream. Unlike State it does not start a receive.
func (c *Conn) Ended() bool {
	l := c.loop.Load()
	if !l.isCaller() {
		return c.askItsLoop(l, (*Conn).ended)
	}
	return c.ended()
}

func (c *Conn) ended() bool { return c.closed || c.loop.Load().poller.ended(c) }

// PeerClosed implements Stream.
func (c *Conn) PeerClosed() bool {
	l := c.loop.Load()
	if !l.isCaller() {
		return c.askItsLoop(l, (*Conn).hungUp)
	}
	return c.hungUp()
}

// askItsLoop calls question on the connection's loop; the answer is true if that loop has ended.
func (c *Conn) askItsLoop(l *loop, question func(*Conn) bool) (answer bool) {
	var err error
	c.onItsLoop(l, func(*loop) { answer = question(c) }, &err)
	return answer || err != nil
}

// hungUp is PeerClosed on the loop. It asks the system, which knows of the end even if everything was received.
func (c *Conn) hungUp() bool {
	return c.closed || c.inErr != 0 || peerEnded(c.fd)
}
