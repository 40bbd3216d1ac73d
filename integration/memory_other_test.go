//go:build !linux

package integration

import "testing"

// checkMemory needs /proc, which only Linux has.
func checkMemory(*testing.T, *gateway) {}

// residentMemory needs it too.
func residentMemory(*testing.T, *gateway) int64 { return 0 }

// idlePipes returns 0: nothing is spliced.
func idlePipes(*gateway) float64 { return 0 }
