package mux

import (
	"context"
	"fmt"
	"os"

	"github.com/headpond/headpond/mux/frame"
)

// newOp returns an operation, from the free list if possible. mu is held.
func (s *Session) newOp(ch *channel, data []byte) *sendOp {
	o := s.freeOps
	if o == nil {
		o = &sendOp{wait: newWaiter()}
	} else {
		s.freeOps, o.next = o.next, nil
	}
	o.ch, o.data = ch, data
	return o
}

// freeOp returns o to the free list. There is no other reference to it. mu is held.
func (s *Session) freeOp(o *sendOp) {
	select {
	case <-o.wait.ready:
	default:
	}
	*o = sendOp{wait: waiter{ready: o.wait.ready}, next: s.freeOps}
	s.freeOps = o
}

// sendable returns why nothing can be sent on ch, or nil. mu is held.
func (s *Session) sendable(ch *channel) error {
	if ch.sendErr != nil {
		return ch.sendErr
	}
	return s.core.err
}

// send puts data on the wire as one message or piece of a stream. sent counts
// the bytes that went into frames. dl and by may be nil. mu is held.
func (s *Session) send(ctx context.Context, ch *channel, data []byte, dl *deadline, by parker) (sent int, err error) {
	patient := dl == nil && ctx.Done() == nil
	if s.core.push(ch, data) {
		if !s.stream() {
			s.flush(nil, patient)
			if s.core.copyAll {
				s.lastSend = s.core.now() // the write took its time
			}
		}
		return len(data), nil
	}
	if r := s.core.replay; r != nil && r.backpressure && dl == nil && r.full() {
		return 0, ErrBackpressure
	}
	o := s.newOp(ch, data)
	o.wait.by = by
	s.core.enqueue(o)
	s.flush(o, patient)
	if !o.done {
		s.await(ctx, o, dl)
	}
	sent, err = o.off, o.err
	s.freeOp(o)
	return sent, err
}

// await waits until o is done, which is soon after ctx or the deadline ends.
// mu is held, and released while waiting.
func (s *Session) await(ctx context.Context, o *sendOp, dl *deadline) {
	if dl != nil {
		dl.waiting.add(&o.wait)
		defer dl.waiting.remove(&o.wait)
	}
	for !o.done {
		var err error
		if dl != nil && dl.expired {
			err = os.ErrDeadlineExceeded
		} else {
			err = s.pause(ctx, &o.wait)
		}
		if err == nil {
			continue
		}
		if !s.core.cancel(o, err) {
			for !o.done { // until the write that uses the data is over
				_ = s.pause(context.Background(), &o.wait) // never fails
			}
		}
		s.flush(nil, false)
	}
}

// Send sends p as one message, of 0 bytes to MaxMessage. It returns when p is written or copied; p
// may then be changed. It does not wait for the other side, except for credit: when the receiver is
// slow, Send waits.
//
// When ctx ends, or the channel or session does, before all of p was handed over, the message is
// never delivered, SafeToRetry is true and, unless the session is over, the channel stays usable. A
// nil error does not mean that the message arrived: only an answer does.
func (c *Channel) Send(ctx context.Context, p []byte) error {
	s := c.s
	if len(p) > s.core.maxMessage {
		return c.error("send", fmt.Errorf("%w: %d bytes, and this side's Config.MaxMessage is %d", ErrTooLarge, len(p), s.core.maxMessage), true)
	}
	if err := ctx.Err(); err != nil {
		return c.error("send", context.Cause(ctx), true)
	}
	s.mu.Lock()
	if err := s.sendable(c.ch); err != nil {
		s.mu.Unlock()
		return c.error("send", err, true)
	}
	n, err := s.send(ctx, c.ch, p, nil, nil)
	s.mu.Unlock()
	if err != nil {
		return c.error("send", err, n < len(p) || n == 0)
	}
	return nil
}

// TrySend is Send that never waits: where Send would wait for credit (a slow receiver), for other
// senders or for room in Resume.Buffer it sends nothing, and the error wraps ErrBackpressure and is
// SafeToRetry. p is copied. Only Send can send a message that exceeds the receiver's window
// (Config.ChannelWindow there, at first), or Resume.Buffer here.
func (c *Channel) TrySend(p []byte) error {
	s := c.s
	if len(p) > s.core.maxMessage {
		return c.error("send", fmt.Errorf("%w: %d bytes, and this side's Config.MaxMessage is %d", ErrTooLarge, len(p), s.core.maxMessage), true)
	}
	s.mu.Lock()
	err := s.sendable(c.ch)
	if err == nil && !s.core.tryPush(c.ch, p) {
		err = ErrBackpressure
	}
	if err == nil && !s.stream() {
		s.flush(nil, false)
	}
	s.mu.Unlock()
	if err != nil {
		return c.error("send", err, true)
	}
	return nil
}

// SendBatch sends several messages, in order, with as few writes as can be. It
// returns how many were handed over; an error concerns the next one, as for Send.
func (c *Channel) SendBatch(ctx context.Context, messages [][]byte) (n int, err error) {
	s := c.s
	patient := ctx.Done() == nil
	for n < len(messages) {
		s.mu.Lock()
		if s.sendable(c.ch) == nil && ctx.Err() == nil {
			for n < len(messages) && len(messages[n]) <= s.core.maxMessage && s.core.push(c.ch, messages[n]) {
				n++
			}
			s.flush(nil, patient)
		}
		s.mu.Unlock()
		if n < len(messages) {
			if err := c.Send(ctx, messages[n]); err != nil {
				return n, err
			}
			n++
		}
	}
	return n, nil
}

// CloseWrite ends this direction: the other side receives all data sent before, then io.EOF.
// Senders that wait fail with ErrClosed.
func (c *Channel) CloseWrite() error { return c.s.closeWrite(c.ch) }

func (s *Session) closeWrite(ch *channel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.err != nil {
		return &Error{Op: "close write", Channel: ch.num, Name: ch.name, Err: s.core.err}
	}
	s.core.endSend(ch, ErrClosed)
	s.flush(nil, false)
	return nil
}

// Close ends both directions. Data sent before is delivered; received data that was not read is
// dropped, and the other side's senders fail with ErrPeerClosed. It never blocks, and closing twice
// is fine. Close every channel that is not read to its end, also after the other side's Close:
// unread data keeps its part of Config.SessionWindow until then.
func (c *Channel) Close() error { return c.s.closeChannel(c.ch) }

func (s *Session) closeChannel(ch *channel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ch.closed {
		s.core.close(ch)
		s.flush(nil, false)
		if s.link == nil { // see abandoned
			s.core.empty.wakeAll()
		}
	}
	return nil
}

// Reset ends both directions at once and sends the other side the reason: its operations fail with
// a *ResetError. code is the application's, added to frame.CodeApplication; reason is for people.
// Data that is not received yet may be lost.
func (c *Channel) Reset(code uint16, reason string) { c.s.resetChannel(c.ch, code, reason) }

func (s *Session) resetChannel(ch *channel, code uint16, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !ch.forgotten || !ch.closed {
		s.core.reset(ch, frame.CodeApplication+frame.Code(code), reason)
		s.flush(nil, false)
	}
}
