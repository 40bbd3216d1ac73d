package fiber_test

import (
	"testing"
	"time"

	"github.com/headpond/headpond/fiber"
)

// bell reports each ring: whether it came on a fiber.
type bell chan bool

func (b bell) Ring() { b <- fiber.NewParker() != nil }

func TestAlarmRingsAndIsSetAgain(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		rings, done := make(bell), make(chan struct{})
		var a fiber.Alarm
		e.Go(func() {
			a.Start(time.Millisecond, rings)
			close(done)
		})
		<-done
		onFiber := e.Kind() != fiber.Goroutine
		if on := <-rings; on != onFiber {
			t.Errorf("rang on a fiber: %v, want %v", on, onFiber)
		}
		a.Reset(time.Hour) // from a goroutine
		e.Go(func() { a.Reset(time.Millisecond) })
		if on := <-rings; on != onFiber {
			t.Errorf("rang on a fiber when set again: %v, want %v", on, onFiber)
		}
	})
}

func TestStoppedAlarmIsSilent(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		for _, elsewhere := range []bool{false, true} {
			for after := 50 * time.Millisecond; ; after *= 4 { // a busy machine may be too late to stop the alarm
				rang, inTime := stopAlarm(e, elsewhere, after)
				if rang && inTime {
					t.Errorf("stopped elsewhere: %v; the alarm has rung", elsewhere)
				}
				if inTime {
					break
				}
			}
		}
	})
}

// stopAlarm starts an alarm, stops it, on its fiber or elsewhere, and waits for longer than it would have taken.
func stopAlarm(e *fiber.Engine, elsewhere bool, after time.Duration) (rang, inTime bool) {
	stopped, last, done := make(bell, 1), make(bell, 1), make(chan struct{})
	var a, b fiber.Alarm
	begin := time.Now()
	e.Go(func() {
		defer close(done)
		a.Start(after, stopped)
		b.Start(time.Hour, last)
		if !elsewhere {
			a.Stop()
		}
	})
	<-done
	if elsewhere {
		a.Stop()
	}
	inTime = time.Since(begin) < after
	b.Reset(2 * after)
	<-last
	b.Stop() // it has rung: nothing to do
	return len(stopped) > 0, inTime
}

// A loop does not hold the memory of an alarm that was stopped.
func TestStoppedAlarmIsForgotten(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		if e.Kind() == fiber.Goroutine {
			return // package time does it
		}
		done := make(chan struct{})
		alarms := make([]fiber.Alarm, 100)
		e.Go(func() {
			defer close(done)
			for i := range alarms {
				alarms[i].Start(time.Hour+time.Duration(i%7)*time.Minute, make(bell))
			}
			for i := range alarms {
				alarms[(i*37)%len(alarms)].Stop()
			}
		})
		<-done
		if n := e.Timers(); n != 0 {
			t.Errorf("%d timers after all alarms were stopped", n)
		}
	})
}

// Now is the tick's time on a fiber: it does not go back, and is no older than the fiber's last wait.
func TestNow(t *testing.T) {
	engines(t, func(t *testing.T, e *fiber.Engine) {
		done := make(chan struct{})
		e.Go(func() {
			defer close(done)
			before := time.Now()
			fiber.Sleep(time.Millisecond)
			if now := fiber.Now(); now.Before(before.Add(time.Millisecond)) || now.After(time.Now()) {
				t.Errorf("Now is %v after a sleep of a millisecond", now.Sub(before))
			}
		})
		<-done
	})
}
