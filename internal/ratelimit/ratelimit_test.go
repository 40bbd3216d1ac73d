package ratelimit_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/headpond/headpond/internal/leaktest"
	"github.com/headpond/headpond/internal/ratelimit"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func Example() {
	var t ratelimit.Table[string]
	rate := ratelimit.Rate{Count: 2, Per: time.Second}
	for range 3 {
		fmt.Println(t.Take("192.0.2.1", rate, 0))
	}
	fmt.Println(t.Take("192.0.2.2", rate, 0))
	// Output:
	// 0s
	// 0s
	// 500ms
	// 0s
}

// TestWait: who waits as long as told is served then, and not a nanosecond earlier. Package listener compares a Table with a model.
func TestWait(t *testing.T) {
	for _, rate := range []ratelimit.Rate{{1, time.Second}, {7, time.Second}, {1000, time.Minute}, {1 << 20, 10 * time.Millisecond}} {
		var table ratelimit.Table[int]
		now := time.Hour
		for n := 0; ; n++ {
			wait := table.Take(0, rate, now)
			if wait == 0 {
				continue
			}
			if n < rate.Count {
				t.Errorf("%+v: refused after %d", rate, n)
			}
			if early := table.Take(0, rate, now+wait-1); early != 1 {
				t.Errorf("%+v: a nanosecond before the end of %v the wait is %v", rate, wait, early)
			}
			if late := table.Take(0, rate, now+wait); late != 0 {
				t.Errorf("%+v: at the end of %v the wait is %v", rate, wait, late)
			}
			break
		}
	}
}

// TestKnown: the table forgets keys, however many there are.
func TestKnown(t *testing.T) {
	var table ratelimit.Table[int]
	rate := ratelimit.Rate{Count: 1, Per: time.Hour}
	for key := range 4 * ratelimit.MaxKeys {
		table.Take(key, rate, 0)
	}
	if n := table.Known(); n > ratelimit.MaxKeys {
		t.Errorf("%d keys are known", n)
	}
	if table.Take(4*ratelimit.MaxKeys-1, rate, 1) == 0 {
		t.Error("the last key is forgotten")
	}
	for before := range 3 { // a key is known until half as many others have come, wherever the halves end
		var table ratelimit.Table[int]
		for key := range ratelimit.MaxKeys/2 - before {
			table.Take(1+key, rate, 0)
		}
		table.Take(0, rate, 0)
		for key := range ratelimit.MaxKeys/2 - 1 {
			table.Take(-1-key, rate, 0)
		}
		if table.Take(0, rate, 1) == 0 {
			t.Errorf("a key is forgotten that came after %d others", ratelimit.MaxKeys/2-before)
		}
	}
	for key := range 2 {
		table.Take(-1-key, rate, time.Duration(1+2*key)*rate.Per+2)
	}
	if n := table.Known(); n > 2 {
		t.Errorf("%d keys are known long after", n)
	}
}

// TestLeft: Left is how many events Take counts, at any time.
func TestLeft(t *testing.T) {
	for _, rate := range []ratelimit.Rate{{1, time.Second}, {3, time.Second}, {7, time.Minute}, {1000, time.Millisecond}} {
		var table ratelimit.Table[int]
		for now := time.Hour; now < time.Hour+3*rate.Per; now += rate.Per/5 + 1 {
			left, taken := table.Left(0, rate, now), 0
			if again := table.Left(0, rate, now); again != left {
				t.Errorf("%+v: %d left, and then %d", rate, left, again)
			}
			for table.Take(0, rate, now) == 0 {
				taken++
			}
			if left != taken {
				t.Errorf("%+v: %d left, %d taken", rate, left, taken)
			}
			if n := table.Left(1, rate, now); n != rate.Count {
				t.Errorf("%+v: %d left of another key", rate, n)
			}
		}
	}
}

// TestSpend: a key owes what is spent beyond its rate, longer than the table keeps others, and is served again once it has paid.
func TestSpend(t *testing.T) {
	var table ratelimit.Table[int]
	rate := ratelimit.Rate{Count: 600, Per: time.Minute}
	level := func(key int, now time.Duration) ratelimit.Level {
		t.Helper()
		table.Spend(-1, rate, 1, now) // so that the table forgets what is due
		return table.Level(key, rate, now)
	}
	if got, want := level(1, time.Hour), (ratelimit.Level{Left: 600}); got != want {
		t.Errorf("a new key: %+v, want %+v", got, want)
	}
	table.Spend(1, rate, 100, time.Hour)
	if got, want := level(1, time.Hour), (ratelimit.Level{Left: 500, Full: 10 * time.Second}); got != want {
		t.Errorf("after 100: %+v, want %+v", got, want)
	}
	table.Spend(1, rate, 6500, time.Hour)
	for minutes := range time.Duration(10) {
		now := time.Hour + minutes*time.Minute
		want := ratelimit.Level{Left: -6000 + int64(minutes)*600, Wait: (10-minutes)*time.Minute + 100*time.Millisecond, Full: (11 - minutes) * time.Minute}
		if got := level(1, now); got != want {
			t.Errorf("%d minutes after 6600: %+v, want %+v", minutes, got, want)
		}
	}
	if got, want := level(1, 2*time.Hour), (ratelimit.Level{Left: 600}); got != want {
		t.Errorf("an hour later: %+v, want %+v", got, want)
	}
	table.Spend(1, rate, math.MaxInt64, 2*time.Hour)
	if got, want := level(1, 2*time.Hour), int64(-99*600); got.Left != want {
		t.Errorf("after all: %+v, want %d left", got, want)
	}
}

// TestReserve: what is reserved and given back leaves nothing behind, and a key without anything left reserves nothing.
func TestReserve(t *testing.T) {
	rate := ratelimit.Rate{Count: 100, Per: time.Hour}
	var table ratelimit.Table[int]
	for i, left := range []int64{100, 60, 20, -20, -20} {
		if got := table.Reserve(0, rate, 40, time.Minute).Left; got != left {
			t.Errorf("before reservation %d %d are left, want %d", i, got, left)
		}
	}
	table.Spend(0, rate, -40, time.Minute)
	table.Spend(0, rate, 30-40, time.Minute)
	table.Spend(0, rate, 50-40, time.Minute)
	if got := table.Level(0, rate, time.Minute).Left; got != 20 {
		t.Errorf("of 100 %d are left after 80", got)
	}
	table.Spend(0, rate, -1e9, time.Minute)
	if got := table.Level(0, rate, time.Minute).Left; got != 100 {
		t.Errorf("%d are left, more than there are", got)
	}
	if table.Reserve(0, rate, 1e9, time.Minute); table.Level(0, rate, time.Minute).Left != -9900 {
		t.Errorf("%d are left after a reservation without bound", table.Level(0, rate, time.Minute).Left)
	}
}
