//go:build !unix

package listener

// WasReset returns false: the system does not show resets.
func (c *Conn) WasReset() bool { return false }
