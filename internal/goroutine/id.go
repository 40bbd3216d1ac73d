//go:build (linux || darwin) && (amd64 || arm64)

// Package goroutine tells goroutines apart. It is a package of its own because it is in assembly and imports nothing: it is assembled
// for all platforms in no time.
package goroutine

// ID returns the address of the running goroutine's descriptor: a number that distinguishes a coroutine, which has its own goroutine,
// from everything else that runs. It is 0 on platforms that have no loops.
//
//go:noescape
func ID() uintptr
