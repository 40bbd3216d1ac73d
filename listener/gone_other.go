//go:build !linux

package listener

// clientGone reports whether the client has reset the connection, or ended its stream without
// sending anything. Nothing of the connection may have been read.
func (c *Conn) clientGone() bool { return c.Ended() || c.WasReset() }
