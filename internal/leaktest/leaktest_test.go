package leaktest

import (
	"strings"
	"testing"
	"time"
)

func leak(until <-chan time.Time) { <-until }

func TestFind(t *testing.T) {
	forever := make(chan time.Time)
	go leak(forever)
	if err := find(0); err == nil || !strings.Contains(err.Error(), "leaktest.leak") {
		t.Errorf("found %v, want the goroutine that is left", err)
	}
	close(forever)
	go leak(time.After(time.Second)) // longer than goleak waits
	if err := find(patience); err != nil {
		t.Error(err)
	}
}
