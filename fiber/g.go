//go:build (linux || darwin) && (amd64 || arm64)

package fiber

// getg returns the address of the running goroutine's descriptor: a number that distinguishes a
// fiber, which is a coroutine with its own goroutine, from everything else that runs.
//
//go:noescape
func getg() uintptr
