//go:build race

package fiber

// keepFibers: the race detector never forgets a coroutine (Go 1.27 does not tell it that one has
// ended), and each takes some ten kilobytes; so with it coroutines are kept and used again.
const keepFibers = true
