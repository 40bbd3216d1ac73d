package fiber

import "time"

// Alarm calls a Bell after a delay. On a fiber it uses the loop's timers. Unlike those of package
// time they wake no other thread, so a timer for each short connection costs little. On a goroutine
// it is a time.Timer. The zero Alarm is not set. An Alarm must not be copied. Calls from different
// threads may take effect in another order; such a user needs a mutex, and a Bell that checks
// whether it is still wanted.
type Alarm struct {
	bell Bell

	loop  *loop // of the fiber that called Start; nil = timer is used
	index int32 // in the loop's timers, from 1; 0 = not armed; belongs to the loop's thread
	timer *time.Timer
}

// Bell is called by an Alarm.
type Bell interface {
	// Ring is called on its own fiber, or on a goroutine.
	Ring()
}

// Start sets an Alarm that was not set before, to ring b once, after d. Later it may be set again with Reset. On a
// fiber d begins with the loop's tick.
func (a *Alarm) Start(d time.Duration, b Bell) {
	a.bell = b
	if f := currentFiber(); f != nil {
		a.loop = f.loop
		a.arm(after(a.loop.now, d))
		return
	}
	a.timer = time.AfterFunc(d, b.Ring)
}

// Reset sets the Alarm, whether or not it has rung, to ring once, after d. Any goroutine or fiber may call it.
func (a *Alarm) Reset(d time.Duration) {
	switch l := a.loop; {
	case l == nil:
		a.timer.Reset(d)
	case l.isCaller():
		a.arm(after(l.now, d))
	default:
		when := addClamped(d)
		l.post(func() { a.arm(when) })
	}
}

// Stop ends the Alarm. The bell may be about to ring, or ringing, when Stop returns, as with time.Timer. Any goroutine
// or fiber may call it.
func (a *Alarm) Stop() {
	switch l := a.loop; {
	case l == nil:
		a.timer.Stop()
	case l.isCaller():
		a.disarm()
	default:
		l.post(a.disarm)
	}
}

// arm sets the loop's timer. It runs on the loop's thread.
func (a *Alarm) arm(when int64) {
	a.disarm()
	a.loop.timers.add(timer{when, a})
}

func (a *Alarm) disarm() {
	if a.index != 0 {
		a.loop.timers.remove(int(a.index))
	}
}

func (a *Alarm) placed(index int32) { a.index = index }

func (a *Alarm) expired(l *loop) { l.spawn(a.bell.Ring) }
