//go:build !unix

package route_test

import "testing"

func cpuTime() int64 { return 0 }

// reportCPU does nothing here.
func reportCPU(*testing.B) func() { return func() {} }
