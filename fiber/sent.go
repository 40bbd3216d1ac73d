package fiber

// MarkSent implements Stream.
func (c *Conn) MarkSent() {
	if l := c.loop.Load(); l.here() {
		c.sentSome = false
	} else {
		c.send(l, func(*loop) { c.sentSome = false })
	}
}

// Sent implements Stream.
func (c *Conn) Sent() bool {
	l := c.loop.Load()
	if !l.here() {
		return c.trueElsewhere(l, (*Conn).maySend)
	}
	return c.maySend()
}

func (c *Conn) maySend() bool { return c.sentSome || c.out != nil || c.sending != nil }
