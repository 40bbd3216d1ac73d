// Package leaktest fails a package's tests when they leave goroutines behind.
//
//	func TestMain(m *testing.M) { leaktest.Main(m) }
//
// It is goleak with patience: goleak gives goroutines that are about to end less than half a second, which on a machine with more to do
// than it can is too little.
package leaktest

import (
	"fmt"
	"os"
	"time"

	"go.uber.org/goleak"
)

// patience bounds operations that take microseconds on an idle machine.
const patience = time.Minute

// Main runs the tests, looks for goroutines they have left, and exits.
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

// find returns goleak's findings at the end of limit, nil as soon as there are none.
func find(limit time.Duration) (err error) {
	for until := time.Now().Add(limit); ; {
		if err = goleak.Find(); err == nil || time.Now().After(until) {
			return err
		}
	}
}
