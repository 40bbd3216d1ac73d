package mux

// batch is the content of one write: frames without a number, control frames,
// then Data frames in order. segs lists payloads that are not copied.
type batch struct {
	free []byte    // frames that are never sent again: Ping, Pong
	ctl  []byte    // frames that go first
	out  []byte    // frames that keep their order
	segs []segment // payloads that belong to waiting senders
	ops  []*sendOp // those senders
	size int       // bytes in all
	asks int       // bytes in ctl that answer the other side's frames
}

// segment is a payload that goes out before out[at:].
type segment struct {
	at   int
	data []byte
}

func (b *batch) empty() bool { return len(b.free)+len(b.ctl)+len(b.out) == 0 }

// reset empties the batch, except free.
func (b *batch) reset() {
	clear(b.segs)
	clear(b.ops)
	b.ctl, b.out, b.segs, b.ops, b.size, b.asks = b.ctl[:0], b.out[:0], b.segs[:0], b.ops[:0], 0, 0
	if cap(b.out) > 4*batchSize { // a burst of Open frames; do not keep it
		b.out = nil
	}
}

// pieces appends the batch's bytes from offset skip on to dst, in sending order.
func (b *batch) pieces(dst [][]byte, skip int) [][]byte {
	if skip == 0 && len(b.free)+len(b.ctl)+len(b.segs) == 0 { // a small message
		return append(dst, b.out)
	}
	add := func(p []byte) {
		if n := min(skip, len(p)); n > 0 {
			p, skip = p[n:], skip-n
		}
		if len(p) > 0 {
			dst = append(dst, p)
		}
	}
	add(b.free)
	add(b.ctl)
	at := 0
	for _, s := range b.segs {
		add(b.out[at:s.at])
		add(s.data)
		at = s.at
	}
	add(b.out[at:])
	return dst
}

// sendOp is a waiting sender: for credit, for the scheduler, or until its payload is written.
type sendOp struct {
	ch     *channel
	data   []byte
	off    int   // data[:off] is in frames
	pinned bool  // the batch being written refers to data
	done   bool  // finished, with err
	err    error // nil: sent
	next   *sendOp
	wait   waiter
}

// finish ends the operation and wakes its sender, unless a write still uses its data.
func (o *sendOp) finish(err error) {
	if o.done {
		return
	}
	if o.err == nil {
		o.err = err
	}
	if o.pinned {
		return // unpin finishes it
	}
	o.done = true
	o.wait.wake()
}

// waiter is one goroutine that waits for something under the session's lock.
type waiter struct {
	ready chan struct{} // capacity 1
	next  *waiter
	at    *link  // not nil: it waits by reading from this link
	by    parker // not nil: it waits by Park, and not by ready

	// For a receiver that reads the connection itself and has its own memory for a message.
	into   []byte
	n      int
	filled bool    // into has one of n bytes
	own    *buffer // into as a buffer, while a large message is put together there
}

// lend returns the receiver's own memory as an empty buffer. Only the receiver
// reads into it, and only until it returns: see core.recall.
func (w *waiter) lend() *buffer {
	if w.own == nil {
		w.own = &buffer{class: -1}
	}
	w.own.data, w.own.owner = w.into[:0:len(w.into)], w
	w.own.refs.Store(1)
	return w.own
}

// takes reports whether a message of n bytes can go into the receiver's own buffer.
func (w *waiter) takes(n int) bool { return w.into != nil && !w.filled && n <= len(w.into) }

func newWaiter() waiter { return waiter{ready: make(chan struct{}, 1)} }

func (w *waiter) wake() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
	if w.at != nil {
		w.at.conn.SetReadDeadline(longAgo)
	}
	if w.by != nil {
		w.by.Unpark()
	}
}

// reads sets the link that w waits on by reading, nil for none. A nil w is allowed.
func (w *waiter) reads(l *link) {
	if w != nil {
		w.at = l
	}
}

// waiters is a queue of them.
type waiters struct {
	head *waiter
}

func (l *waiters) add(w *waiter) {
	p := &l.head
	for *p != nil {
		p = &(*p).next
	}
	*p, w.next = w, nil
}

func (l *waiters) remove(w *waiter) {
	for p := &l.head; *p != nil; p = &(*p).next {
		if *p == w {
			*p, w.next = w.next, nil
			return
		}
	}
}

// wakeOne wakes the first waiter, which removes itself from the queue.
func (l *waiters) wakeOne() {
	if l.head != nil {
		l.head.wake()
	}
}

func (l *waiters) wakeAll() {
	for w := l.head; w != nil; w = w.next {
		w.wake()
	}
}
