// Package leaktest fails a package's tests when they leave goroutines behind.
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// It is goleak with a longer limit: goleak waits less than half a second for goroutines that are about to end, which is
// too short on an overloaded machine.
package leaktest

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience bounds operations that take microseconds on an idle machine.
const patience = time.Minute

// Main runs the tests, looks for leaked goroutines, and exits.
func Main(tests interface{ Run() int }) {
	code := tests.Run()
	if code == 0 {
		if err := find(patience); err != nil {
			fmt.Fprintln(os.Stderr, "leaktest: the tests passed and left goroutines:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// find returns goleak's findings after limit, or nil as soon as there are none.
func find(limit time.Duration) (err error) {
	for until := time.Now().Add(limit); ; {
		if err = goleak.Find(); err == nil || time.Now().After(until) {
			return err
		}
	}
}
