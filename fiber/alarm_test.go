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
			stopped, last, done := make(bell, 1), make(bell, 1), make(chan struct{})
			var a, b fiber.Alarm
			e.Go(func() {
				defer close(done)
				a.Start(50*time.Millisecond, stopped)
				b.Start(time.Hour, last)
				if !elsewhere {
					a.Stop()
				}
			})
			<-done
			if elsewhere {
				a.Stop()
			}
			b.Reset(100 * time.Millisecond)
			<-last
			if len(stopped) > 0 {
				t.Errorf("stopped elsewhere: %v; the alarm has rung", elsewhere)
			}
			b.Stop() // it has rung: nothing to do
		}
	})
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
