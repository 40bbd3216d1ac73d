package kube_test

import (
	"errors"
	"testing"
	"time"

	"github.com/headpond/headpond/upstream/kube"
)

// TestPause: pauses double up to 30 seconds, half of each at random, and no shorter than the server has said.
func TestPause(t *testing.T) {
	cause := errors.New("connection refused")
	for failures, most := range map[int]time.Duration{1: 200 * time.Millisecond, 2: 400 * time.Millisecond, 5: 3200 * time.Millisecond, 9: 30 * time.Second, 1000: 30 * time.Second} {
		seen := map[time.Duration]bool{}
		for range 100 {
			d := kube.Pause(failures, cause)
			if d < most/2 || d >= most {
				t.Errorf("%v after %d failures, want %v to %v", d, failures, most/2, most)
			}
			seen[d] = true
		}
		if len(seen) < 50 {
			t.Errorf("%d different pauses of 100 after %d failures", len(seen), failures)
		}
	}
	if d := kube.Pause(1, kube.APIError(429, 7*time.Second)); d != 7*time.Second {
		t.Errorf("%v, want the server's value", d)
	}
	if d := kube.Pause(1, kube.APIError(429, time.Hour)); d != 30*time.Second {
		t.Errorf("%v, want no more than 30s", d)
	}
}
