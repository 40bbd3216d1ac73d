package fiber

import (
	"errors"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Conn is a connection of a loop: a net.Conn over a TCP or Unix stream socket. Every method may be called from
// anywhere; off its own loop a call costs a trip to the loop. An idle Conn holds no buffer.
//
// Write accepts data that is sent at the end of the loop's tick together with all other data, so a later call returns
// an error about it, as for bytes in the socket's buffer. Close sends unsent data first, as long as the peer accepts
// some of it in each [closeTime]; otherwise it resets the connection.
type Conn struct {
	loop atomic.Pointer[loop]
	fd   int
	rare atomic.Pointer[rareConn] // nil = not needed yet

	// Everything below belongs to the loop's thread, except shut, and peer and unix, which are immutable. There may be very
	// many connections, most of them idle, so the order of fields leaves no gaps.
	rd, wr side
	then   func()      // function of OnReadable, run as a fiber once there is something to read
	slot   uint32      // in the poller's table, or moving
	timer  int32       // index in the loop's timers, from 1; 0 = not armed
	shut   atomic.Bool // Close was called, or the connection is closed; any thread may read it
	peer   peer4
	streak uint8 // operations without a pause; see maxStreak
	unix   bool  // a Unix socket
	closed bool
	abort  bool // Close resets
	// reading and writing say that a Read or a Write is under way.
	reading, writing bool
	connReadiness
	connState
	connBuffers
}

// connBuffers holds received data that is not read, and written data that is not sent. The poller moves bytes into and
// out of it.
type connBuffers struct {
	in    []byte        // received and not read yet
	own   *aheadBuffer  // the poller's buffer that contains in; nil = none
	inErr syscall.Errno // the error that ended the input, reported once

	out     *sendBuffer   // buffer being filled
	sending *sendBuffer   // buffer that the kernel sends, on io_uring
	outErr  syscall.Errno // error of a send
}

// connState is the poller's part of a connection, a separate struct so that there are no gaps. All pollers use the
// fields up to sentSome; the others are io_uring's.
//
// On io_uring the first receive is a single one. After a small message, receives are multishot: a request costs no
// receive operation, and arriving data on an idle connection is reported. If data comes in bulk, or faster than it is
// read, single receives leave it in the socket.
type connState struct {
	inID uint16 // io_uring's; here because of its size

	isDirty  bool // data is gathered for the end of the tick
	fin      bool // shut down for writing when all is sent
	sentSome bool // the socket has accepted something since MarkSent

	eof         bool // the end was received
	finSent     bool
	full        bool  // sending waits for room
	hasIn       bool  // in is in a buffer of the ring with the number inID
	armed       bool  // a receive is under way
	stopped     bool  // that receive is being cancelled
	starved     bool  // the receive found no buffer, and must be tried again
	broken      bool  // there is an error after the received data
	bulk        bool  // receive once at a time
	smallRun    uint8 // small receives in a row that emptied the socket
	more        bool  // the last receive did not empty the socket
	isUnchecked bool  // see uring.unchecked
	polling     bool  // a poll for data to splice is under way
	pollingOut  bool  // a poll for room, or for the end of a connect, is under way
	flight      uint8 // operations in the kernel's hands
}

// connReadiness is a readiness poller's part of a connection.
type connReadiness struct {
	canRead  bool // the socket is not known to be empty
	unsure   bool // canRead, but not checked since the last read
	canWrite bool // the socket is not known to be full
	hup      bool // the end follows the data, or data follows urgent data: neither is a new edge
}

// side is one direction of a connection.
type side struct {
	waiter   *coroutine // parked until there is something to do
	deadline int64      // in the loop's clock; 0 = none
}

// rareConn holds state that most connections do not need; it is allocated on first use.
type rareConn struct {
	local, remote atomic.Pointer[net.Addr]

	rd, wr []*coroutine // fibers that wait for other Reads and Writes to end; they belong to the loop

	moves atomic.Uint64 // deadlines set by threads other than the loop's; see overtaken
	moved [2]uint64     // the latest call that has set the deadline of Reads, and of Writes; they belong to the loop
}

// rareState returns c's rareConn, and allocates it if necessary. Any thread may call it.
func (c *Conn) rareState() *rareConn {
	if c.rare.Load() == nil {
		c.rare.CompareAndSwap(nil, new(rareConn))
	}
	return c.rare.Load()
}

// queue returns the fibers that wait for the use of a side of c.
func (r *rareConn) queue(c *Conn, s *side) *[]*coroutine {
	if s == &c.rd {
		return &r.rd
	}
	return &r.wr
}

// busy returns the flag that says that an operation on a side of c is under way.
func (c *Conn) busy(s *side) *bool {
	if s == &c.rd {
		return &c.reading
	}
	return &c.writing
}

// maxStreak bounds the operations that a fiber does without a pause for other fibers.
const maxStreak = 64

var _ Stream = (*Conn)(nil)

// newConn makes a connection from an open descriptor in non-blocking mode and gives it to l. Any thread may call it.
func newConn(l *loop, fd int, isUnix bool, from peer) *Conn {
	c := &Conn{fd: fd, unix: isUnix, peer: from.ip4}
	if from.other != nil {
		other := from.other // a copy, or from would always be on the heap
		c.rareState().remote.Store(&other)
	}
	c.loop.Store(l)
	l.conns.Add(1)
	if l.isCaller() {
		c.attach(l)
	} else if !l.post(func() { c.attach(l) }) {
		c.setClosed()
		l.conns.Add(-1)
		closeSocket(fd)
	}
	return c
}

// attach makes l serve the connection. It runs on l's thread. If the loop is closing, attach closes the connection.
func (c *Conn) attach(l *loop) {
	if !l.closing {
		c.slot = l.table.put(c)
		err := l.poller.add(c)
		if err == nil {
			l.open++
			return
		}
		l.table.drop(c.slot)
		l.logger().Error("connection closed", "error", err)
	}
	c.setClosed()
	l.conns.Add(-1)
	closeSocket(c.fd)
}

func (c *Conn) setClosed() {
	c.closed = true
	c.shut.Store(true)
}

// Read implements net.Conn. p is not kept after it returns.
func (c *Conn) Read(p []byte) (n int, err error) {
	if l := c.loop.Load(); l.isCaller() {
		n, err = c.read(l, p)
	} else {
		n, err = c.readOffLoop(l, p)
	}
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// readOffLoop is Read off the loop. Operations of such callers are functions of their own, because the captures of
// their closures are allocated.
func (c *Conn) readOffLoop(l *loop, p []byte) (n int, err error) {
	c.onItsLoop(l, func(l *loop) { n, err = c.read(l, p) }, &err)
	return n, err
}

// Write implements net.Conn. p is not kept after it returns.
func (c *Conn) Write(p []byte) (n int, err error) {
	if l := c.loop.Load(); l.isCaller() {
		n, err = c.write(l, p)
	} else {
		n, err = c.writeOffLoop(l, p)
	}
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) writeOffLoop(l *loop, p []byte) (n int, err error) {
	c.onItsLoop(l, func(l *loop) { n, err = c.write(l, p) }, &err)
	return n, err
}

// WaitReadable returns when a Read would not wait, so that a reader holds no buffer while it waits. Like Read it
// returns an error after the deadline or Close.
func (c *Conn) WaitReadable() (err error) {
	if l := c.loop.Load(); l.isCaller() {
		err = c.waitReadable(l)
	} else {
		err = c.waitOffLoop(l)
	}
	if err != nil {
		err = c.opError("read", err)
	}
	return err
}

func (c *Conn) waitOffLoop(l *loop) (err error) {
	c.onItsLoop(l, func(l *loop) { err = c.waitReadable(l) }, &err)
	return err
}

// WaitReadableFor is WaitReadable for at least the time patience; ready is false when that time has passed. As long as
// data arrives in time, the bound costs nothing. Off the connection's loop there is no bound.
func (c *Conn) WaitReadableFor(patience time.Duration) (ready bool, err error) {
	l := c.loop.Load()
	if !l.isCaller() {
		return true, c.WaitReadable()
	}
	if err := c.begin(l, &c.rd); err != nil {
		return false, c.opError("read", err)
	}
	f := l.current
	f.giveUpAt = after(l.now, patience)
	for err == nil { // after an error the descriptor may belong to another connection
		if ready = l.poller.readable(c); ready || l.now >= f.giveUpAt {
			break
		}
		l.timers.arm(c, f.giveUpAt)
		err = c.wait(l, &c.rd)
	}
	f.giveUpAt = 0
	c.end(l, &c.rd)
	return ready, c.opError("read", err)
}

// Suspend implements Stream. It returns false, because nothing would start the user's fiber again.
func (*Conn) Suspend() bool { return false }

// OnReadable runs fn as a fiber of the connection's loop, once, as soon as a Read would not wait, also because of the
// deadline or Close. Unlike a fiber in WaitReadable it needs no stack meanwhile, and the stack is most of the cost of a
// connection that is idle for long. It is for the connection's one user, on its loop and with no Read under way;
// elsewhere it does nothing and returns false. nil cancels the previous fn, unless it has been started.
func (c *Conn) OnReadable(fn func()) bool {
	l := c.loop.Load()
	switch {
	case !l.isCaller() || c.reading || fn != nil && c.then != nil:
		return false
	case fn == nil:
		c.then = nil
		return true
	}
	deadline := c.rd.deadline
	if c.closed || deadline != 0 && l.now >= deadline || l.poller.readable(c) {
		l.spawn(fn)
		return true
	}
	switch {
	case deadline != 0:
		l.timers.arm(c, deadline)
	case !c.waits(&c.wr):
		l.timers.disarm(c) // the wait may be long
	}
	c.streak = 0
	c.then = fn
	return true
}

// onItsLoop runs op on the connection's loop for a caller that is not on it. If the connection moves
// to another loop meanwhile, op runs there.
func (c *Conn) onItsLoop(l *loop, op func(*loop), err *error) {
	for {
		moved := false
		ran := l.call(func() {
			if now := c.loop.Load(); now != l {
				l, moved = now, true
				return
			}
			op(l)
		})
		if !ran {
			*err = net.ErrClosed
		}
		if !moved {
			return
		}
	}
}

func (c *Conn) read(l *loop, p []byte) (int, error) {
	if err := c.begin(l, &c.rd); err != nil {
		return 0, err
	}
	defer c.end(l, &c.rd)
	if len(p) == 0 {
		return 0, nil
	}
	for {
		n, err, done := l.poller.read(c, p)
		if done {
			if n == 0 && err == nil {
				err = io.EOF
			}
			_ = c.pause(l) // the data was read; the next Read returns the error
			return n, err
		}
		if err := c.wait(l, &c.rd); err != nil {
			return 0, err
		}
	}
}

func (c *Conn) waitReadable(l *loop) error {
	if err := c.begin(l, &c.rd); err != nil {
		return err
	}
	defer c.end(l, &c.rd)
	for !l.poller.readable(c) {
		if err := c.wait(l, &c.rd); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) write(l *loop, p []byte) (total int, err error) {
	if err := c.begin(l, &c.wr); err != nil {
		return 0, err
	}
	defer c.end(l, &c.wr)
	for len(p) > 0 {
		n, err, done := l.poller.write(c, p)
		total += n
		p = p[n:]
		if err != nil {
			return total, err
		}
		if !done {
			err = c.wait(l, &c.wr)
		} else {
			err = c.pause(l)
		}
		if err != nil && len(p) > 0 {
			return total, err
		}
	}
	return total, nil
}

// begin waits until no other operation uses the side, and reserves the side. It fails if c is closed or the deadline
// has passed. The loop's clock is as old as its tick: a deadline that has not passed by that clock is in time.
func (c *Conn) begin(l *loop, s *side) error {
	if busy := c.busy(s); *busy {
		q := c.rareState().queue(c, s)
		*q = append(*q, l.current)
		l.current.park() // until end hands the side over
	} else {
		*busy = true
	}
	var err error
	switch {
	case c.closed:
		err = net.ErrClosed
	case c.late(l, s):
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		c.end(l, s)
	}
	return err
}

// late reports whether the side's deadline has passed. Data received in the tick in which the deadline is found to have
// passed may have arrived in time, if the loop was held or got no processor, so it can still be read in that tick. A
// deadline from before the last tick, such as one set to interrupt an operation, takes effect at once.
func (c *Conn) late(l *loop, s *side) bool {
	return s.deadline != 0 && l.now >= s.deadline && (s != &c.rd || s.deadline <= l.before || !l.poller.readable(c))
}

// end hands the side to the fiber that has waited longest for it.
func (c *Conn) end(l *loop, s *side) {
	if r := c.rare.Load(); r != nil {
		if q := r.queue(c, s); len(*q) > 0 {
			l.ready((*q)[0])
			*q = (*q)[1:]
			return
		}
	}
	*c.busy(s) = false
}

// wait parks the fiber until the side is woken, by the poller, the deadline or Close.
func (c *Conn) wait(l *loop, s *side) error {
	if err := c.await(l, s, l.current); err != nil {
		return err
	}
	l.current.park()
	if c.closed {
		return net.ErrClosed
	}
	return nil
}

// await makes f, which is about to park, the fiber that the side wakes.
func (c *Conn) await(l *loop, s *side, f *coroutine) error {
	if c.closed {
		return net.ErrClosed
	}
	if s.deadline != 0 {
		if l.now >= s.deadline {
			return os.ErrDeadlineExceeded
		}
		l.timers.arm(c, s.deadline)
	}
	c.streak = 0
	s.waiter = f
	return nil
}

// pause lets other fibers run after maxStreak operations. They may close
// c: then its descriptor may belong to another connection already.
func (c *Conn) pause(l *loop) error {
	if c.streak++; c.streak < maxStreak {
		return nil
	}
	return c.yield(l)
}

// yield lets other fibers run; see pause.
func (c *Conn) yield(l *loop) error {
	c.streak = 0
	l.ready(l.current)
	l.current.park()
	if c.closed {
		return net.ErrClosed
	}
	return nil
}

// waits reports whether a fiber or a function of OnReadable waits for the side.
func (c *Conn) waits(s *side) bool { return s.waiter != nil || s == &c.rd && c.then != nil }

// woken makes the side's waiter check again.
func (s *side) woken(l *loop) {
	if f := s.waiter; f != nil {
		s.waiter = nil
		if f.either[0] != nil {
			f.stopEither()
		}
		l.ready(f)
	}
}

// wakeReader makes the fiber that waits for data check again, and runs the function of OnReadable.
func (c *Conn) wakeReader(l *loop) {
	c.rd.woken(l)
	if fn := c.then; fn != nil {
		c.then = nil
		l.spawn(fn)
	}
}

// wakeWriter makes the fiber that waits for room check again.
func (c *Conn) wakeWriter(l *loop) { c.wr.woken(l) }

// wake is wakeReader or wakeWriter.
func (c *Conn) wake(l *loop, s *side) {
	if s == &c.rd {
		c.wakeReader(l)
	} else {
		c.wakeWriter(l)
	}
}

// expired is called when the connection's timer fires.
func (c *Conn) expired(l *loop) {
	if c.lingering(l) {
		return
	}
	if f := c.rd.waiter; f != nil && f.giveUpAt != 0 {
		if l.now >= f.giveUpAt {
			c.wakeReader(l)
		} else {
			l.timers.arm(c, f.giveUpAt)
		}
	}
	for _, s := range []*side{&c.rd, &c.wr} {
		c.deadlineMoved(l, s)
	}
}

// send makes the connection's loop run fn, without waiting for it. Functions run in the order of the calls.
func (c *Conn) send(l *loop, fn func(*loop)) bool {
	return l.post(func() {
		if now := c.loop.Load(); now != l {
			c.send(now, fn)
			return
		}
		fn(l)
	})
}

// Close implements net.Conn. It does not wait; written data is sent first. A second call returns net.ErrClosed.
func (c *Conn) Close() error {
	if c.shut.Swap(true) {
		return errCloseClosed
	}
	if l := c.loop.Load(); l.isCaller() && c.slot != moving {
		c.close(l)
	} else {
		c.send(l, c.close)
	}
	return nil
}

// Errors that are made once, because closing twice is common and needs no trip to the loop.
var (
	errCloseClosed error = &net.OpError{Op: "close", Net: "socket", Err: net.ErrClosed}
	errSetClosed   error = &net.OpError{Op: "set", Net: "socket", Err: net.ErrClosed}
)

func (c *Conn) close(l *loop) {
	if c.closed {
		return
	}
	if !c.peer.known() {
		c.RemoteAddr() // for the logs; afterwards the descriptor may belong to another connection
	}
	c.setClosed()
	l.timers.disarm(c)
	l.conns.Add(-1)
	c.wakeReader(l)
	c.wakeWriter(l)
	l.poller.close(c)
}

// free closes the descriptor. The poller calls it when the last operation on a closed connection has ended.
func (c *Conn) free(l *loop) {
	l.table.drop(c.slot)
	closeSocket(c.fd)
	l.timers.disarm(c)
	l.open--
}

// received reports whether there is something to read, data or the end, that has left the socket.
func (c *Conn) received() bool { return len(c.in) > 0 || c.eof || c.inErr != 0 }

// sendBroke reports whether a send has failed because the connection was broken. The kernel reports such an error only
// once, so a reader would see a clean end of the stream and take the stream for complete. After the peer's FIN the end
// is real.
func (c *Conn) sendBroke() bool {
	switch c.outErr {
	case 0, syscall.EPIPE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECANCELED:
		return false
	}
	return c.unix || !FinReceived(c.fd)
}

// CloseWrite sends a FIN after the written data; reading remains possible.
func (c *Conn) CloseWrite() error {
	if c.shut.Load() {
		return errCloseClosed
	}
	l := c.loop.Load()
	if l.isCaller() {
		return c.closeWrite(l)
	}
	c.send(l, func(l *loop) {
		if !c.closed {
			_ = c.closeWrite(l)
		}
	})
	return nil
}

func (c *Conn) closeWrite(l *loop) error {
	if c.fin {
		return nil
	}
	if c.abort && c.outErr != 0 { // the peer would take a part of the stream for the whole
		return c.opError("shutdown", c.outErr)
	}
	sent := l.poller.socket(c, &c.wr, false)
	if c.fin = true; sent {
		return c.finish()
	}
	return nil // the poller calls finish when everything is sent
}

// finish sends the FIN.
func (c *Conn) finish() error {
	c.finSent = true
	return c.opError("shutdown", shutdownSocket(c.fd))
}

// SetLinger(0) makes Close reset the connection and drop unsent data; any other value makes it send
// that data first, which is the default.
func (c *Conn) SetLinger(seconds int) error {
	set := func(l *loop) {
		if c.closed {
			return
		}
		c.abort = seconds == 0
		resetOnClose(c.fd, c.abort)
	}
	if l := c.loop.Load(); l.isCaller() {
		set(l)
	} else {
		c.send(l, set)
	}
	return nil
}

// SetKeepAlive turns TCP keep-alive on or off. It is on from the start, except for
// connections dialled to a loopback address, whose peer cannot vanish silently.
func (c *Conn) SetKeepAlive(on bool) error {
	set := func(*loop) {
		switch {
		case c.closed || c.unix:
		default:
			keepAlive(c.fd, on)
		}
	}
	if l := c.loop.Load(); l.isCaller() {
		set(l)
	} else {
		c.send(l, set)
	}
	return nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr {
	return c.addr(func(r *rareConn) *atomic.Pointer[net.Addr] { return &r.local }, localAddrOf)
}

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr {
	if c.peer.known() {
		return c.peer.addr()
	}
	return c.addr(func(r *rareConn) *atomic.Pointer[net.Addr] { return &r.remote }, remoteAddrOf)
}

// addr asks the kernel at the first call. If that comes after Close, the address is not known.
func (c *Conn) addr(place func(*rareConn) *atomic.Pointer[net.Addr], ask func(int) (net.Addr, error)) net.Addr {
	if r := c.rare.Load(); r != nil {
		if a := place(r).Load(); a != nil {
			return *a
		}
	}
	a := noAddr(c.unix)
	look := func(*loop) {
		if c.closed {
			return
		}
		if now, err := ask(c.fd); err == nil {
			a = now
			place(c.rareState()).Store(&a)
		}
	}
	if l := c.loop.Load(); l.isCaller() {
		look(l)
	} else {
		var err error
		c.onItsLoop(l, look, &err)
	}
	return a
}

// opError wraps an error as package net does.
func (c *Conn) opError(op string, err error) error {
	if err == nil {
		return nil
	}
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // made by the poller
		err = os.NewSyscallError(op, errno)
	}
	var known *net.OpError
	if errors.As(err, &known) {
		return err
	}
	network := "tcp"
	if c.unix {
		network = "unix"
	}
	return &net.OpError{Op: op, Net: network, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}
