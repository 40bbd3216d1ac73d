package mux

import (
	"context"
	"io"
)

// newWaiter returns a waiter, a used one if there is. mu is held.
func (s *Session) newWaiter() *waiter {
	w := s.freeWaiters
	if w == nil {
		fresh := newWaiter()
		return &fresh
	}
	s.freeWaiters, w.next = w.next, nil
	return w
}

// freeWaiter gives w, which is in no queue, back. mu is held.
func (s *Session) freeWaiter(w *waiter) {
	select {
	case <-w.ready:
	default:
	}
	s.freeWaiters, w.next = w, s.freeWaiters
}

// Receive waits for the next message. The caller owns it and calls Release when
// done with it. After the other side's CloseWrite or Close, and everything sent
// before, the error is io.EOF.
func (c *Channel) Receive(ctx context.Context) (Message, error) {
	b, _, err := c.next(ctx, anySize)
	if err != nil {
		return Message{}, err
	}
	return Message{b: b, gen: b.gen}, nil
}

// ReceiveInto waits for the next message and copies it to p. A message longer
// than p stays where it is; the error wraps ErrShortBuffer then and n is the
// length it takes.
func (c *Channel) ReceiveInto(ctx context.Context, p []byte) (n int, err error) {
	b, n, err := c.next(ctx, len(p))
	if err != nil {
		return n, err
	}
	copy(p, b.data)
	b.release()
	return n, nil
}

// next takes the next message of at most limit bytes.
func (c *Channel) next(ctx context.Context, limit int) (*buffer, int, error) {
	s := c.s
	s.mu.Lock()
	b, n := s.core.take(c.ch, limit)
	var err error
	if b == nil && n == 0 {
		b, n, err = s.awaitMessage(ctx, c.ch, limit)
	}
	s.flush(nil, false)
	s.mu.Unlock()
	switch {
	case b != nil:
		return b, n, nil
	case err == nil:
		err = ErrShortBuffer
	case err == io.EOF:
		return nil, 0, io.EOF
	}
	return nil, n, c.error("receive", err, false)
}

// awaitMessage waits for a message. mu is held, and given up while waiting.
func (s *Session) awaitMessage(ctx context.Context, ch *channel, limit int) (b *buffer, n int, err error) {
	w := s.newWaiter()
	ch.receivers.add(w)
	led := false
	s.patient = ctx.Done() == nil
	for {
		if b, n = s.core.take(ch, limit); b != nil || n > 0 {
			break
		}
		if err = ch.recvErr; err == nil {
			err = s.core.err
		}
		if err != nil {
			break
		}
		s.core.reserve(ch)
		s.flush(nil, false)
		if ch.ready.head != nil {
			continue
		}
		if ctx.Done() == nil && s.lead(w, nil) {
			led = true
			continue
		}
		if err = s.pause(ctx, w); err != nil {
			break
		}
	}
	ch.receivers.remove(w)
	if ch.ready.head != nil {
		ch.receivers.wakeOne()
	}
	if led {
		s.led()
	}
	s.freeWaiter(w)
	return b, n, err
}
