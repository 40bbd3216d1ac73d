package pgproxy

import (
	"testing"
	"time"
)

// The log says once that many transactions are checked, and nothing about few.
func TestManyChecksAreLoggedOnce(t *testing.T) {
	rush := func(c *checks, from, apart time.Duration) (logged int) {
		for i := range 3 * checksToWarn {
			if c.add(from + time.Duration(i)*apart) {
				logged++
			}
		}
		return logged
	}
	var few checks
	if n := rush(&few, 0, time.Second); n != 0 {
		t.Errorf("one check a second was logged %d times", n)
	}
	if n := rush(&few, time.Hour*24, time.Millisecond); n != 1 {
		t.Errorf("a thousand checks a second were logged %d times, want once", n)
	}
}
