package pool

import (
	"context"
	"sync"
	"time"
)

// bounded is context.WithTimeout for a callback that mostly does not use its context: it costs no
// timer until Done is called.
type bounded struct {
	context.Context // the caller's
	at              time.Time

	mu     sync.Mutex // held for a few instructions
	inner  context.Context
	cancel context.CancelFunc
	ended  bool
}

func (b *bounded) Deadline() (time.Time, bool) {
	if at, ok := b.Context.Deadline(); ok && at.Before(b.at) {
		return at, true
	}
	return b.at, true
}

func (b *bounded) real() context.Context {
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

func (b *bounded) Done() <-chan struct{} { return b.real().Done() }

func (b *bounded) Err() error {
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
func (b *bounded) Value(key any) any {
	b.mu.Lock()
	from := b.inner
	b.mu.Unlock()
	if from == nil {
		from = b.Context
	}
	return from.Value(key)
}

// end ends the context when the callback has returned.
func (b *bounded) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	if b.cancel != nil {
		b.cancel()
	}
}
