//go:build !linux

package listener

// clientGone reports whether the client of a connection that nothing was read from has gone: it has sent a reset, or its end and no byte before.
func (c *Conn) clientGone() bool { return c.Ended() || c.WasReset() }
