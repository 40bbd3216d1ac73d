//go:build !unix

// Package cpu reads what this process has used of the processors.
package cpu

import "time"

// Time is 0 here.
func Time() time.Duration { return 0 }
