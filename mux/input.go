package mux

import (
	"io"

	"github.com/headpond/headpond/mux/frame"
)

// input handles any whole frame except Data. An error ends the session.
func (c *core) input(h frame.Header, body []byte) error {
	c.frames++
	switch h.Type {
	case frame.TypePing:
		var f frame.Ping
		if err := f.Decode(h, body); err != nil {
			return err
		}
		c.pong, c.pongOpaque = true, f.Opaque
		return nil
	case frame.TypePong:
		var f frame.Pong
		if err := f.Decode(h, body); err != nil {
			return err
		}
		if f.Opaque == c.pings && c.pinged != 0 {
			c.rtt, c.pinged = max(1, c.now()-c.pinged), 0
		}
		if f.Opaque <= c.pings && f.Opaque > c.ponged {
			c.ponged = f.Opaque
			c.pongs.wakeAll()
		}
		return nil
	case frame.TypeAck:
		var f frame.Ack
		if err := f.Decode(h, body); err != nil {
			return err
		}
		if c.replay == nil {
			break
		}
		return nil // its header was enough
	case frame.TypeOpens:
		return c.inOpens(h, body)
	case frame.TypeOpen:
		return c.inOpen(h, body)
	case frame.TypeGoAway:
		return c.inGoAway(h, body)
	case frame.TypeWindow:
		return c.inWindow(h, body)
	case frame.TypeAccept, frame.TypeReset, frame.TypeStop:
		return c.inChannel(h, body)
	}
	return protocolError("%v after the handshake", h.Type)
}

// errFlood ends the session with frame.CodeFlood.
var errFlood = protocolError("flood of frames that need an answer, and the answers are not read")

// known finds the channel of a frame. It is nil, without an error, for one that is over.
func (c *core) known(num uint32) (*channel, error) {
	if ch := c.channels[num]; ch != nil {
		return ch, nil
	}
	if mine := num%2 == c.next%2; mine && num < c.next || !mine && num <= c.last {
		return nil, nil
	}
	return nil, protocolError("frame for channel %d, which was never opened", num)
}

func (c *core) inOpen(h frame.Header, body []byte) error {
	var f frame.Open
	if err := f.Decode(h, body); err != nil {
		return err
	}
	if f.Channel%2 == c.next%2 || f.Channel <= c.last {
		return protocolError("open of channel %d after %d", f.Channel, c.last)
	}
	c.last = f.Channel
	c.opens.theirs[f.Kind]++
	defer c.offerOpens()
	switch {
	case c.drained:
		return c.refuse(f.Channel, "draining")
	case c.clogged():
		return c.refuse(f.Channel, "the frames about other channels are not read")
	case c.theirs >= c.maxTheirs:
		return c.refuse(f.Channel, "too many channels for the receiver's MaxChannels")
	case c.windows+c.window > c.budget:
		return c.refuse(f.Channel, "too many channels: the receiver's SessionWindow does not hold another ChannelWindow")
	case len(c.accepts[f.Kind]) >= c.backlog:
		return c.refuse(f.Channel, "not accepted: the receiver's AcceptBacklog is full")
	}
	ch := c.newChannel(f.Channel, f.Kind, f.Priority, f.ID, string(f.Name))
	ch.accepted = true
	c.theirs++
	c.accepts[f.Kind] = append(c.accepts[f.Kind], ch)
	c.accepters[f.Kind].wakeOne()
	return nil
}

// refuse resets a channel that the other side opened and that does not exist here.
func (c *core) refuse(num uint32, reason string) error {
	c.counts.refused++
	return c.answer(num, frame.CodeRefused, reason)
}

// answer sends a Reset that a frame of the other side requires. Such answers are
// bounded: a peer that causes them without reading them ends the session.
func (c *core) answer(num uint32, code frame.Code, reason string) error {
	b := c.pend
	n := len(b.ctl)
	f := frame.Reset{Channel: num, Code: code, Reason: []byte(reason)}
	b.ctl = f.Append(b.ctl)
	if b.asks += len(b.ctl) - n; b.asks > maxAsks {
		return errFlood
	}
	return nil
}

func (c *core) inGoAway(h frame.Header, body []byte) error {
	var f frame.GoAway
	if err := f.Decode(h, body); err != nil {
		return err
	}
	if f.Code != frame.CodeNone {
		return &GoAwayError{Code: f.Code, Reason: string(f.Reason)}
	}
	c.goneAway = true
	c.wakeAllOpeners()
	refused := &ResetError{Code: frame.CodeRefused, Reason: "draining", Remote: true, draining: true}
	for _, ch := range c.channels {
		if ch.mine && ch.num > f.Last {
			c.kill(ch, refused)
		}
	}
	c.empty.wakeAll()
	return nil
}

func (c *core) inWindow(h frame.Header, body []byte) error {
	var f frame.Window
	if err := f.Decode(h, body); err != nil {
		return err
	}
	if f.Channel == 0 {
		if f.Limit > c.snd.limit {
			c.snd.limit = f.Limit
			c.feed()
		}
		return nil
	}
	ch, err := c.known(f.Channel)
	if ch != nil && f.Limit > ch.snd.limit {
		ch.snd.limit = f.Limit
		c.activate(ch)
	}
	return err
}

func (c *core) inChannel(h frame.Header, body []byte) error {
	ch, err := c.known(h.Channel)
	if err != nil {
		return err
	}
	switch h.Type {
	case frame.TypeAccept:
		var f frame.Accept
		if err := f.Decode(h, body); err != nil || ch == nil {
			return err
		}
		if !ch.mine {
			return protocolError("accept of channel %d by its opener", ch.num)
		}
		ch.accepted = true
		ch.watch.wakeAll()
	case frame.TypeStop:
		var f frame.Stop
		if err := f.Decode(h, body); err != nil || ch == nil {
			return err
		}
		c.endSend(ch, ErrPeerClosed)
	case frame.TypeReset:
		var f frame.Reset
		if err := f.Decode(h, body); err != nil || ch == nil {
			return err
		}
		c.counts.resets++
		c.dropReady(ch)
		c.kill(ch, &ResetError{Code: f.Code, Reason: string(f.Reason), Remote: true})
		ch.watch.wakeAll()
	}
	return nil
}

// violate resets one channel for a violation of the other side on it.
func (c *core) violate(ch *channel, code frame.Code, reason string) error {
	c.counts.resets++
	err := &ResetError{Code: code, Reason: reason}
	c.dropReady(ch)
	c.kill(ch, err)
	return c.answer(ch.num, code, reason)
}

// inFin ends the receiving direction.
func (c *core) inFin(ch *channel) error {
	if ch.partial != nil && !ch.closed {
		return c.violate(ch, frame.CodeProtocol, "fin within a message")
	}
	ch.recvOver = true
	if ch.recvErr == nil {
		ch.recvErr = io.EOF
	}
	ch.receivers.wakeAll()
	c.forget(ch)
	return nil
}
