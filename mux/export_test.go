package mux

import (
	"github.com/headpond/headpond/mux/frame"
)

// Core is one side of a session without socket, goroutine or clock, for the model test.
type Core struct {
	c   *core
	Now int64
}

// CoreChannel is a channel of a Core.
type CoreChannel struct{ ch *channel }

// NewCorePair makes two that have shaken hands.
func NewCorePair(cfg Config, copyAll bool) (client, server *Core) {
	cfg = cfg.withDefaults()
	hello := frame.Hello{
		MaxFrame: offeredFrame(cfg), MaxChannels: uint32(cfg.MaxChannels),
		ChannelWindow: uint32(cfg.ChannelWindow), SessionWindow: offeredSession(cfg),
	}
	client, server = &Core{}, &Core{}
	client.c = newCore(cfg, true, &hello, func() int64 { return client.Now })
	server.c = newCore(cfg, false, &hello, func() int64 { return server.Now })
	client.c.copyAll, server.c.copyAll = copyAll, copyAll
	if r := cfg.Resume; r != nil {
		client.c.replay = &replay{limit: r.buffer(), quarter: r.buffer() / 4}
		server.c.replay = &replay{limit: r.buffer(), quarter: r.buffer() / 4}
	}
	return client, server
}

// Cut loses the connection between two cores with all data on it, and continues with another.
func Cut(a, b *Core) bool {
	a.c.suspend()
	b.c.suspend()
	return a.c.replay.rewind(b.c.replay.received) && b.c.replay.rewind(a.c.replay.received)
}

// Held is the number of sessions that d has, including those that are over.
func (d *Dialer) Held() (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.hosts {
		n += len(h.sessions) + len(h.retired)
	}
	return n
}

// Ended is how many channels are remembered that are over, and not acknowledged.
func (c *Core) Ended() int { return len(c.c.replay.ended) }

// Kept is how many bytes are kept to be sent again.
func (c *Core) Kept() int { return c.c.replay.size() }

// output is Output of a core that can resume.
func (c *Core) output() (wire []byte) {
	r := c.c.replay
	if !r.full() {
		if b := c.c.fill(); len(b.ctl)+len(b.out) > 0 {
			r.take(b)
			c.c.wrote(b, nil)
			b.reset()
		}
	}
	r.due = r.received != r.ackSent
	wire = c.c.fillLead(wire)
	r.chunk = r.end
	for _, p := range r.pieces(nil) {
		wire = append(wire, p...)
	}
	r.write = r.chunk
	return wire
}

// Output takes the next batch as the writer does; nil when there is nothing to write.
func (c *Core) Output() (wire []byte) {
	if c.c.replay != nil {
		return c.output()
	}
	b := c.c.fill()
	c.c.pend = &batch{}
	for _, p := range b.pieces(nil, 0) {
		wire = append(wire, p...)
	}
	c.c.wrote(b, nil)
	return wire
}

// Input takes one frame as the reader does.
func (c *Core) Input(h frame.Header, body []byte, locked bool) error {
	if r := c.c.replay; r != nil {
		if err := r.handleAck(h.Ack); err != nil {
			return err
		}
		if h.Type.Sequenced() {
			defer r.count(frame.HeaderSize + len(body))
		}
	}
	if h.Type != frame.TypeData {
		return c.c.input(h, body)
	}
	in, err := c.c.begin(h, sizeOf(h, body), locked)
	if err != nil {
		return err
	}
	if in.b != nil {
		in.b.data = append(in.b.data, body[len(body)-in.n:]...)
	}
	return c.c.end(in)
}

// Open opens a channel of messages with a number in its ID.
func (c *Core) Open(prio Priority, number byte) (CoreChannel, error) {
	ch, err := c.c.open(frame.KindMessages, prio, ID{number}, "model")
	return CoreChannel{ch}, err
}

// Accept takes a channel; false when there is none.
func (c *Core) Accept() (CoreChannel, bool) {
	ch := c.c.accept(frame.KindMessages)
	return CoreChannel{ch}, ch != nil
}

// Number is the one it was opened with.
func (ch CoreChannel) Number() byte { return ch.ch.id[0] }

// Refused reports whether the other side refused the channel.
func (ch CoreChannel) Refused() bool { return refused(ch.ch.recvErr) }

// CoreSend is a sender that waits.
type CoreSend struct{ o *sendOp }

// Send begins to send data; it may be done at once.
func (c *Core) Send(ch CoreChannel, data []byte) CoreSend {
	o := &sendOp{ch: ch.ch, data: data, wait: newWaiter()}
	switch {
	case ch.ch.sendErr != nil:
		o.finish(ch.ch.sendErr)
	case c.c.push(ch.ch, data):
		o.off = len(data)
		o.finish(nil)
	default:
		c.c.enqueue(o)
	}
	return CoreSend{o}
}

// Cancel gives it up; it reports whether the message will never be delivered.
func (c *Core) Cancel(s CoreSend, err error) bool { return !s.o.done && c.c.cancel(s.o, err) }

// Done reports whether it ended, and how.
func (s CoreSend) Done() (bool, error) { return s.o.done, s.o.err }

// Receive takes a message, as a receiver that is waiting; false when there is none.
func (c *Core) Receive(ch CoreChannel) ([]byte, bool) {
	b, _ := c.c.take(ch.ch, anySize)
	if b == nil && ch.ch.receivers.head == nil { // else there is a receiver already
		w := newWaiter()
		ch.ch.receivers.add(&w)
		c.c.reserve(ch.ch)
		ch.ch.receivers.remove(&w)
		c.c.stopReserving(ch.ch)
	}
	if b == nil {
		return nil, false
	}
	return b.data, true
}

// End is the error that ended receiving; nil if there is none.
func (ch CoreChannel) End() error {
	if ch.ch.ready.head != nil {
		return nil
	}
	return ch.ch.recvErr
}

// CloseWrite, Close and Reset are the channel's.
func (c *Core) CloseWrite(ch CoreChannel) { c.c.endSend(ch.ch, ErrClosed) }

// Close ends both directions.
func (c *Core) Close(ch CoreChannel) { c.c.close(ch.ch) }

// Reset ends both directions at once.
func (c *Core) Reset(ch CoreChannel) { c.c.reset(ch.ch, frame.CodeApplication, "model") }

// Held is the size of a session's state: channels, unread bytes, reserved bytes.
func (c *Core) Held() (channels int, buffered uint64, assembly int) {
	return len(c.c.channels), c.c.rcv.got - c.c.rcv.used, c.c.assembly
}

// Pending is how many bytes of frames wait to be written, but for payloads.
func (c *Core) Pending() int { return len(c.c.pend.ctl) + len(c.c.pend.out) }

// Queued is how many channels wait for a reservation, or for the session's credit.
func (c *Core) Queued() int { return len(c.c.reserveQueue) + len(c.c.starved) }

// Wait makes a receiver wait that does not leave.
func (c *Core) Wait(ch CoreChannel) {
	w := newWaiter()
	ch.ch.receivers.add(&w)
	c.c.reserve(ch.ch)
}

// Reserved reports whether the channel may receive more of its message than its window holds.
func (ch CoreChannel) Reserved() bool { return ch.ch.reserved > 0 }

// Windows is the sum of the channels' windows.
func (c *Core) Windows() uint64 { return c.c.windows }

// ResumeFrame is the frame that a client would send to resume the session; the proof is right
// unless forged.
func ResumeFrame(s *Session, epoch uint32, last uint64, forged bool) []byte {
	ask := frame.Resume{Version: 1, Epoch: epoch, Last: last, Session: s.number, Instance: instance}
	wire := ask.Append(nil)
	if !forged {
		ask.Proof = s.sign(resumeLabel, wire[:len(wire)-frame.ProofSize])
	}
	return ask.Append(nil)
}

// Numbers are those of the last frames acknowledged, sent and received.
func Numbers(s *Session) (acked, sent, received uint64, epoch uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.core.replay
	return r.acked, r.sent, r.received, s.ticket.epoch
}

// Waiting is how many goroutines wait in the session.
func Waiting(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting
}

// Leads reports whether a receiver reads the connection itself.
func Leads(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.eager != nil && s.link.reading
}

// Lent reports whether a message is being assembled in the memory of the reading receiver.
func Lent(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.core.receiver
	return w != nil && w.own != nil && w.own.owner != nil && s.link.reading
}

// Elsewhere reports whether a large frame is being read into a buffer of the session.
func Elsewhere(s *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.last.in
	return in.big && in.to.b != nil && in.to.b.owner == nil
}

// UseUp leaves the client s one number for a channel.
func UseUp(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.next = 1<<32 - 3
}

// LoseAfter calls f and loses the connection, if a receiver has been reading it itself for a while,
// and everything up to frame number last. The session's reader looks before that receiver does, and
// nothing else happens in between.
func LoseAfter(s *Session, last uint64, f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.link
	if s.core.eager == nil || !l.reading || l.watched || s.core.replay.received < last {
		return false
	}
	l.wakeReader() // waits for mu before the receiver does
	f()
	s.lose(l, ErrSessionLost)
	select {
	case <-l.wake: // it has been woken
	default:
	}
	return true
}

// ReadBy and WriteBy are Read and Write for a caller that waits by a parker.
func (t *Stream) ReadBy(p []byte, by parker) (int, error)  { return t.read(p, by) }
func (t *Stream) WriteBy(p []byte, by parker) (int, error) { return t.write(p, by) }
