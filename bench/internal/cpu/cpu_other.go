//go:build !unix

// Package cpu reads the processor time of this process.
package cpu

import "time"

// Time always returns 0 on this system.
func Time() time.Duration { return 0 }
