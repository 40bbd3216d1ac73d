//go:build !linux

package integration

import "testing"

// checkMemory does nothing: it needs /proc, which only Linux has.
func checkMemory(*testing.T, *gateway) {}

// residentMemory returns 0: it needs /proc, too.
func residentMemory(*testing.T, *gateway) int64 { return 0 }

// idlePipes returns 0: nothing is spliced on this system.
func idlePipes(*gateway) float64 { return 0 }
