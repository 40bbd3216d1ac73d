//go:build !unix

package fiber

// Sockets cannot be asked portably here; the next user of a connection notices that it died while idle.
const canPeek = false

func peek(uintptr) State { return Unknown }

func arrival(uintptr) Arrival { return Present }
