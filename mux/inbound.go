package mux

import (
	"github.com/headpond/headpond/mux/frame"
)

// inbound is a Data frame whose payload has not arrived whole. b has room for it, at
// the end of b.data; b is nil if the payload is to be dropped. Between begin and end
// only the reader may touch b.data's tail.
type inbound struct {
	ch   *channel
	b    *buffer
	h    frame.Header
	n    int  // payload bytes
	tail bool // b is the last of ch.ready
	into bool // it goes to core.receiver's own buffer
	// whole means that b has the payload already.
	whole bool
}

// begin admits a Data frame, whose length is at most maxFrame, before its
// payload has arrived. size is its first four bytes if it is sized. locked means
// that the lock is held until end. An error ends the session; a violation that
// concerns one channel resets that channel only.
func (c *core) begin(h frame.Header, size uint32, locked bool) (in inbound, err error) {
	c.frames++
	cost := h.Cost()
	in = inbound{h: h, n: int(h.Length)}
	if h.Flags&frame.FlagSized != 0 {
		in.n -= 4
	}
	if c.rcv.got += cost; c.rcv.got > c.rcv.limit {
		return in, protocolError("more data than the session has credit for")
	}
	ch, err := c.known(h.Channel)
	if ch == nil {
		c.useSession(cost)
		return in, err
	}
	if ch.recvOver {
		c.useSession(cost)
		return in, c.violate(ch, frame.CodeProtocol, "data after fin")
	}
	if ch.rcv.got += cost; ch.rcv.got > ch.rcv.limit {
		c.consume(ch, cost)
		return in, c.violate(ch, frame.CodeFlow, "more data than the channel has credit for")
	}
	in.ch = ch
	if ch.closed {
		c.consume(ch, cost)
		return in, nil
	}
	if ch.kind == frame.KindStream {
		err = c.beginStream(&in, cost, locked)
	} else {
		err = c.beginMessage(&in, cost, size, locked)
	}
	return in, err
}

// reject resets in's channel and drops the payload.
func (c *core) reject(in *inbound, cost uint64, code frame.Code, reason string) error {
	ch := in.ch
	in.ch = nil
	c.consume(ch, cost)
	return c.violate(ch, code, reason)
}

func (c *core) beginStream(in *inbound, cost uint64, locked bool) error {
	ch := in.ch
	switch {
	case in.h.Flags&^frame.FlagFin != 0:
		return c.reject(in, cost, frame.CodeProtocol, "message flags on a stream")
	case in.n == 0 && in.h.Flags == 0:
		return c.reject(in, cost, frame.CodeProtocol, "empty frame on a stream")
	case in.n == 0:
		return nil
	}
	if b := c.whole; b != nil { // its data is the payload
		c.whole = nil
		in.b, in.whole, b.cost = b, true, cost
		return nil
	}
	if b := ch.ready.tail; locked && b != nil && cap(b.data)-len(b.data) >= in.n {
		b.cost += cost
		in.b, in.tail = b, true
		return nil
	}
	in.b = newBuffer(in.n)
	in.b.cost = cost
	return nil
}

func (c *core) beginMessage(in *inbound, cost uint64, size uint32, locked bool) error {
	ch, fl := in.ch, in.h.Flags
	if fl&(frame.FlagFin|frame.FlagAbort) != 0 {
		switch {
		case in.n != 0:
			return c.reject(in, cost, frame.CodeProtocol, "fin with a payload on a channel of messages")
		case fl == frame.FlagAbort && ch.partial == nil:
			return c.reject(in, cost, frame.CodeProtocol, "abort without a message")
		}
		return nil
	}
	if first := ch.partial == nil; !first {
		have := len(ch.partial.data) + in.n
		if fl&frame.FlagSized != 0 || in.n == 0 || have > ch.size || (fl&frame.FlagMore == 0) != (have == ch.size) {
			return c.reject(in, cost, frame.CodeProtocol, "parts that do not make up the message")
		}
		return c.beginPart(in, cost, have)
	}
	switch {
	case fl == frame.FlagMore || fl&frame.FlagSized != 0 && int64(size) <= int64(in.n):
		return c.reject(in, cost, frame.CodeProtocol, "message begun without its size")
	case fl == 0 && in.n <= c.maxMessage && locked && c.eager == ch && c.receiver.takes(in.n) && ch.ready.head == nil:
		in.into = true
		c.consume(ch, cost)
		return nil
	case fl == 0 && in.n <= c.maxMessage:
		if in.b = c.borrow(ch, in.n); in.b == nil {
			in.b = newBuffer(in.n)
		}
		in.b.cost = cost
		return nil
	case fl == 0 || uint64(size) > uint64(c.maxMessage):
		return c.reject(in, cost, frame.CodeTooLarge, "message over the receiver's MaxMessage")
	}
	// The size is trusted up to the window, which was granted anyway.
	ch.size = int(size)
	if ch.partial = c.borrow(ch, ch.size); ch.partial == nil {
		ch.partial = newBuffer(int(min(uint64(size), max(ch.rcv.size, uint64(in.n)))))
	}
	return c.beginPart(in, cost, in.n)
}

// borrow returns the memory of the receiver that reads, for a message of n bytes
// on its channel, or nil.
func (c *core) borrow(ch *channel, n int) *buffer {
	if c.eager != ch || ch.ready.head != nil || !c.receiver.takes(n) {
		return nil
	}
	return c.receiver.lend()
}

// recall moves a message of ch that is being assembled in a receiver's own memory
// b to a buffer: the receiver stops waiting, or another is about to read. in is the
// frame whose payload is being read, if any, and rest the memory for its missing part;
// the new memory for that part is returned.
func (c *core) recall(ch *channel, b *buffer, in *inbound, rest []byte) []byte {
	have, room := len(b.data), len(b.data)
	if in != nil {
		room += in.n
	}
	if ch.partial == b {
		room = max(room, min(ch.size, int(ch.rcv.size)))
	}
	g := newBuffer(room)
	g.data, g.cost = append(g.data, b.data...), b.cost
	if ch.partial == b {
		ch.partial = g
	}
	if in != nil {
		got := in.n - len(rest)
		copy(g.data[have:have+got], b.data[have:have+got])
		in.b, rest = g, g.data[have+got:have+in.n]
	}
	b.release()
	return rest
}

// fillOwner hands a message to the receiver in whose memory it was assembled.
func (c *core) fillOwner(ch *channel, b *buffer) {
	c.counts.messagesReceived++
	c.consume(ch, b.cost)
	b.cost = 0
	c.unclaim(b)
	b.owner.n, b.owner.filled = len(b.data), true
	b.release()
}

// beginPart makes room for have bytes in the message being assembled.
func (c *core) beginPart(in *inbound, cost uint64, have int) error {
	ch := in.ch
	if o := ch.partial.owner; o != nil && (c.eager != ch || c.receiver != o) {
		c.recall(ch, ch.partial, nil, nil)
	}
	ch.partial.cost += cost
	c.reserve(ch)
	if cap(ch.partial.data) < have {
		n := min(ch.size, max(have, 2*cap(ch.partial.data)))
		if ch.reserved > 0 {
			n = ch.size
		}
		ch.partial = ch.partial.grow(n)
	}
	in.b, ch.lent = ch.partial, true
	return nil
}

// end handles the frame that begin admitted, with its payload now in b.
func (c *core) end(in inbound) error {
	ch, b := in.ch, in.b
	if ch == nil {
		return nil
	}
	c.counts.bytesReceived += uint64(in.n)
	switch {
	case in.h.Flags&frame.FlagFin != 0 && ch.kind == frame.KindMessages:
		return c.inFin(ch)
	case in.h.Flags == frame.FlagAbort:
		c.dropPartial(ch)
		c.unreserve(ch)
		return nil
	case b == nil:
	case in.tail:
		ch.receivers.wakeOne()
	case ch.lent:
		c.endPart(ch, b, in.h.Flags)
	case ch.closed || ch.recvOver:
		c.consume(ch, b.cost)
		b.release()
	default:
		c.deliver(ch, b)
	}
	if in.h.Flags&frame.FlagFin != 0 && !ch.recvOver {
		return c.inFin(ch)
	}
	return nil
}

// lose is end for a frame whose payload is lost with the connection.
func (c *core) lose(in inbound) {
	if in.ch.lent {
		in.ch.lent = false
		c.dropPartial(in.ch)
		c.unreserve(in.ch)
		return
	}
	c.consume(in.ch, in.b.cost)
	in.b.release()
}

func (c *core) endPart(ch *channel, b *buffer, fl frame.Flags) {
	ch.lent = false
	switch {
	case ch.closed || ch.recvOver:
		c.dropPartial(ch)
		c.unreserve(ch)
	case fl&frame.FlagMore == 0:
		ch.partial = nil
		c.claim(ch, b)
		c.deliver(ch, b)
	}
}

func (c *core) deliver(ch *channel, b *buffer) {
	if b.owner != nil {
		c.fillOwner(ch, b)
		return
	}
	c.counts.messagesReceived++
	ch.ready.push(b)
	ch.receivers.wakeOne()
}

// take pops the next message, which must not be longer than limit. A nil buffer
// and 0 mean that there is none yet; a nil buffer and n that it has n bytes.
func (c *core) take(ch *channel, limit int) (b *buffer, n int) {
	if b = ch.ready.head; b == nil {
		return nil, 0
	}
	if n = len(b.data); n > limit {
		return nil, n
	}
	ch.ready.pop()
	c.consume(ch, b.cost)
	b.cost = 0
	c.unclaim(b)
	c.reserve(ch) // another receiver may wait for a large message after it
	return b, n
}

// consume returns the credit of data that the application has received or that was dropped.
func (c *core) consume(ch *channel, cost uint64) {
	c.useSession(cost)
	ch.rcv.used += cost
	if ch.forgotten {
		c.windows -= cost
		c.wakeOpeners()
		return
	}
	if !ch.rcv.low() {
		return
	}
	if !ch.dirty {
		ch.dirty, ch.nextDirty = true, c.dirty
		c.dirty = ch
	}
	c.urgent = c.urgent || ch.rcv.due()
}

func (c *core) useSession(cost uint64) {
	c.rcv.used += cost
	c.grant = c.grant || c.rcv.low()
	c.urgent = c.urgent || c.rcv.due()
}
