package pool

import (
	"context"
	"sync"
	"time"
)

// Bounded is context.WithDeadline for a call that mostly does not wait, such as an Acquire: it costs
// no timer until Done is called. Make it with Bound.
type Bounded struct {
	context.Context // the caller's
	at              time.Time

	mu     sync.Mutex // held for a few instructions
	inner  context.Context
	cancel context.CancelFunc
	ended  bool
}

// Bound returns a context that ends with ctx, at the time at, or with End, which must be called.
func Bound(ctx context.Context, at time.Time) *Bounded { return &Bounded{Context: ctx, at: at} }

// Deadline implements context.Context.
func (b *Bounded) Deadline() (time.Time, bool) {
	if at, ok := b.Context.Deadline(); ok && at.Before(b.at) {
		return at, true
	}
	return b.at, true
}

func (b *Bounded) real() context.Context {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inner == nil {
		b.inner, b.cancel = context.WithDeadline(b.Context, b.at)
		if b.ended {
			b.cancel()
		}
	}
	return b.inner
}

// Done implements context.Context.
func (b *Bounded) Done() <-chan struct{} { return b.real().Done() }

// Err implements context.Context.
func (b *Bounded) Err() error {
	if err := b.Context.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	lasts := b.inner == nil && !b.ended && time.Now().Before(b.at)
	b.mu.Unlock()
	if lasts {
		return nil
	}
	return b.real().Err()
}

// Value is the caller's, except for package context's own values.
func (b *Bounded) Value(key any) any {
	b.mu.Lock()
	from := b.inner
	b.mu.Unlock()
	if from == nil {
		from = b.Context
	}
	return from.Value(key)
}

// End ends the context, once; later calls do nothing. Any goroutine may call it.
func (b *Bounded) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.cancel != nil {
		b.cancel()
	}
}
