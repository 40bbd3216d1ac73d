package mux

import (
	"context"
	"fmt"

	"github.com/headpond/headpond/mux/frame"
)

// Option changes how a channel is opened.
type Option func(*opening)

type opening struct {
	id       ID
	priority frame.Priority
	noWait   bool
}

// WithID gives the channel an ID, which the other side sees beside the name.
func WithID(id ID) Option { return func(o *opening) { o.id = id } }

// Priority is a channel's share of the connection while several channels compete:
// each step doubles it. It applies to both directions.
type Priority = frame.Priority

// The priorities; PriorityNormal is the default.
const (
	PriorityLowest  = Priority(0)
	PriorityLow     = Priority(1)
	PriorityNormal  = frame.PriorityNormal
	PriorityHigh    = Priority(3)
	PriorityHighest = frame.MaxPriority
)

// WithPriority sets the channel's priority.
func WithPriority(p Priority) Option { return func(o *opening) { o.priority = p } }

// Open opens a channel for messages. It does not wait for the other side to accept it:
// the channel can be used at once, and ends with ErrRefused if the other side refuses
// it. While a limit of open or unaccepted channels is reached (see
// Config.MaxChannels and AcceptBacklog of the other side, SessionWindow of this one)
// Open waits until ctx ends; the error then wraps ErrTooManyChannels, too,
// and names the setting to raise. Use [NoWait] to fail at once.
// An error of Open itself is safe to retry, also in another session.
// The name is at most 512 bytes and need not be unique.
func (s *Session) Open(ctx context.Context, name string, opts ...Option) (*Channel, error) {
	ch, err := s.open(ctx, frame.KindMessages, name, opts)
	if err != nil {
		return nil, err
	}
	return &Channel{s: s, ch: ch}, nil
}

// OpenStream is Open for a stream of bytes.
func (s *Session) OpenStream(ctx context.Context, name string, opts ...Option) (*Stream, error) {
	ch, err := s.open(ctx, frame.KindStream, name, opts)
	if err != nil {
		return nil, err
	}
	return newStream(s, ch), nil
}

func (s *Session) open(ctx context.Context, kind frame.Kind, name string, opts []Option) (*channel, error) {
	o := opening{priority: PriorityNormal}
	for _, opt := range opts {
		opt(&o)
	}
	var err error
	switch {
	case len(name) > frame.MaxOpenName:
		err = fmt.Errorf("%w: channel name of %d bytes, want at most %d", ErrConfig, len(name), frame.MaxOpenName)
	case o.priority > frame.MaxPriority:
		err = fmt.Errorf("%w: priority %d, want at most %d", ErrConfig, o.priority, frame.MaxPriority)
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, &Error{Op: "open", Name: name, Err: err, retry: true}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ch, err := s.openWhenRoom(ctx, kind, name, &o)
	if err != nil {
		return nil, &Error{Op: "open", Name: name, Err: err, retry: true}
	}
	s.flush(nil, false)
	return ch, nil
}

// Accept waits for the other side to open a channel for messages. It fails when
// ctx ends or the session does.
func (s *Session) Accept(ctx context.Context) (*Channel, error) {
	ch, err := s.accept(ctx, frame.KindMessages)
	if err != nil {
		return nil, err
	}
	return &Channel{s: s, ch: ch}, nil
}

// AcceptStream is Accept for streams.
func (s *Session) AcceptStream(ctx context.Context) (*Stream, error) {
	ch, err := s.accept(ctx, frame.KindStream)
	if err != nil {
		return nil, err
	}
	return newStream(s, ch), nil
}

func (s *Session) accept(ctx context.Context, kind frame.Kind) (*channel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue := &s.core.accepters[kind]
	w := newWaiter()
	queue.add(&w)
	defer queue.remove(&w)
	for {
		if ch := s.core.accept(kind); ch != nil {
			s.flush(nil, false)
			if len(s.core.accepts[kind]) > 0 {
				queue.remove(&w)
				queue.wakeOne()
			}
			return ch, nil
		}
		if s.core.err != nil {
			return nil, &Error{Op: "accept", Err: s.core.err}
		}
		if err := s.pause(ctx, &w); err != nil {
			if len(s.core.accepts[kind]) > 0 {
				queue.remove(&w)
				queue.wakeOne()
			}
			return nil, &Error{Op: "accept", Err: err}
		}
	}
}
