package pool

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"
)

// Defaults of Limits, and the bounds its fields are held to.
const (
	DefaultMaxSize     = 10
	DefaultIdleTimeout = 5 * time.Minute
	DefaultCheckAfter  = time.Second
	DefaultOpenTimeout = 10 * time.Second
	// DefaultOpenConcurrency lets a cold pool reach a usual size in one round
	// of dials without a stampede on the backend.
	DefaultOpenConcurrency = 16
	// maxMaxSize bounds the size of one pool; a larger figure is a mistake in the configuration (a
	// process has fewer file descriptors).
	maxMaxSize = 1 << 24
)

// Overflow is the behaviour of Acquire when the pool is full.
type Overflow int

const (
	// OverflowWait waits for a released resource. The default.
	OverflowWait Overflow = iota
	// OverflowDirect opens a resource outside the pool for this one lease.
	OverflowDirect
)

// String returns "wait" or "direct".
func (o Overflow) String() string {
	switch o {
	case OverflowWait:
		return "wait"
	case OverflowDirect:
		return "direct"
	}
	return fmt.Sprintf("overflow(%d)", int(o))
}

// ParseOverflow reads "wait" (or the empty string) and "direct".
func ParseOverflow(s string) (Overflow, error) {
	switch s {
	case "", "wait":
		return OverflowWait, nil
	case "direct":
		return OverflowDirect, nil
	}
	return 0, fmt.Errorf("%w: overflow %q is not one of wait, direct", ErrConfig, s)
}

// Limits is everything about a Pool's size and times that can change while it
// runs. The zero value is valid and means the defaults.
type Limits struct {
	// MinIdle resources are kept warm and refilled ahead of demand. Idle
	// resources near MaxLifetime are replaced before they expire. Default 0.
	MinIdle int
	// MaxWarm, above MinIdle, lets the number of resources kept warm follow
	// demand, for resources that are used once: from MinIdle to MaxWarm, as many
	// as callers use up while one is opened (the rate of leases of new resources
	// × Stats.OpenTime), and a reserve for random arrivals that grows while
	// callers come in bursts and wait. It rises within a second and falls within
	// half a minute. Resources beyond the number are not closed for that, but not
	// replaced either when they are used or expire. 0 means MinIdle, so that the
	// number is fixed.
	MaxWarm int
	// MaxSize bounds the resources the pool has open, is opening or is
	// closing. Default 10.
	MaxSize int
	// MaxIdle bounds the idle resources: one released beyond it is closed.
	// 0 means MaxSize.
	MaxIdle int
	// IdleTimeout closes resources idle for longer, down to MinIdle.
	// 0 means 5 minutes, negative never.
	IdleTimeout time.Duration
	// MaxLifetime closes resources older than that, less a random part of up
	// to a tenth, when they are idle or released; never while leased.
	// 0 means unlimited.
	MaxLifetime time.Duration
	// AcquireTimeout bounds the wait in Acquire, checks of idle resources and
	// direct opens included, besides the context.
	// 0 means that only the context bounds it.
	AcquireTimeout time.Duration
	// MaxWaiters bounds the callers that wait while every resource is leased; further callers get
	// ErrTooManyWaiters. 0 means unlimited, negative none. Callers for whom a resource is being
	// opened or checked do not count.
	MaxWaiters int
	// CheckAfter makes Acquire run Config.Check on a resource that was idle
	// for longer. The idle time is measured with an error of up to a quarter
	// of CheckAfter, or of 5 ms if that is more. 0 means 1 second, negative never.
	CheckAfter time.Duration
	// CheckInterval is how often idle resources are checked in the
	// background. 0 means never.
	CheckInterval time.Duration
	// OpenTimeout bounds one call of Open, Reset or Check.
	// 0 means 10 seconds.
	OpenTimeout time.Duration
	// OpenConcurrency bounds the opens under way at once. 0 means 16.
	OpenConcurrency int
	// Overflow is the behaviour of Acquire when the pool is full.
	Overflow Overflow
}

// Verify reports everything that is wrong with l, nil if nothing is. The
// errors wrap ErrConfig and name the field.
func (l Limits) Verify() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	maxSize := l.MaxSize
	maxSize = cmp.Or(maxSize, DefaultMaxSize)
	if maxSize < 1 || maxSize > maxMaxSize {
		bad("MaxSize %d is not from 1 to %d", l.MaxSize, maxMaxSize)
	}
	if l.MinIdle < 0 || l.MinIdle > maxSize {
		bad("MinIdle %d is not from 0 to MaxSize (%d)", l.MinIdle, maxSize)
	}
	if most := cmp.Or(l.MaxIdle, maxSize); l.MaxWarm != 0 && (l.MaxWarm < l.MinIdle || l.MaxWarm > most) {
		bad("MaxWarm %d is not from MinIdle (%d) to MaxIdle (%d)", l.MaxWarm, l.MinIdle, most)
	}
	if l.MaxIdle < 0 {
		bad("MaxIdle %d is negative", l.MaxIdle)
	}
	if l.MaxIdle > 0 && l.MaxIdle < l.MinIdle {
		bad("MaxIdle %d is below MinIdle (%d)", l.MaxIdle, l.MinIdle)
	}
	if l.OpenConcurrency < 0 {
		bad("OpenConcurrency %d is negative", l.OpenConcurrency)
	}
	if l.Overflow != OverflowWait && l.Overflow != OverflowDirect {
		bad("Overflow %d is unknown", int(l.Overflow))
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{
		{"MaxLifetime", l.MaxLifetime}, {"AcquireTimeout", l.AcquireTimeout},
		{"CheckInterval", l.CheckInterval}, {"OpenTimeout", l.OpenTimeout},
	} {
		if d.d < 0 {
			bad("%s %v is negative", d.name, d.d)
		}
	}
	return errors.Join(errs...)
}

const (
	// never is a point in time no clock reaches.
	never = math.MaxInt64
	// longest bounds every duration, at 146 years: sums with the time must not
	// overflow.
	longest = time.Duration(never / 2)
)

// withDefaults returns l with every zero that means a default replaced by it,
// and every negative duration, which means never, by the constant never.
func (l Limits) withDefaults() Limits {
	l.MaxSize = cmp.Or(l.MaxSize, DefaultMaxSize)
	if l.MaxIdle == 0 || l.MaxIdle > l.MaxSize {
		l.MaxIdle = l.MaxSize
	}
	l.MaxWarm = min(cmp.Or(l.MaxWarm, l.MinIdle), l.MaxSize)
	l.IdleTimeout = cmp.Or(l.IdleTimeout, DefaultIdleTimeout)
	for _, d := range []*time.Duration{&l.IdleTimeout, &l.MaxLifetime, &l.AcquireTimeout, &l.CheckAfter, &l.CheckInterval, &l.OpenTimeout} {
		*d = min(*d, longest)
	}
	if l.IdleTimeout < 0 {
		l.IdleTimeout = never
	}
	l.CheckAfter = cmp.Or(l.CheckAfter, DefaultCheckAfter)
	if l.CheckAfter < 0 {
		l.CheckAfter = never
	}
	l.OpenTimeout = cmp.Or(l.OpenTimeout, DefaultOpenTimeout)
	l.OpenConcurrency = cmp.Or(l.OpenConcurrency, DefaultOpenConcurrency)
	return l
}
