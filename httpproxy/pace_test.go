package httpproxy_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// paced runs a test in which each side must act within the unit, and then be silent for some units. If a busy machine
// delays a side, the test is run again with a longer unit; a test that fails with the longest is broken.
func paced(t *testing.T, run func(t testing.TB, unit time.Duration)) {
	t.Helper()
	for unit := 100 * time.Millisecond; ; unit *= 5 {
		try, over := &trial{TB: t}, make(chan struct{})
		go func() {
			defer close(over)
			run(try, unit)
		}()
		<-over
		switch failures := try.end(); {
		case failures == "":
			return
		case unit > 10*time.Second:
			t.Errorf("with a unit of %v, too: %s", unit, failures)
			return
		default:
			t.Logf("with a unit of %v: %s", unit, failures)
		}
	}
}

// trial is a test whose failures are examined before they count.
type trial struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	ended    bool
}

// end returns the failures, "" for none. Later failures, in clean-ups, fail the test.
func (t *trial) end() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	return strings.Join(t.failures, "; ")
}

func (t *trial) Error(args ...any) {
	t.TB.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		t.TB.Error(args...)
		return
	}
	t.failures = append(t.failures, strings.TrimSuffix(fmt.Sprintln(args...), "\n"))
}

func (t *trial) Errorf(format string, args ...any) {
	t.TB.Helper()
	t.Error(fmt.Sprintf(format, args...))
}

func (t *trial) Fatal(args ...any) {
	t.TB.Helper()
	t.Error(args...)
	runtime.Goexit()
}

func (t *trial) Fatalf(format string, args ...any) {
	t.TB.Helper()
	t.Fatal(fmt.Sprintf(format, args...))
}
