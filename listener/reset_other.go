//go:build !unix

package listener

// WasReset cannot look here.
func (c *Conn) WasReset() bool { return false }
