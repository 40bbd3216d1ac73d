package fiber

// MarkSent implements Stream.
func (c *Conn) MarkSent() {
	if l := c.loop.Load(); l.isCaller() {
		c.sentSome = false
	} else {
		c.send(l, func(*loop) { c.sentSome = false })
	}
}

// Sent implements Stream.
func (c *Conn) Sent() bool {
	l := c.loop.Load()
	if !l.isCaller() {
		return c.askItsLoop(l, (*Conn).maySend)
	}
	return c.maySend()
}

func (c *Conn) maySend() bool { return c.sentSome || c.out != nil || c.sending != nil }
