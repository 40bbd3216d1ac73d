//go:build (linux || darwin) && (amd64 || arm64)

package fiber

// getg returns the address of the running goroutine's descriptor: a number that tells a
// fiber, which is a coroutine with a goroutine of its own, from everything else that runs.
//
//go:noescape
func getg() uintptr
