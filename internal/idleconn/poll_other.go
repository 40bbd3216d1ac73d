//go:build !unix

package idleconn

// Sockets cannot be polled portably here; a connection that died while idle is noticed by the exchange instead.
const canPoll = false

func pollRead(uintptr, []byte) (int, error) { return 0, errWouldBlock }
