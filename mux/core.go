package mux

import (
	"github.com/headpond/headpond/mux/frame"
)

const (
	// batchSize is how many bytes one write takes at most, control frames aside:
	// enough to make a system call's cost negligible, little enough that a new
	// sender waits for microseconds.
	batchSize = 64 << 10
	// bulkFrame and bulkBatch are the limits for a channel that has the connection
	// to itself: no other channel waits for its frames, and each write wakes the
	// other side. They are lower where the socket does not take that much at once.
	bulkFrame = 256 << 10
	bulkBatch = 1088 << 10 // a message of 1 MiB in frames
	// copyMax is the largest payload that is copied into the batch where the
	// sender's own bytes could be written: copying 4 KiB costs less than waiting.
	copyMax = 4 << 10
	// maxAsks bounds the answers owed to a peer that does not read them, in bytes.
	maxAsks = 32 << 10
	// fastReader is a time in ns. The window of a reader that empties half of it in
	// less is doubled however short the round trip: with more data under way the
	// kernel sends more at once, which halves the cost of a small write.
	fastReader = 4e6
	// maxPending bounds, in bytes, the frames about opening and closing channels that
	// wait to be written while the socket takes nothing. Beyond it no more are opened.
	maxPending = 1 << 20
	// quantum is the number of bytes that priority 0 may send per round; each step doubles it.
	quantum = 4 << 10
)

// core is one side of a session as a state machine: calls and frames go in, frames and wake-ups
// come out. It has no goroutine, socket or clock and is not safe for concurrent use: the session's
// lock guards it.
type core struct {
	maxMessage int
	chunk      int    // largest payload of a frame sent when others want to send
	bulk       int    // and when nobody does
	maxFrame   uint32 // largest body of a frame received
	maxTheirs  int
	maxMine    int
	backlog    int
	elastic    bool   // budget was not configured
	window     uint64 // first window of a channel, received
	maxWindow  uint64
	peerWindow uint64 // first window of a channel, sent
	copyAll    bool   // never refer to senders' bytes in a batch
	now        func() int64

	channels     map[uint32]*channel
	next         uint32 // number of the next channel this side opens
	last         uint32 // highest number the other side opened
	mine, theirs int
	opens        opens
	snd          credit
	rcv          window
	windows      uint64 // sum of the channels' receive windows, at most budget
	budget       uint64
	assembly     int // bytes reserved for messages larger than their windows
	claimed      int // of these, bytes of complete messages that are not taken yet
	kept         int // bytes of further such messages, which count in windows
	reserveQueue []*channel

	// whole is the frame being handled, if it was read into its own buffer: a stream keeps that buffer, and sets this to nil.
	whole *buffer

	// The receiver that reads, if any, and its channel. Parsing stops when it has a message.
	eager    *channel
	receiver *waiter

	replay *replay // nil: the session ends with its connection

	pend    *batch     // being filled
	burst   int        // a channel that is alone gets so much of a batch
	active  *channel   // last of a ring of channels with something to send
	starved []*channel // channels that wait for the session's credit only
	dirty   *channel   // channels whose limit is raised with the next write
	grant   bool       // the session's is
	urgent  bool       // one of these cannot wait for something else to be written

	pong       bool
	pongOpaque uint64
	pinged     int64 // when the ping outstanding was sent, ns
	pings      uint64
	ponged     uint64 // the newest of these that was answered
	pongs      waiters
	rtt        int64 // ns; 0: unknown
	frames     uint64
	seen       uint64 // frames at the last tick
	asked      bool   // a ping was sent for lack of any

	accepts   [3][]*channel // by kind: opened by the other side, not yet accepted
	accepters [3]waiters

	drained  bool // this side takes no more channels
	goneAway bool // the other side takes no more
	empty    waiters
	err      error // the session is over
	counts   counters
}

// counters are totals since the session began.
type counters struct {
	bytesSent, bytesReceived          uint64 // payload
	messagesSent, messagesReceived    uint64
	opened, accepted, refused, resets uint64
}

// newCore starts a session from both sides' Hello.
func newCore(cfg Config, client bool, peer *frame.Hello, now func() int64) *core {
	c := &core{
		now: now, maxMessage: cfg.MaxMessage, maxFrame: offeredFrame(cfg),
		maxTheirs: cfg.MaxChannels, maxMine: int(peer.MaxChannels), backlog: cfg.AcceptBacklog,
		window: uint64(cfg.ChannelWindow), maxWindow: uint64(cfg.MaxChannelWindow),
		peerWindow: uint64(peer.ChannelWindow), channels: map[uint32]*channel{}, next: 2,
		snd: credit{limit: uint64(peer.SessionWindow)}, rcv: newWindow(uint64(offeredSession(cfg))), pend: &batch{},
		budget: uint64(cfg.SessionWindow), elastic: cfg.elastic, burst: bulkFrame,
	}
	if client {
		c.next = 1
	}
	// A frame costs at most half a window, so that a receiver which has read
	// everything always gives enough credit for the next one.
	half := int(min(peer.ChannelWindow, peer.SessionWindow)/2) - frame.DataCost
	c.chunk = min(cfg.MaxFrame, int(peer.MaxFrame), half) - 4 // the size goes into the first one's body
	c.bulk = max(c.chunk, min(bulkFrame, int(peer.MaxFrame)-4))
	c.opens.inUse = peer.Offered&frame.FeatureOpens != 0
	c.offerOpens()
	c.ping()
	return c
}

// offeredSession is the session's credit: twice the windows of all channels, so that it never stops
// a peer that keeps to the windows. It would stop all channels because of one, even for good:
// messages half received on many channels could use it up.
func offeredSession(cfg Config) uint32 { return uint32(2 * cfg.SessionWindow) }

// offeredFrame is the largest frame this side accepts: receiving one delays no other channel.
func offeredFrame(cfg Config) uint32 { return uint32(max(cfg.MaxFrame, bulkFrame+4)) }

// emit queues a Data frame without payload, in order.
func (c *core) emit(f frame.Data) { c.pend.out = f.Append(c.pend.out) }

// open makes a channel of this side's.
func (c *core) open(kind frame.Kind, prio frame.Priority, id ID, name string) (*channel, error) {
	if err := c.refuses(); err != nil {
		return nil, err
	}
	if err := c.full(kind); err != nil {
		return nil, err
	}
	ch := c.newChannel(c.next, kind, prio, id, name)
	ch.mine = true
	c.mine++
	c.opens.mine[kind]++
	c.next += 2
	c.counts.opened++
	f := frame.Open{Channel: ch.num, Kind: kind, Priority: prio, ID: id, Name: []byte(name)}
	c.pend.out = f.Append(c.pend.out)
	return ch, nil
}

// refuses returns why this side can open no more channels in the session, or nil.
func (c *core) refuses() error {
	switch {
	case c.err != nil:
		return c.err
	case c.drained || c.goneAway || c.exhausted():
		return ErrDraining
	}
	return nil
}

// clogged reports whether maxPending is reached, so that no more channels are opened.
func (c *core) clogged() bool { return len(c.pend.out)+len(c.pend.ctl) > maxPending }

// exhausted reports whether this side has no number left for a channel: each is used once.
func (c *core) exhausted() bool { return c.next > 1<<32-3 }

func (c *core) newChannel(num uint32, kind frame.Kind, prio frame.Priority, id ID, name string) *channel {
	ch := &channel{
		num: num, kind: kind, priority: prio, id: id, name: name,
		snd: credit{limit: c.peerWindow}, rcv: newWindow(c.window),
	}
	ch.rcv.since = c.now()
	c.windows += ch.rcv.size
	c.channels[num] = ch
	return ch
}

// accept takes the oldest channel of a kind that the other side opened.
func (c *core) accept(kind frame.Kind) *channel {
	q := c.accepts[kind]
	if len(q) == 0 {
		return nil
	}
	ch := q[0]
	q[0] = nil
	c.accepts[kind] = q[1:]
	if len(q) == 1 {
		c.accepts[kind] = nil
	}
	c.counts.accepted++
	c.offerOpens()
	if !ch.forgotten {
		c.pend.ctl = frame.Accept{Channel: ch.num}.Append(c.pend.ctl)
	}
	return ch
}

// close ends both directions: Fin, and Stop if the other side may still send.
func (c *core) close(ch *channel) {
	c.endReceive(ch, ErrClosed)
	if c.err != nil || ch.forgotten {
		return
	}
	if !ch.recvOver {
		c.pend.out = frame.Stop{Channel: ch.num}.Append(c.pend.out)
	}
	c.endSend(ch, ErrClosed)
}

// reset ends both directions at once and sends the other side the reason.
func (c *core) reset(ch *channel, code frame.Code, reason string) {
	c.counts.resets++
	if c.err == nil && !ch.forgotten {
		f := frame.Reset{Channel: ch.num, Code: code, Reason: []byte(reason)}
		c.pend.out = f.Append(c.pend.out)
	}
	err := &ResetError{Code: code, Reason: reason}
	c.endReceive(ch, err)
	c.kill(ch, err)
}

// drain informs the other side that no more channels are accepted.
func (c *core) drain() {
	if c.drained || c.err != nil {
		return
	}
	c.drained = true
	c.wakeAllOpeners()
	f := frame.GoAway{Last: c.last}
	c.pend.ctl = f.Append(c.pend.ctl)
}

// fail ends the session: everything that waits is woken with err.
func (c *core) fail(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	for _, ch := range c.channels {
		c.kill(ch, err)
	}
	for k := range c.accepts {
		for _, ch := range c.accepts[k] {
			c.dropReady(ch)
		}
		c.accepts[k] = nil
		c.accepters[k].wakeAll()
	}
	c.active, c.dirty, c.starved, c.reserveQueue = nil, nil, nil, nil
	c.empty.wakeAll()
	c.pongs.wakeAll()
	c.wakeAllOpeners()
}

// ping sends a Ping, whose answer also measures the round-trip time.
func (c *core) ping() {
	c.pings++
	c.pinged = c.now()
	c.pend.free = frame.Ping{Opaque: c.pings}.Append(c.pend.free)
}

// suspend drops pings, answers and other state of a connection that was lost.
func (c *core) suspend() {
	c.pong, c.pinged, c.asked = false, 0, false
	c.pend.free = c.pend.free[:0]
	c.replay.due = false
	c.pongs.wakeAll()
}

// tick is called when a keep-alive period ends. It reports whether the other
// side is dead, and whether a ping was sent and the timeout begins.
func (c *core) tick() (dead, asking bool) {
	if c.frames != c.seen {
		c.seen, c.asked = c.frames, false
		return false, false
	}
	if c.asked {
		return true, false
	}
	c.asked = true
	c.ping()
	return false, true
}
