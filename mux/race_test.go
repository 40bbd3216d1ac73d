//go:build race

package mux_test

// raceEnabled: the race detector makes pools forget on purpose, so that
// allocations cannot be counted.
const raceEnabled = true
