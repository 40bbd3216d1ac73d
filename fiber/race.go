//go:build race

package fiber

// keepFibers: the race detector never forgets a coroutine (Go 1.27 does not tell it that one has
// ended), some ten kilobytes each, so that under it they are kept and used again.
const keepFibers = true
