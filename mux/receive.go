package mux

import (
	"context"
	"io"
)

// newWaiter returns a waiter, from the free list if possible. mu is held.
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
	w.into, w.n, w.filled, w.by = nil, 0, false, nil
	s.freeWaiters, w.next = w, s.freeWaiters
}

// Receive waits for the next message. The caller owns it and calls Release when
// done with it. After the other side's CloseWrite or Close, and everything sent
// before, the error is io.EOF.
func (c *Channel) Receive(ctx context.Context) (Message, error) {
	b, _, err := c.next(ctx, anySize, nil)
	if err != nil {
		return Message{}, err
	}
	return Message{b: b, gen: b.gen}, nil
}

// ReceiveInto waits for the next message and puts it into p, straight from the
// connection if possible. A message longer than p stays queued; the error wraps
// ErrShortBuffer then and n is the message's length. On other errors p may have been
// written to.
func (c *Channel) ReceiveInto(ctx context.Context, p []byte) (n int, err error) {
	b, n, err := c.next(ctx, len(p), p)
	if err != nil {
		return n, err
	}
	if b != nil {
		copy(p, b.data)
		b.release()
	}
	return n, nil
}

// next takes the next message of at most limit bytes. If p is not nil it may be
// in p, and b is nil.
func (c *Channel) next(ctx context.Context, limit int, p []byte) (b *buffer, n int, err error) {
	s, there := c.s, true
	s.mu.Lock()
	if b, n = s.core.take(c.ch, limit); b == nil && n == 0 {
		b, n, there, err = s.awaitMessage(ctx, c.ch, limit, p)
	} else if b == nil {
		there = false
	}
	s.flush(nil, false)
	s.mu.Unlock()
	switch {
	case there:
		return b, n, nil
	case err == nil:
		err = ErrShortBuffer
	case err == io.EOF:
		return nil, 0, io.EOF
	}
	return nil, n, c.error("receive", err, false)
}

// awaitMessage waits for a message; there means that it is in b or p. mu is held, and released
// while waiting.
func (s *Session) awaitMessage(ctx context.Context, ch *channel, limit int, p []byte) (b *buffer, n int, there bool, err error) {
	w := s.newWaiter()
	ch.receivers.add(w)
	w.into = p
	led := false
	s.quick = 0
	s.patient = ctx.Done() == nil
	for {
		if w.filled {
			n, there = w.n, true
			break
		}
		if b, n = s.core.take(ch, limit); b != nil || n > 0 {
			there = b != nil
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
		if ctx.Done() == nil {
			ok := s.readHere(ch, w, nil)
			if led = led || ok; ok || w.filled {
				continue
			}
		}
		if err = s.pause(ctx, w); err != nil {
			break
		}
	}
	if own := w.own; own != nil && own.owner != nil { // given up in mid-message
		s.recall(ch, own)
	}
	ch.receivers.remove(w)
	if ch.ready.head != nil {
		ch.receivers.wakeOne()
	}
	if ch.receivers.head == nil {
		s.core.stopReserving(ch)
	}
	if led {
		s.doneReading()
	}
	s.freeWaiter(w)
	return b, n, there, err
}
