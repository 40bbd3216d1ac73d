//go:build linux && (amd64 || arm64)

package fiber

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// uring is the poller on io_uring. A tick of the loop is one system call: it submits every operation that the tick's
// fibers requested, and waits for the next completions. Idle connections hold no buffer: a receive takes one of the
// ring's buffers when data arrives. Writes are gathered in the loop's buffers and sent at the end of the tick.
type uring struct {
	loop       *loop
	ring       *ring
	event      int // eventfd that ends a wait
	recv       *recvBuffers
	send       sendBuffers
	dirty      []*Conn        // connections with data to send, and no send under way
	skips      bool           // sends can be unreported, see sendGathered
	unreported []*Conn        // connections with an unreported send
	ahead      []*aheadBuffer // spare buffers for received data that is not read yet
	lent       []*Conn        // connections that got a receive buffer in the last wait
	queue      []*Conn        // connections whose receive found no buffer, in order; those no longer starved are skipped
	unchecked  []*Conn        // connections that have received since checkForResets last ran
	checkedAt  int64          // when checkForResets last ran
	polls      []unix.PollFd  // for checkForResets
	raw        rawWaits
}

// maxAhead bounds the data that is received and not read, in bytes. Beyond it the receive is stopped, so that the
// sender waits.
const maxAhead = 64 << 10

// Kinds of operation; part of the user data, with slot and generation.
const (
	kindRecv = iota
	kindSend
	kindPollIn
	kindPollOut
	kindAccept
	kindCancel
	kindWake
)

// ringEntries bounds the operations submitted by one system call.
const ringEntries = 1024

func newUring(l *loop) (*uring, error) {
	p := &uring{loop: l, event: -1, raw: newRawWaits()}
	var err error
	if p.ring, err = newRing(ringEntries, 8*ringEntries); err != nil {
		return nil, err
	}
	if p.recv, err = newRecvBuffers(p.ring); err != nil {
		p.free()
		return nil, err
	}
	if p.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		p.free()
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	p.watchEvent()
	if err := p.try(); err != nil {
		p.free()
		return nil, err
	}
	p.skips = p.trySkipping() == nil
	return p, nil
}

// try runs a multishot receive into a provided buffer on a non-blocking socket, so that a kernel that lacks one of
// these is detected at the start.
func (p *uring) try() error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	s := p.prepareRecv(fds[0], userData(kindCancel, 0, 0))
	s.ioprio = recvMultishot
	p.ring.enter(false, false, 0)
	if _, err := unix.Write(fds[1], []byte("x")); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	p.ring.enter(true, false, int64(time.Second))
	for i, end := p.ring.completions(); ; i++ {
		if i == end {
			return errors.New("io_uring: a receive does not complete")
		}
		switch c := p.ring.at(i); {
		case c.userData&0xff != kindCancel:
		case c.res < 0:
			return fmt.Errorf("io_uring: receive: %w", syscall.Errno(-c.res))
		case c.flags&cqeBuffer == 0 || c.flags&cqeMore == 0:
			return errors.New("io_uring: a receive used no provided buffer, or is not multishot")
		default:
			id := uint16(c.flags >> 16)
			p.recv.take(id, int(c.res))
			p.recv.put(id)
			p.ring.taken(end)
			return nil
		}
	}
}

func userData(kind, slot, generation uint32) uint64 {
	return uint64(slot)<<32 | uint64(generation)<<8 | uint64(kind)
}

func (p *uring) dataOf(c *Conn, kind uint32) uint64 {
	return userData(kind, c.slot, p.loop.table.generation(c.slot))
}

func (p *uring) add(c *Conn) error {
	c.bulk, c.smallRun = true, bulkEndsAfter-1 // the first receive decides
	return nil
}

func (p *uring) remove(c *Conn) bool {
	if c.flight > 0 || c.out != nil {
		return false
	}
	p.reclaim(c) // unread data moves with c
	for _, list := range []*[]*Conn{&p.dirty, &p.unreported, &p.lent, &p.queue, &p.unchecked} {
		*list = slices.DeleteFunc(*list, func(o *Conn) bool { return o == c })
	}
	c.isDirty, c.isUnchecked = false, false
	return true
}

func (p *uring) read(c *Conn, b []byte) (int, error, bool) {
	if !p.readable(c) {
		return 0, nil, false
	}
	if len(c.in) == 0 {
		if errno := c.inErr; errno != 0 {
			c.inErr, c.eof = 0, true
			return 0, errno, true
		}
		return 0, nil, true
	}
	n := copy(b, c.in)
	p.consume(c, n)
	return n, nil, true
}

// consume drops n received bytes.
func (p *uring) consume(c *Conn, n int) {
	if c.in = c.in[n:]; len(c.in) == 0 {
		p.dropIn(c)
	}
}

// dropIn drops unread data and gives its buffer back.
func (p *uring) dropIn(c *Conn) {
	if c.hasIn {
		p.recv.put(c.inID)
	}
	if c.own != nil {
		if len(p.ahead) < maxSpareAhead {
			p.ahead = append(p.ahead, c.own)
		}
		if poisonFreed.Load() {
			fill(c.own[:])
		}
	}
	c.in, c.hasIn, c.own = nil, false, nil
}

func (p *uring) readable(c *Conn) bool {
	if c.received() {
		return true
	}
	if !c.armed {
		p.arm(c)
	}
	return false
}

// arm starts a receive.
func (p *uring) arm(c *Conn) {
	s := p.prepareRecv(c.fd, p.dataOf(c, kindRecv))
	if !c.bulk && !c.unix { // on a Unix socket a multishot receive may miss the end (Linux 6.18)
		s.ioprio |= recvMultishot
	}
	if !c.more { // the socket is not known to have data
		s.ioprio |= recvPollFirst
	}
	c.armed, c.starved = true, false
	c.flight++
}

// retryStarved restarts receives that found no buffer, in each tick at most as many as there are buffers: trying all of
// them each time would cost the square of their number. It reports whether some are left.
func (p *uring) retryStarved() bool {
	n := min(len(p.queue), recvCount)
	for _, c := range p.queue[:n] {
		if c.starved && !c.closed {
			p.arm(c)
		}
	}
	p.queue = slices.Delete(p.queue, 0, n)
	return len(p.queue) > 0
}

func (p *uring) prepareRecv(fd int, data uint64) *sqe {
	s := p.ring.next()
	s.opcode, s.flags, s.fd, s.userData = opRecv, sqeBufferSelect, int32(fd), data
	return s
}

// stop ends a multishot receive; true = none is under way. Otherwise it wakes the reading side when the receive has
// ended.
func (p *uring) stop(c *Conn) bool {
	c.starved = false
	if c.armed && !c.stopped {
		c.stopped = true
		p.cancel(c, kindRecv)
	}
	return !c.armed
}

// quiet makes no system call while a receive is under way, as on every connection that was read from: the loop knows at
// the end of the tick what has arrived.
func (p *uring) quiet(c *Conn) bool {
	if c.received() {
		return false
	}
	if c.armed {
		return true
	}
	if !nothingToRead(c.fd) {
		return false
	}
	p.arm(c)
	return true
}

// ended makes system calls only if no receive is under way, whose completion would report the end.
func (p *uring) ended(c *Conn) bool {
	return len(c.in) == 0 && (c.eof || c.inErr != 0 || c.broken || !c.armed && atEnd(c.fd))
}

func (p *uring) write(c *Conn, b []byte) (int, error, bool) {
	if c.outErr != 0 {
		return 0, c.outErr, true
	}
	if c.fin {
		return 0, unix.EPIPE, true
	}
	if c.out != nil && c.out.n == len(c.out.mem) {
		if c.sending != nil {
			return 0, nil, false // woken when that buffer is sent
		}
		p.flush(c)
	}
	if c.out == nil {
		if c.out = p.send.get(len(b)); c.out == nil {
			return 0, unix.ENOMEM, true
		}
	}
	n := copy(c.out.mem[c.out.n:], b)
	c.out.n += n
	p.mark(c)
	return n, nil, true
}

func (p *uring) mark(c *Conn) {
	if !c.isDirty && c.sending == nil {
		c.isDirty = true
		p.dirty = append(p.dirty, c)
	}
}

// flush hands gathered data to the kernel. No send of c may be under way.
func (p *uring) flush(c *Conn) *sqe {
	c.sending, c.out = c.out, nil
	return p.transmit(c)
}

// transmit makes the kernel send as much as the socket has room for. The send must not wait for room: the kernel's
// internal poll ends at once when the peer has sent its end or urgent data, and after a few of those the kernel uses a
// thread for each such send.
func (p *uring) transmit(c *Conn) *sqe {
	c.flight++
	return p.prepareSend(c.fd, c.sending.mem[:c.sending.n], p.dataOf(c, kindSend))
}

// prepareSend prepares a send of b, which is not empty and is mapped memory.
func (p *uring) prepareSend(fd int, b []byte, data uint64) *sqe {
	s := p.ring.next()
	s.opcode, s.fd, s.userData = opSend, int32(fd), data
	s.addr, s.len = uint64(uintptr(unsafe.Pointer(&b[0]))), uint32(len(b))
	s.opFlags = unix.MSG_NOSIGNAL | unix.MSG_DONTWAIT
	return s
}

// pollOut makes polledOut run when there is room.
func (p *uring) pollOut(c *Conn) {
	if !c.pollingOut {
		p.poll(c, kindPollOut, unix.POLLOUT)
		c.pollingOut = true
	}
}

// poll wakes a side when the socket is ready.
func (p *uring) poll(c *Conn, kind, events uint32) *sqe {
	s := p.ring.next()
	s.opcode, s.fd, s.opFlags, s.userData = opPollAdd, int32(c.fd), events, p.dataOf(c, kind)
	c.flight++
	return s
}

func (p *uring) close(c *Conn) {
	if c.out != nil && (c.abort || c.outErr != 0) {
		p.send.put(c.out)
		c.out = nil
	}
	p.dropIn(c)
	p.stop(c)
	if c.polling {
		p.cancel(c, kindPollIn)
	}
	if c.pollingOut {
		p.cancel(c, kindPollOut)
	}
	if !c.abort && (c.out != nil || c.sending != nil) {
		c.linger(p.loop)
	}
	p.closeIdle(c)
}

// closeIdle closes the descriptor of a closed connection when the kernel has no operation on it.
func (p *uring) closeIdle(c *Conn) {
	if c.flight > 0 || c.out != nil {
		return
	}
	c.free(p.loop)
}

// cancel asks the kernel to end an operation, which then completes.
func (p *uring) cancel(c *Conn, kind uint32) {
	s := p.ring.next()
	s.opcode, s.fd, s.addr, s.userData = opAsyncCancel, -1, p.dataOf(c, kind), userData(kindCancel, 0, 0)
}

// watch polls the listener, instead of letting the kernel accept ahead of Accept: connections accepted ahead would be
// lost when the listener closes, and a new listener on the same socket would not be woken for them.
func (p *uring) watch(a *Listener) error {
	if a.armed {
		return nil
	}
	s := p.ring.next()
	s.opcode, s.fd, s.len, s.opFlags = opPollAdd, int32(a.fd), pollMultishot, unix.POLLIN
	s.userData = userData(kindAccept, a.slot, p.loop.table.generation(a.slot))
	a.armed = true
	return nil
}

func (p *uring) unwatch(a *Listener) {
	if a.armed {
		s := p.ring.next()
		s.opcode, s.fd, s.addr = opAsyncCancel, -1, userData(kindAccept, a.slot, p.loop.table.generation(a.slot))
		s.userData = userData(kindCancel, 0, 0)
		return // acceptable calls unwatch again when the poll has ended
	}
	a.free(p.loop)
}

func (p *uring) watchEvent() {
	s := p.ring.next()
	s.opcode, s.fd, s.len, s.opFlags = opPollAdd, int32(p.event), pollMultishot, unix.POLLIN
	s.userData = userData(kindWake, wakeSlot, 0)
}

// resetCheckInterval is how often a busy loop checks for resets that have arrived together with data, and
// idleResetCheck when a loop that goes idle checks once more: with a few events a second it would otherwise wake up for
// a check after nearly each event.
const (
	resetCheckInterval = 10 * time.Millisecond
	idleResetCheck     = 100 * time.Millisecond
)

// scheduleCheck checks for resets if it is time to, and otherwise bounds the wait.
func (p *uring) scheduleCheck(until int64) int64 {
	now := p.loop.now
	if now >= p.checkedAt+int64(resetCheckInterval) {
		p.checkedAt = now
		p.checkForResets()
		return until
	}
	if limit := p.checkedAt + int64(idleResetCheck); until == 0 || until > limit {
		return limit
	}
	return until
}

// checkForResets polls the connections that have received something since the last check, all with one system call. If
// data and a reset arrive together, the kernel (Linux 6.18) wakes a multishot receive once, and does not check again
// after the data: such a reset would never be reported.
func (p *uring) checkForResets() {
	p.polls = p.polls[:0]
	waiting := p.unchecked[:0]
	for _, c := range p.unchecked {
		c.isUnchecked = false
		if !c.closed && c.armed && !c.stopped {
			p.polls = append(p.polls, unix.PollFd{Fd: int32(c.fd)}) // errors are reported even without requested events
			waiting = append(waiting, c)
		}
	}
	if len(waiting) > 0 {
		pollNow(p.polls)
	}
	for i, c := range waiting {
		if p.polls[i].Revents != 0 {
			c.broken, c.more, c.bulk = true, true, true // so that the next receive tries at once
			p.stop(c)
		}
	}
	clear(p.unchecked)
	p.unchecked = p.unchecked[:0]
}

// reclaimUnread takes back the receive buffers of connections that have not been read in the tick, and copies their
// data, so that connections that nobody reads cannot exhaust the loop's buffers.
func (p *uring) reclaimUnread() {
	for i, c := range p.lent {
		p.lent[i] = nil
		p.reclaim(c)
	}
	p.lent = p.lent[:0]
}

// wait submits operations and waits for completions; see readiness.wait about raw.
func (p *uring) wait(until int64) (idle bool) {
	p.reclaimUnread()
	p.recv.publish() // the kernel takes buffers within enter only (setupDeferTaskrun)
	if len(p.queue) > 0 && p.retryStarved() {
		until = -1
	}
	if len(p.unchecked) > 0 {
		until = p.scheduleCheck(until)
	}
	if len(p.unreported) > 0 { // of an enter that was incomplete
		until = -1
	}
	p.sendGathered()
	wait, left := until >= 0, int64(0)
	if until > 0 {
		left = max(until-nanotime(), 1)
	}
	p.ring.enter(wait, p.loop.isBusy() && p.raw.allowed(), left)
	complete := p.ring.allReported()
	from, to := p.ring.completions()
	for i := from; i != to; i++ {
		p.complete(p.ring.at(i))
	}
	p.ring.taken(to)
	p.noteSent(complete)
	return wait && from == to
}

func (p *uring) complete(e cqe) {
	kind, slot, generation := uint32(e.userData&0xff), uint32(e.userData>>32), uint32(e.userData>>8)&maxGeneration
	switch owner := p.loop.table.get(slot, generation).(type) {
	case *Conn:
		p.completeConn(owner, kind, e)
	case *Listener:
		p.acceptable(owner, e)
	case *loop:
		if kind == kindWake {
			var b [8]byte
			_, _ = rawRead(p.event, b[:])
			if e.flags&cqeMore == 0 {
				p.watchEvent()
			}
		}
	}
}

func (p *uring) completeConn(c *Conn, kind uint32, e cqe) {
	switch kind {
	case kindRecv:
		p.received(c, e)
	case kindSend:
		c.flight--
		p.sent(c, e)
	case kindPollOut:
		p.polledOut(c, e)
	case kindPollIn:
		c.flight--
		c.polling = false
		c.wakeReader(p.loop)
	}
	if c.closed {
		p.closeIdle(c)
	}
}

// received handles the completion of a receive.
func (p *uring) received(c *Conn, e cqe) {
	stopped := c.stopped
	if e.flags&cqeMore == 0 {
		c.armed, c.stopped = false, false
		c.flight--
	}
	if e.flags&cqeBuffer != 0 {
		p.receivedData(c, uint16(e.flags>>16), int(max(e.res, 0)))
	}
	if e.res > 0 {
		c.more = e.flags&cqeNonEmpty != 0
	}
	switch errno := syscall.Errno(max(-e.res, 0)); {
	case c.closed:
		return
	case e.res > 0:
		if !c.isUnchecked {
			c.isUnchecked = true
			p.unchecked = append(p.unchecked, c)
		}
		c.noteReceive(int(e.res))
		if len(c.in) > maxAhead || c.bulk && e.flags&cqeMore != 0 {
			p.stop(c)
		}
	case e.res == 0 && c.sendBroke():
		c.inErr = c.outErr
	case e.res == 0:
		c.eof = true
	case errno == unix.ENOBUFS && !stopped && c.waits(&c.rd): // buffers are returned before the next tick
		c.starved, c.more = true, true
		p.queue = append(p.queue, c)
		return
	case errno == unix.ECANCELED || errno == unix.ENOBUFS || errno == unix.EINTR || errno == unix.EAGAIN: // readable retries
	default:
		c.inErr = errno
	}
	c.wakeReader(p.loop)
}

// bulkEndsAfter is how many small receives in a row end the bulk mode of a connection.
const bulkEndsAfter = 8

// noteReceive decides after a receive of n bytes whether the connection carries bulk. If so, single receives leave
// unread data in the socket; a multishot receive would take up to half a megabyte more.
func (c *Conn) noteReceive(n int) {
	switch {
	case n == recvSize && c.more:
		c.bulk, c.smallRun = true, 0
	case n == recvSize || c.more || !c.bulk:
		c.smallRun = 0
	default:
		if c.smallRun++; c.smallRun >= bulkEndsAfter {
			c.bulk, c.smallRun = false, 0
		}
	}
}

// receivedData stores n bytes of a buffer for the next Read: in that buffer until the end of the tick, or appended to
// unread data.
func (p *uring) receivedData(c *Conn, id uint16, n int) {
	data := p.recv.take(id, n)
	switch {
	case n == 0 || c.closed:
	case len(c.in) == 0:
		c.in, c.inID, c.hasIn = data, id, true
		p.lent = append(p.lent, c)
		return
	default:
		p.reclaim(c)
		n := len(c.in) + len(data)
		if cap(c.in) < n && c.own == nil && n > littleAhead {
			c.own = p.takeAhead()
		}
		if cap(c.in) < n && c.own != nil && n <= aheadSize { // there is room, at least after a move to the front
			c.in = c.own[:copy(c.own[:], c.in)]
		}
		c.in = append(c.in, data...)
	}
	p.recv.put(id)
}

// reclaim moves unread data from the ring's buffer to one of the poller's, or to a slice of its exact size.
func (p *uring) reclaim(c *Conn) {
	if !c.hasIn {
		return
	}
	if len(p.ahead) > 0 || len(c.in) > littleAhead {
		c.own = p.takeAhead()
		c.in = c.own[:copy(c.own[:], c.in)]
	} else {
		c.in = bytes.Clone(c.in)
	}
	c.hasIn = false
	p.recv.put(c.inID)
}

// takeAhead returns a spare buffer of the poller, or a new one.
func (p *uring) takeAhead() (own *aheadBuffer) {
	n := len(p.ahead)
	if n == 0 {
		return new(aheadBuffer)
	}
	own, p.ahead[n-1] = p.ahead[n-1], nil
	p.ahead = p.ahead[:n-1]
	return own
}

func (p *uring) sent(c *Conn, e cqe) {
	s := c.sending
	s.unreported = false
	c.sentSome = c.sentSome || e.res > 0
	switch errno := syscall.Errno(max(-e.res, 0)); {
	case int(e.res) >= s.n:
	case c.closed && c.abort:
		c.outErr = unix.ECANCELED
	case errno != 0 && errno != unix.EAGAIN:
		c.outErr = errno
	default: // no room for the remaining bytes now
		s.n = copy(s.mem, s.mem[max(e.res, 0):s.n])
		c.full = true
		p.pollOut(c)
		return
	}
	c.sending = nil
	p.send.put(s)
	switch {
	case c.out == nil:
	case c.outErr != 0 || c.closed && c.abort:
		p.send.put(c.out)
		c.out = nil
	default:
		p.flush(c)
	}
	if c.fin && !c.finSent && c.sending == nil && c.outErr == 0 {
		_ = c.finish()
	}
	c.wakeWriter(p.loop)
}

func (p *uring) acceptable(a *Listener, e cqe) {
	a.armed = e.flags&cqeMore != 0
	if a.closed && !a.armed {
		p.unwatch(a)
		return
	}
	a.woken(p.loop)
}

func (p *uring) wake() { wakeEvent(p.event) }

func (p *uring) unsent() int { return p.send.bytes }

// trim keeps the buffers mapped, because the kernel may use them at any time. Between ticks the receive buffers are
// empty: completions are posted only while the loop waits (setupDeferTaskrun) and are handled then, unless a full ring
// was submitted meanwhile, or the kernel keeps completions that had no room.
func (p *uring) trim() {
	clear(p.ahead)
	p.ahead = p.ahead[:0]
	if p.recv.taken == 0 && p.ring.empty() && !p.ring.hasOverflow() {
		_ = unix.Madvise(p.recv.mem, unix.MADV_DONTNEED)
	}
	p.send.trim()
}

func (p *uring) free() {
	if p.ring != nil {
		p.ring.free()
	}
	if p.recv != nil {
		p.recv.free()
	}
	p.send.free()
	if p.event >= 0 {
		_ = unix.Close(p.event)
	}
}
