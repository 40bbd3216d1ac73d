package httpproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool/httppool"
	"github.com/headpond/headpond/traffic"
)

// Bounds of an HTTP/2 connection to a server. The windows have the sizes of those for clients: a stream's window bounds
// what its client has not read, and the connection's credit is returned on receipt. So no client can block another.
const (
	// pingGap is the least time between PINGs to a server that answers them but sends nothing else. gRPC servers close
	// connections on which PINGs come more often than every five minutes, unless they have sent an answer meanwhile.
	pingGap = 5*time.Minute + 10*time.Second
	// maxStrikes is how many PINGs may come sooner, because a request was sent since the last: gRPC servers allow two.
	maxStrikes = 2
	// writeTime is how long a server may take to read maxOut bytes. After it the connection is closed, as without a PONG.
	writeTime = 45 * time.Second
	// linger is how long a connection stays open after its last user was cut off: the next request may come soon.
	linger = time.Second
)

// h2Server is an HTTP/2 connection to a server; h2Places have streams on it. One fiber of the connection's loop reads.
// Another writes the frames that collect in out, so that no request waits for the socket, and no deadline of a request
// ends a write.
type h2Server struct {
	g       *h2Group
	link    *httppool.Link
	conn    fiber.Stream
	opened  time.Time
	writing fiber.Group // the writer
	ready   fiber.Group // the server's SETTINGS have arrived, or the connection has ended

	// The reader's.
	h2Reader
	handshaken bool
	limit      time.Time // by which the server must have sent SETTINGS; zero = it has
	overdue    bool      // limit has passed once
	answered   bool      // part of an answer has arrived since the last PING
	pinged     time.Time
	strikes    int      // PINGs without part of an answer between them
	completed  *h2Place // its response has just become complete, for a session without a fiber; nil = none
	arriving   *h2Place // the last frame of its response is arriving; nil = none
	answers    *http2   // the client's connection for which unflushed answers were appended; nil = none
	scratch    []byte   // a buffer for messages, used by the loop only; nil = none, or in use

	cell atomic.Pointer[traffic.Cell] // the endpoint's counters; nil = no request has been sent yet

	mu             sync.Mutex // held for a few instructions
	usable         bool       // SETTINGS have arrived
	connects       bool       // the server takes extended CONNECTs (RFC 8441)
	streams        map[uint32]*h2Place
	places         int       // in use
	next           uint32    // the next stream ID
	most           int       // the limit of streams
	since          time.Time // when the current streams began: there was none before
	idleSince      time.Time // when the last place was released
	asked          time.Time // when the first request was sent since the server was last heard, or since the last PING; zero = none was sent
	waiting        bool      // for a PONG
	pingsLater     bool      // the reader sends no PING for long, unless there is another request
	window         int64     // the server's send window for the connection
	initial        int64     // the server's initial window of a stream
	taken          int64     // bytes of body whose credit was not returned to the server yet
	extra          int64     // sum of the streams' extra windows
	controls       int       // control answers in out
	out            []byte
	writer         h2Waiter
	blocked        int        // writers that wait for window or buffer space
	beginners      []*h2Place // of them, those whose stream has not begun
	news           []*h2Place // places with a parked session that must continue; see quick.go
	spareNews      []*h2Place // memory for the next news, the reader's
	checkAt        time.Time  // when the first parked session must continue in any case; zero = none
	waits          bool       // the reader waits
	widened        bool       // a window grew
	recheck        bool       // the reader must check its deadlines again
	began          bool       // a field block has been sent
	closing        bool       // no more streams may begin
	goAwayReceived bool       // because the server sent GOAWAY
	lastOut        bool       // nothing is sent after out
	sendErr        error      // why nothing more can be sent; nil = it can
	hearBy         time.Time  // with sendErr: when the reader stops
	err            error
}

func newH2Server(g *h2Group, l *httppool.Link) *h2Server {
	c := &h2Server{
		g: g, link: l, conn: l.NetConn(), opened: time.Now(), streams: make(map[uint32]*h2Place), next: 1,
		most: g.o.most, places: 1, window: 64<<10 - 1, initial: 64<<10 - 1,
	}
	c.lastRead = c.opened
	c.in.use(c.conn)
	c.h2Reader.begin(c, true, maxResponseHead)
	return c
}

// start begins HTTP/2, and returns the first place once the server's SETTINGS have arrived. On an error it closes the
// connection.
func (c *h2Server) start(ctx context.Context) (*h2Place, error) {
	by := c.opened.Add(c.g.o.settingsTimeout)
	if end, ok := ctx.Deadline(); ok && end.Before(by) {
		by = end
	}
	c.out = append(c.outgoing(), h2Preface...)
	c.out = appendFrame(c.out, 2*6, frameSettings, 0, 0)
	c.out = appendSetting(c.out, settingPush, 0)
	c.out = appendSetting(c.out, settingHeaderList, maxResponseHead)
	c.out = appendWindow(c.out, 0, h2AllWindow-(64<<10-1))
	c.g.add(c)
	c.ready.Add(1)
	c.writing.Add(1)
	c.conn.Go(func() {
		defer c.writing.Done()
		defer c.recovered()
		c.write()
	})
	c.limit = by
	c.conn.Go(c.read)
	c.ready.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.goAwayReceived:
		return nil, errNotBegun
	case c.err != nil:
		return nil, c.err
	case c.most < 1:
		c.detach(false)
		return nil, errNoPlace
	}
	return newH2Place(c), nil
}

// recovered is deferred by the connection's fibers: a panic ends only the connection.
func (c *h2Server) recovered() {
	if v := recover(); v != nil {
		c.g.o.logger.Error("an HTTP/2 connection to a server panicked", "endpoint", c.g.endpoint, "panic", v, "stack", string(debug.Stack()))
		c.locked(func() { c.broken(errPanicked) })
	}
}

// locked runs fn with mu held.
func (c *h2Server) locked(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

// read is the reader's fiber. It closes the connection at its end.
func (c *h2Server) read() {
	err := errPanicked
	defer func() { c.end(err) }()
	defer c.recovered()
	err = c.serve()
}

func (c *h2Server) serve() error {
	for !c.gotSettings {
		if err := c.frame(); err != nil {
			return c.notHTTP2(err)
		}
	}
	c.handshaken, c.limit, c.overdue = true, time.Time{}, false
	c.ready.Done()
	for {
		if err := c.frame(); err != nil {
			return err
		}
		c.passCompleted()
	}
}

// notHTTP2 returns the error of a server that did not begin HTTP/2.
func (c *h2Server) notHTTP2(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("the server says nothing in HTTP/2: does it expect HTTP/1.1?")
	case errors.Is(err, errNotFrames):
		return err
	}
	return fmt.Errorf("beginning HTTP/2: %w", err)
}

// end closes the connection.
func (c *h2Server) end(err error) {
	code, broken := errors.AsType[h2Code](err)
	if errors.Is(err, errPanicked) {
		code = codeInternal
	}
	if errors.Is(err, errH2Ended) {
		err = net.ErrClosed
	}
	c.locked(func() {
		if !broken && c.err != nil {
			err = c.err
		}
		c.out = appendGoAway(c.outgoing(), 0, code)
		c.lastOut = true
		c.broken(err)
	})
	c.continueParked()
	_ = c.conn.SetWriteDeadline(time.Now().Add(lingerTime))
	c.writing.Wait()
	_ = c.link.Close()
	c.in.drop()
	c.g.remove(c)
	c.count(connsClosed)
	if !c.handshaken {
		c.ready.Done()
	}
}

// broken ends all streams, the reader and the writer. mu is held.
func (c *h2Server) broken(err error) {
	if c.err == nil {
		c.err = lost(err)
	}
	c.closing = true
	for _, st := range c.streams {
		st.fail(c.err)
	}
	c.wakeWriters()
	c.checkNow()
	c.writer.wake()
}

// lost is the error of streams whose connection has ended. It wraps nothing that could be taken for a stream's own
// deadline.
func lost(err error) error { return fmt.Errorf("the HTTP/2 connection is over: %v", err) } //nolint:errorlint // see there

// checkNow has the reader check its deadlines now, even if it is about to set a later one. mu is held.
func (c *h2Server) checkNow() {
	c.recheck = true
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
}

// outgoing returns the buffer of collected frames, to be appended to. mu is held.
func (c *h2Server) outgoing() []byte {
	if c.out == nil {
		c.out = buffers.Get().(*[bufferSize]byte)[:0]
	}
	return c.out
}

// pending reports whether there is something to send. mu is held.
func (c *h2Server) pending() bool { return len(c.out) > 0 || c.taken >= h2AllWindow/4 }

// write is the writer's fiber.
func (c *h2Server) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for !c.pending() && !c.lastOut {
			c.writer.wait(&c.mu)
		}
		if c.lastOut && len(c.out) == 0 {
			return
		}
		out := c.outgoing()
		if c.taken >= h2AllWindow/4 { // smaller credit is not worth a frame
			out = appendWindow(out, 0, c.taken)
			c.taken = 0
		}
		c.out, c.controls = nil, 0
		err := c.send(out)
		if err != nil {
			c.unsendable(err)
		}
		if err != nil || c.lastOut && len(c.out) == 0 {
			c.lastOut, c.out = true, nil
			return
		}
		c.wakeWriters()
	}
}

// unsendable ends the sending after an error. A server that has answered and closed its connection may have said more than the
// reader has read: these answers count, and a GOAWAY tells which requests can be sent again. mu is held.
func (c *h2Server) unsendable(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) { // the server lives, and the reader is up to date
		c.broken(err)
		return
	}
	c.sendErr, c.hearBy = err, time.Now().Add(lingerTime)
	c.closing = true
	c.wakeWriters()
	c.checkNow()
}

// send sends out. mu is held, and released meanwhile.
func (c *h2Server) send(out []byte) error {
	limit := writeTime
	if c.lastOut {
		limit = lingerTime
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(limit)) // with mu held, so that end sets its shorter deadline after this one
	c.mu.Unlock()
	defer c.mu.Lock()
	_, err := c.conn.Write(out)
	putOut(nil, out)
	return err
}

// wakeWriters is called with mu held when writers may continue, or must stop.
func (c *h2Server) wakeWriters() {
	if c.blocked == 0 {
		return
	}
	for _, st := range c.streams {
		st.writer.wake()
	}
	for _, st := range c.beginners {
		st.writer.wake()
	}
}

// fill reads once, and handles the deadlines of the connection meanwhile.
func (c *h2Server) fill() error {
	for late := false; ; {
		c.continueParked()
		by, err := c.deadline(time.Now(), c.limit)
		if silent := errors.Is(err, errSilent) || errors.Is(err, os.ErrDeadlineExceeded); silent && !late && !c.overdue && hasCome(c.conn) {
			by, err, late = time.Now().Add(interruptGrace), nil, true
			if !c.handshaken { // no more time than that, however little comes at a time
				c.limit, c.overdue = by, true
			}
		}
		if err != nil {
			return err
		}
		_ = c.conn.SetReadDeadline(by)
		if c.changed() {
			continue
		}
		n, err := c.in.fill()
		c.locked(func() { c.waits, c.waiting = false, c.waiting && n == 0 })
		if n > 0 {
			c.lastRead = time.Now()
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// changed is called before the reader waits. It reports whether checkNow's deadline may have been overwritten.
func (c *h2Server) changed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.widened {
		c.widened = false
		c.wakeWriters()
	}
	if len(c.streams) == 0 {
		c.dropScratch()
	}
	c.waits = !c.recheck && len(c.news) == 0
	return !c.waits
}

// deadline returns when the reader must check again. An error means that the connection has ended. limit is the time for
// the server's SETTINGS; zero = they have arrived.
func (c *h2Server) deadline(now, limit time.Time) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checkParked(now)
	by, err := c.nextCheck(now, limit)
	if !c.checkAt.IsZero() && c.checkAt.Before(by) {
		by = c.checkAt
	}
	return by, err
}

// nextCheck is deadline without parked sessions. mu is held.
func (c *h2Server) nextCheck(now, limit time.Time) (time.Time, error) {
	c.recheck, c.pingsLater = false, false
	if !c.asked.After(c.lastRead) {
		c.asked = time.Time{}
	}
	switch {
	case c.err != nil:
		return limit, c.err
	case c.sendErr != nil && !now.Before(c.hearBy):
		return limit, c.sendErr
	case c.sendErr != nil && len(c.streams) > 0:
		return c.hearBy, nil
	case !limit.IsZero() && !now.Before(limit):
		return limit, os.ErrDeadlineExceeded
	case !limit.IsZero():
		return limit, nil
	case c.closing && len(c.streams) == 0:
		return limit, errH2Ended
	case c.places == 0 && !now.Before(c.idleSince.Add(linger)):
		c.closing = true
		return limit, errH2Ended
	case c.places == 0:
		return c.idleSince.Add(linger), nil
	case len(c.streams) == 0:
		return now.Add(c.g.o.pings / 2), nil
	}
	return c.watch(now)
}

// errSilent: the server answers no PING.
var errSilent = errors.New("the server answers no PING")

// watch sends a PING to a server that is silent while it has requests. mu is held.
func (c *h2Server) watch(now time.Time) (time.Time, error) {
	if c.waiting {
		by := c.pinged.Add(min(pongWithin, c.g.o.pings))
		if !now.Before(by) {
			return by, errSilent
		}
		return by, nil
	}
	silent := c.lastRead
	if silent.Before(c.since) {
		silent = c.since
	}
	by := silent.Add(c.g.o.pings)
	if c.answered || c.pinged.IsZero() {
		c.strikes = 0
	} else if !c.asked.IsZero() && c.strikes < maxStrikes {
		by = c.asked.Add(c.g.o.pings)
	} else if next := c.pinged.Add(pingGap); by.Before(next) {
		by, c.pingsLater = next, c.strikes < maxStrikes
	}
	if now.Before(by) {
		return by, nil
	}
	if !c.answered && !c.pinged.IsZero() && now.Before(c.pinged.Add(pingGap)) {
		c.strikes++
	}
	c.pinged, c.waiting, c.answered, c.asked = now, true, false, time.Time{}
	c.out = append(appendFrame(c.outgoing(), 8, framePing, 0, 0), "headpond"...)
	c.writer.wake()
	return now.Add(min(pongWithin, c.g.o.pings)), nil
}

// attach takes a place on the connection; nil = there is none.
func (c *h2Server) attach() *h2Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable || c.closing || c.places >= c.most || c.g.o.lifetime > 0 && time.Since(c.opened) > c.g.o.lifetime {
		return nil
	}
	c.places++
	return newH2Place(c)
}

// takes returns the server's limit of concurrent streams, at least 1.
func (c *h2Server) takes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.most, 1)
}

// detach releases a place. cut: its request had not ended. mu is held.
func (c *h2Server) detach(cut bool) {
	c.places--
	if c.places > 0 {
		return
	}
	if c.idleSince = time.Now(); !cut {
		c.idleSince = time.Time{}
	}
	c.checkNow()
}

// roomForHead waits while the server reads nothing: heads have no flow control, and released places make way for others.
// mu is held, and released meanwhile.
func (c *h2Server) roomForHead(st *h2Place) error {
	for !st.closed && !c.closing && len(c.out) >= maxOut {
		c.beginners = append(c.beginners, st)
		err := st.awaitSpace()
		c.beginners = slices.DeleteFunc(c.beginners, func(b *h2Place) bool { return b == st })
		if err != nil {
			return err
		}
	}
	if st.closed {
		return net.ErrClosed
	}
	return nil
}

// begin begins a stream. The error means that no more can begin. mu is held.
func (c *h2Server) begin(st *h2Place) error {
	if c.closing || len(c.streams) >= c.most {
		return errNotBegun
	}
	if len(c.streams) == 0 || c.asked.IsZero() {
		now := time.Now()
		if len(c.streams) == 0 {
			c.since = now
		}
		if c.asked.IsZero() {
			c.asked = now
		}
	}
	if c.pingsLater {
		c.pingsLater = false
		c.checkNow()
	}
	st.id = c.next
	if c.next += 2; c.next > maxStream-2 {
		c.closing = true
	}
	c.streams[st.id] = st
	return nil
}

// forget removes an ended stream. mu is held.
func (c *h2Server) forget(st *h2Place) {
	if !st.open {
		return
	}
	st.open = false
	delete(c.streams, st.id)
	c.extra -= st.extra
	st.extra = 0
	if c.closing && len(c.streams) == 0 {
		c.checkNow()
	}
}

// count counts an event of the connection for its endpoint.
func (c *h2Server) count(what int) {
	if cell := c.cell.Load(); cell != nil {
		cell.Shard(traffic.ShardOf(c.conn.Loop())).Add(what, 1)
	}
}

// counted sets the endpoint's counters, at the first request.
func (c *h2Server) counted(cell *traffic.Cell) {
	if cell != nil && c.cell.Load() == nil && c.cell.CompareAndSwap(nil, cell) {
		c.count(connsOpened)
	}
}

// place returns the session's place on an HTTP/2 connection; nil = the session has a connection of HTTP/1.1.
func (s *session) place() *h2Place {
	p, _ := s.server.conn.(*h2Place)
	return p
}
