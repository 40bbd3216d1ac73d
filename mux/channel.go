package mux

import (
	"io"
	"slices"

	"github.com/headpond/headpond/mux/frame"
)

// channel is the state of one channel, for messages or a stream. The session's
// lock guards it; core's methods change it.
type channel struct {
	num       uint32
	kind      frame.Kind
	priority  frame.Priority
	id        ID
	name      string
	mine      bool // opened by this side
	accepted  bool // the other side's application has it
	forgotten bool // both directions are over, and the session has removed it

	// Sending.
	snd      credit
	head     *sendOp // waiting, in order
	tail     *sendOp
	active   bool // in core.active
	starved  bool // in core.starved
	deficit  int
	nextRun  *channel
	sendErr  error // why nothing more is sent; nil: open
	sendOver bool  // Fin or Reset is sent
	watch    waiters

	// Receiving.
	rcv       window
	ready     queue
	partial   *buffer // message being put together
	size      int     // of it, whole
	lent      bool    // the reader is filling partial outside the lock
	reserved  int     // of core.assembly
	queued    bool    // in core.reserveQueue
	recvErr   error   // for readers, after ready is empty; nil: open. io.EOF: Fin
	recvOver  bool    // Fin or Reset came, or later frames are dropped
	closed    bool    // this side reads no more: later data is dropped
	receivers waiters

	dirty     bool // in core.dirty
	nextDirty *channel
}

// dropReady empties the receive side and gives its credit back to the session.
func (c *core) dropReady(ch *channel) {
	for b := ch.ready.pop(); b != nil; b = ch.ready.pop() {
		c.consume(ch, b.cost)
		c.unclaim(b)
		b.release()
	}
	c.dropPartial(ch)
	c.unreserve(ch)
}

func (c *core) dropPartial(ch *channel) {
	if b := ch.partial; b != nil && !ch.lent {
		ch.partial = nil
		c.consume(ch, b.cost)
		b.release()
	}
}

// failSends fails every waiting and every later sender.
func (c *core) failSends(ch *channel, err error) {
	if ch.sendErr == nil {
		ch.sendErr = err
	}
	for o := ch.head; o != nil; {
		next := o.next
		o.next = nil
		o.finish(err)
		o = next
	}
	ch.head, ch.tail = nil, nil
	ch.watch.wakeAll()
}

// endSend sends Fin, after an Abort if a message was sent only in part.
func (c *core) endSend(ch *channel, err error) {
	if ch.sendOver {
		ch.sendErr = cmpErr(ch.sendErr, err)
		return
	}
	if o := ch.head; o != nil && o.off > 0 && ch.kind == frame.KindMessages {
		c.emit(frame.Data{Channel: ch.num, Flags: frame.FlagAbort})
	}
	c.failSends(ch, err)
	c.emit(frame.Data{Channel: ch.num, Flags: frame.FlagFin})
	ch.sendOver = true
	c.forget(ch)
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// endReceive stops reading: queued and later data is dropped.
func (c *core) endReceive(ch *channel, err error) {
	ch.closed = true
	if ch.recvErr == nil || ch.recvErr == io.EOF {
		ch.recvErr = err
	}
	c.dropReady(ch)
	ch.receivers.wakeAll()
}

// kill ends both directions and sends nothing.
func (c *core) kill(ch *channel, err error) {
	ch.sendOver, ch.recvOver = true, true
	c.failSends(ch, err)
	if ch.recvErr == nil {
		ch.recvErr = err
	}
	c.dropPartial(ch)
	c.unreserve(ch)
	ch.receivers.wakeAll()
	c.forget(ch)
}

// without takes ch out of a list.
func without(list []*channel, ch *channel) []*channel {
	return slices.DeleteFunc(list, func(o *channel) bool { return o == ch })
}

// forget drops the channel from the session once both directions are over.
func (c *core) forget(ch *channel) {
	if ch.forgotten || !ch.sendOver || !ch.recvOver {
		return
	}
	ch.forgotten = true
	delete(c.channels, ch.num)
	if ch.starved { // or core.starved would keep it
		ch.starved = false
		c.starved = without(c.starved, ch)
	}
	if c.replay != nil && c.err == nil {
		c.replay.forget(ch)
	}
	c.windows -= ch.rcv.size - (ch.rcv.got - ch.rcv.used) // unread data keeps its part of the window, see consume
	c.wakeOpeners()
	if ch.mine {
		c.mine--
	} else {
		c.theirs--
	}
	if len(c.channels) == 0 {
		c.empty.wakeAll()
	}
}
