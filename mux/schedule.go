package mux

import (
	"encoding/binary"

	"github.com/headpond/headpond/mux/frame"
)

// frameCost is the most that a frame takes of the credit besides its payload.
const frameCost = frame.DataCost + 4 // the first of several says the message's size

// push puts a small message or piece of a stream straight into the batch if
// nothing is ahead of it and there is credit and room. data is copied.
func (c *core) push(ch *channel, data []byte) bool {
	b, cost := c.pend, uint64(len(data)+frame.DataCost)
	if len(data) > copyMax || len(data) > c.chunk || ch.head != nil || c.active != nil ||
		cost > ch.snd.left() || cost > c.snd.left() || b.size+len(data) > batchSize || len(b.out) > 2*batchSize {
		return false
	}
	c.spend(ch, len(data))
	n := len(b.out)
	if cap(b.out)-n < frame.HeaderSize+len(data) {
		b.out = append(b.out, make([]byte, frame.HeaderSize+len(data))...)[:n]
	}
	b.out = b.out[:n+frame.HeaderSize+len(data)]
	frame.Header{Type: frame.TypeData, Channel: ch.num, Length: uint32(len(data))}.Put(b.out[n:])
	copy(b.out[n+frame.HeaderSize:], data)
	c.counts.messagesSent++
	return true
}

// tryPush puts a message into the batch, in the frames that it needs, if nothing is ahead of it and
// there is credit and room. data is copied.
func (c *core) tryPush(ch *channel, data []byte) bool {
	r := c.replay
	if r != nil && r.full() {
		return false
	}
	if c.push(ch, data) {
		return true
	}
	if r != nil && r.size()+c.pend.size+len(data) > r.limit { // a batch may be more than there is room for, not a message
		return false
	}
	frames := (len(data) + c.chunk - 1) / max(c.chunk, 1)
	cost := uint64(len(data) + frames*frameCost) // frame leaves as much for each
	if len(data) <= min(copyMax, c.chunk) || ch.head != nil || c.active != nil || c.pend.size >= batchSize ||
		cost > ch.snd.left() || cost > c.snd.left() {
		return false
	}
	o := sendOp{ch: ch, data: data, wait: newWaiter()}
	ch.head, ch.tail = &o, &o
	copyAll := c.copyAll
	for c.copyAll = true; ch.head != nil; {
		c.frame(c.pend, ch)
	}
	c.copyAll = copyAll
	return true
}

// spend takes a frame with a body of n bytes from the credit and counts it.
func (c *core) spend(ch *channel, n int) {
	ch.snd.sent += uint64(n + frame.DataCost)
	c.snd.sent += uint64(n + frame.DataCost)
	c.pend.size += n + frame.HeaderSize
	c.counts.bytesSent += uint64(n)
}

// enqueue queues o. o.data is the caller's until o is done.
func (c *core) enqueue(o *sendOp) {
	ch := o.ch
	if ch.tail == nil {
		ch.head = o
	} else {
		ch.tail.next = o
	}
	ch.tail = o
	c.activate(ch)
}

// activate puts the channel into the ring of those with something to send.
func (c *core) activate(ch *channel) {
	if ch.active || ch.head == nil {
		return
	}
	if !c.canSend(ch) {
		c.starve(ch)
		return
	}
	ch.active, ch.deficit = true, 0
	if c.active == nil {
		ch.nextRun = ch
	} else {
		ch.nextRun, c.active.nextRun = c.active.nextRun, ch
	}
	c.active = ch
}

// starve adds ch to the channels that wait only for the session's credit.
func (c *core) starve(ch *channel) {
	if !ch.starved && c.snd.left() < ch.snd.left() {
		ch.starved = true
		c.starved = append(c.starved, ch)
	}
}

// feed activates the channels that waited for the session's credit.
func (c *core) feed() {
	hungry := c.starved
	c.starved = nil
	for _, ch := range hungry {
		ch.starved = false
		c.activate(ch)
	}
}

// piece is the payload of the channel's next frame, in bytes. A channel that is
// alone gets larger ones, as far as its credit goes.
func (c *core) piece(ch *channel) int {
	limit := c.chunk
	if c.active == ch && ch.nextRun == ch {
		left := min(ch.snd.left(), c.snd.left())
		limit = max(limit, int(min(uint64(min(c.bulk, c.burst)), max(left, frameCost)-frameCost)))
	}
	return min(limit, len(ch.head.data)-ch.head.off)
}

// room reports whether the batch takes another frame.
func (c *core) room(b *batch) bool {
	if c.active != nil && c.active.nextRun == c.active && !c.copyAll && c.replay == nil {
		return b.size < c.burst
	}
	return b.size < batchSize
}

// took records how much of a batch the socket took at once: bytes that it did not take
// delay later senders.
func (c *core) took(n, size int) {
	if n < size {
		c.burst = max(batchSize, n)
	} else if size >= c.burst {
		c.burst = min(2*c.burst, bulkBatch)
	}
}

// canSend reports whether the channel has credit for its next frame. A stream uses
// whatever credit there is.
func (c *core) canSend(ch *channel) bool {
	left := min(ch.snd.left(), c.snd.left())
	if left < frameCost {
		return false
	}
	return uint64(c.piece(ch)) <= left-frameCost || (ch.kind == frame.KindStream && left > frameCost)
}

// fill adds to the batch until it is full: control frames that are due, then
// Data frames by deficit round robin.
func (c *core) fill() *batch {
	b := c.pend
	c.fillControl(b)
	for c.active != nil && c.room(b) {
		prev, ch := c.active, c.active.nextRun
		ch.deficit += quantum << ch.priority
		for ch.head != nil && c.room(b) && c.canSend(ch) && c.piece(ch) <= ch.deficit {
			c.frame(b, ch)
		}
		if ch.head == nil || !c.canSend(ch) {
			c.retire(prev, ch)
			c.activate(ch) // or remember what it waits for
		} else if c.piece(ch) > ch.deficit {
			c.active = ch // the next channel
		} else {
			ch.deficit -= quantum << ch.priority // the batch is full: the channel continues with the rest of its quantum
		}
	}
	return b
}

// retire takes the channel after prev out of the ring.
func (c *core) retire(prev, ch *channel) {
	ch.active = false
	if prev == ch {
		c.active = nil
	} else {
		prev.nextRun = ch.nextRun
	}
	ch.nextRun = nil
}

// frame puts the next frame of the channel's first sender into the batch.
func (c *core) frame(b *batch, ch *channel) {
	o := ch.head
	n := min(uint64(c.piece(ch)), min(ch.snd.left(), c.snd.left())-frameCost)
	data := o.data[o.off : o.off+int(n)]
	f, body := frame.Data{Channel: ch.num, Size: uint32(len(o.data))}, len(data)
	if ch.kind == frame.KindMessages && o.off+len(data) < len(o.data) {
		f.Flags = frame.FlagMore
		if o.off == 0 {
			f.Flags |= frame.FlagSized
			body += 4
		}
	}
	b.out = f.Head(b.out, len(data))
	o.off += len(data)
	ch.deficit -= len(data)
	c.spend(ch, body)
	if c.copyAll || len(data) <= copyMax {
		b.out = append(b.out, data...)
	} else {
		b.segs = append(b.segs, segment{len(b.out), data})
		if !o.pinned {
			o.pinned = true
			b.ops = append(b.ops, o)
		}
	}
	if o.off == len(o.data) {
		c.shift(ch)
		c.counts.messagesSent++
		o.finish(nil)
	}
}

func (c *core) shift(ch *channel) {
	o := ch.head
	if ch.head, o.next = o.next, nil; ch.head == nil {
		ch.tail = nil
	}
}

// fillControl adds the frames that were put off until a write was due.
func (c *core) fillControl(b *batch) {
	if c.replay == nil {
		b.free = c.fillFree(b.free)
	}
	for ch := c.dirty; ch != nil; {
		next := ch.nextDirty
		ch.dirty, ch.nextDirty = false, nil
		if !ch.forgotten && !ch.recvOver && !ch.closed {
			c.tune(ch)
			ch.rcv.limit = ch.rcv.used + ch.rcv.size
			b.ctl = frame.Window{Channel: ch.num, Limit: ch.rcv.limit}.Append(b.ctl)
		}
		ch = next
	}
	c.dirty, c.urgent = nil, false
	if c.grant {
		c.grant = false
		c.rcv.limit = c.rcv.used + c.rcv.size
		b.ctl = frame.Window{Limit: c.rcv.limit}.Append(b.ctl)
	}
}

// fillFree appends the answers that are due and have no number.
func (c *core) fillFree(dst []byte) []byte {
	if c.pong {
		c.pong = false
		dst = frame.Pong{Opaque: c.pongOpaque}.Append(dst)
	}
	return dst
}

// fillLead appends the frames that go ahead of the next frames of the ring.
func (c *core) fillLead(dst []byte) []byte {
	r, n := c.replay, len(dst)
	dst = append(dst, c.pend.free...)
	c.pend.free = c.pend.free[:0]
	dst = c.fillFree(dst)
	for at := n; at < len(dst); at += frame.HeaderSize + 8 { // pings and pongs
		binary.BigEndian.PutUint32(dst[at+12:], uint32(r.received))
	}
	if r.due {
		r.ackSent, r.since, r.due = r.received, 0, false
		dst = frame.Ack{Last: r.received}.Append(dst)
	}
	return dst
}

// tune doubles the window of a channel whose reader empties half of it in less than four round
// trips, or than fastReader: the window limits its rate then, or makes its writes small. Half of
// the budget is kept for channels to come.
func (c *core) tune(ch *channel) {
	w := &ch.rcv
	if w.used-w.measured < w.size/2 {
		return
	}
	now := c.now()
	fast := now-w.since < max(4*c.rtt, fastReader)
	w.measured, w.since = w.used, now
	if fast && 2*w.size <= c.maxWindow && c.windows+w.size <= c.budget/2 {
		c.windows += w.size
		w.size *= 2
	}
}

// wrote is called when the batch's bytes no longer refer to senders' data.
func (c *core) wrote(b *batch, err error) {
	for _, o := range b.ops {
		o.pinned = false
		if o.err != nil || err != nil || o.off == len(o.data) {
			o.finish(err)
		}
	}
	c.wakeOpeners() // which may have waited for this write
}

// cancel gives a waiting sender up. It reports whether the sender may go: not
// before the write that uses its data is over.
func (c *core) cancel(o *sendOp, err error) bool {
	if o.done {
		return true
	}
	ch := o.ch
	for p, prev := &ch.head, (*sendOp)(nil); *p != nil; prev, p = *p, &(*p).next {
		if *p != o {
			continue
		}
		if *p = o.next; ch.tail == o {
			ch.tail = prev
		}
		o.next = nil
		if o.off > 0 && ch.kind == frame.KindMessages && ch.sendErr == nil {
			c.emit(frame.Data{Channel: ch.num, Flags: frame.FlagAbort})
		}
		o.finish(err)
		c.activate(ch)
		return o.done
	}
	return false // all of it is in the batch being written
}

// idle reports whether nothing has to be written.
func (c *core) idle() bool {
	return c.pend.empty() && c.active == nil && !c.pong && !c.urgent
}
