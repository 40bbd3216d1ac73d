package fiber

// Acked implements Stream.
func (c *Conn) Acked() (n uint64, all bool) {
	l := c.loop.Load()
	if !l.isCaller() {
		return c.ackedOffLoop(l)
	}
	return c.acked()
}

func (c *Conn) ackedOffLoop(l *loop) (n uint64, all bool) {
	var err error
	c.onItsLoop(l, func(*loop) { n, all = c.acked() }, &err)
	return n, all || err != nil
}

func (c *Conn) acked() (n uint64, all bool) {
	if c.closed {
		return 0, true
	}
	n, all = acked(c.fd)
	return n, all && c.out == nil && c.sending == nil
}

// Acked asks the socket of the connection, if there is one.
func (w *adapted) Acked() (n uint64, all bool) {
	all = true
	if raw, err := w.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, all = acked(int(fd)) })
	}
	return n, all
}
