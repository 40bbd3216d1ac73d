//go:build !race

package fiber

// keepFibers: finished coroutines are given up, see idleAfter.
const keepFibers = false
