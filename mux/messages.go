package mux

import "context"

// Channel carries messages, in order, both ways. All methods may be called from
// any goroutine; concurrent Sends are whole messages in some order, concurrent
// Receives get different messages.
type Channel struct {
	s  *Session
	ch *channel
}

// Name is the name the channel was opened with.
func (c *Channel) Name() string { return c.ch.name }

// ID is the ID the channel was opened with; zero for none.
func (c *Channel) ID() ID { return c.ch.id }

// Number is the channel's number on the wire, unique in the session.
func (c *Channel) Number() uint32 { return c.ch.num }

// Session is the session the channel belongs to.
func (c *Channel) Session() *Session { return c.s }

// WaitAccepted waits until the other side's application has accepted the
// channel. It returns at once on a channel that was accepted here.
func (c *Channel) WaitAccepted(ctx context.Context) error { return c.s.waitAccepted(ctx, c.ch) }

func (s *Session) waitAccepted(ctx context.Context, ch *channel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := newWaiter()
	ch.watch.add(&w)
	defer ch.watch.remove(&w)
	for !ch.accepted {
		err := s.sendable(ch)
		if err == nil {
			err = s.pause(ctx, &w)
		}
		if err != nil {
			return &Error{Op: "open", Channel: ch.num, Name: ch.name, Err: err, retry: refused(err)}
		}
	}
	return nil
}

func (c *Channel) error(op string, err error, retry bool) error {
	return &Error{Op: op, Channel: c.ch.num, Name: c.ch.name, Err: err, retry: retry || refused(err)}
}
