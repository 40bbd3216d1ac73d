//go:build !unix

package fiber

// There is no portable way to examine a socket here: the next user of a connection notices that it was closed while
// idle.
const canPeek = false

func peek(uintptr) State { return Unknown }

func arrival(uintptr) Arrival { return Present }
