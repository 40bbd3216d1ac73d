//go:build !race

package watchtest

const raceEnabled = false
