package mux

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/headpond/headpond/mux/frame"
)

// opens is the credit for opening channels, by kind: how many the other side's
// Config.AcceptBacklog has room for (docs/mux-protocol.md, section 4).
type opens struct {
	inUse   bool // both sides have frame.FeatureOpens
	known   bool // the other side has sent its limits
	mine    [frame.KindStream + 1]uint32
	limit   [frame.KindStream + 1]uint32 // of mine
	theirs  [frame.KindStream + 1]uint32
	granted [frame.KindStream + 1]uint32 // limit of theirs
	waiting [frame.KindStream + 1]waiters
}

// fullError is why a channel cannot be opened now, and which side's Config to change.
type fullError struct {
	why   string
	brief bool // only until the other side's first frame has arrived
}

// Error describes it in one line.
func (e *fullError) Error() string { return ErrTooManyChannels.Error() + ": " + e.why }

// Unwrap makes errors.Is(err, ErrTooManyChannels) true.
func (e *fullError) Unwrap() error { return ErrTooManyChannels }

// full returns why no channel of the kind can be opened now, or nil.
func (c *core) full(kind frame.Kind) error {
	o := &c.opens
	switch {
	case o.inUse && !o.known:
		return &fullError{why: "the other side has not announced its limit yet", brief: true}
	case o.inUse && o.mine[kind] >= o.limit[kind]:
		return &fullError{why: "the other side's Config.AcceptBacklog is full of channels that it has not accepted yet"}
	case c.mine >= c.maxMine:
		return &fullError{why: fmt.Sprintf("this side has %d open, as many as the other side's Config.MaxChannels allows", c.mine)}
	case !c.holds():
		return &fullError{why: fmt.Sprintf("this side's Config.SessionWindow (%d bytes) does not hold another Config.ChannelWindow (%d)", c.budget, c.window)}
	case c.clogged():
		return &fullError{why: "the connection has not taken the frames about other channels yet"}
	}
	return nil
}

// holds reports whether there is room for the window of one more channel of this
// side. A budget that was not configured grows with the channels that this side opens,
// so that the other side can still open as many as it may.
func (c *core) holds() bool {
	if !c.elastic {
		return c.windows+c.window <= c.budget
	}
	if need := c.windows + uint64(1+max(0, c.maxTheirs-c.theirs))*c.window; need > c.budget {
		c.budget = min(need, maxSessionWindow)
		c.rcv.size, c.grant = 2*c.budget, true
	}
	return c.windows+c.window <= c.budget
}

// offerOpens raises the number of channels that the other side may open, if less than
// half of the backlog is left to it and there is room for more.
func (c *core) offerOpens() {
	o, due := &c.opens, false
	if !o.inUse {
		return
	}
	for kind := frame.KindMessages; kind <= frame.KindStream; kind++ {
		room := max(0, c.backlog-len(c.accepts[kind]))
		could := min(uint64(o.theirs[kind])+uint64(room), math.MaxUint32)
		left := int64(o.granted[kind]) - int64(o.theirs[kind])
		if could > uint64(o.granted[kind]) && left <= int64(c.backlog/2) {
			o.granted[kind], due = uint32(could), true
		}
	}
	if due {
		f := frame.Opens{Messages: o.granted[frame.KindMessages], Streams: o.granted[frame.KindStream]}
		c.pend.ctl = f.Append(c.pend.ctl)
	}
}

func (c *core) inOpens(h frame.Header, body []byte) error {
	var f frame.Opens
	if err := f.Decode(h, body); err != nil {
		return err
	}
	o := &c.opens
	if !o.inUse {
		return protocolError("%v, which was not agreed", h.Type)
	}
	o.known = true
	o.limit[frame.KindMessages] = max(o.limit[frame.KindMessages], f.Messages)
	o.limit[frame.KindStream] = max(o.limit[frame.KindStream], f.Streams)
	c.wakeOpeners()
	return nil
}

// wakeOpeners makes the callers that have waited longest to open a channel try again.
func (c *core) wakeOpeners() {
	c.opens.waiting[frame.KindMessages].wakeOne()
	c.opens.waiting[frame.KindStream].wakeOne()
}

// wakeAllOpeners makes all of them try again, and fail: the session takes no more channels.
func (c *core) wakeAllOpeners() {
	c.opens.waiting[frame.KindMessages].wakeAll()
	c.opens.waiting[frame.KindStream].wakeAll()
}

// NoWait makes Open and OpenStream fail with ErrTooManyChannels at once where they
// would wait for a channel to be accepted or to end.
func NoWait() Option { return func(o *opening) { o.noWait = true } }

// openWhenRoom opens a channel as soon as there is room for it, first come first
// served. mu is held, and released while waiting.
func (s *Session) openWhenRoom(ctx context.Context, kind frame.Kind, name string, o *opening) (*channel, error) {
	c := s.core
	queue := &c.opens.waiting[kind]
	if queue.head == nil {
		if ch, err := c.open(kind, o.priority, o.id, name); !o.waits(err) {
			return ch, err
		}
	}
	w := newWaiter()
	queue.add(&w)
	defer func() {
		queue.remove(&w)
		queue.wakeOne() // there may be room for more than one
	}()
	for {
		err := c.refuses()
		if err != nil {
			return nil, err
		}
		if queue.head == &w {
			var ch *channel
			if ch, err = c.open(kind, o.priority, o.id, name); !o.waits(err) {
				return ch, err
			}
		} else if err = c.full(kind); err != nil && !o.waits(err) {
			return nil, err
		}
		if why := s.pause(ctx, &w); why != nil {
			if err == nil {
				err = ErrTooManyChannels
			}
			return nil, fmt.Errorf("%w: %w", err, why)
		}
	}
}

// waits reports whether to wait after err.
func (o *opening) waits(err error) bool {
	full, ok := errors.AsType[*fullError](err)
	return ok && (!o.noWait || full.brief)
}
