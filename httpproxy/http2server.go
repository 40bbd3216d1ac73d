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

// Bounds of an HTTP/2 connection to a server. The windows are those of clients' connections: what a stream's client does not take is
// bounded by the stream's window, and the connection's is given back as soon as something has come. So no client stops another.
const (
	// pingGap is how long a server that says nothing but that it lives is left alone: gRPC servers close connections on which PING comes
	// more often than every five minutes, unless they have sent an answer meanwhile.
	pingGap = 5*time.Minute + 10*time.Second
	// maxStrikes is how many PINGs may come sooner, because a request has been sent since the last: gRPC servers allow two.
	maxStrikes = 2
	// writeTime is how long a server may take for maxOut bytes: it is given up, as one that answers no PING.
	writeTime = 45 * time.Second
	// linger is how long a connection stays whose last user was cut off: the next one may come soon.
	linger = time.Second
)

// h2Server is an HTTP/2 connection to a server, on which h2Places have streams. One fiber of the connection's loop reads it and another
// writes what has come together in out, so that no request waits for the socket, nor another's deadline for it.
type h2Server struct {
	g       *h2Group
	link    *httppool.Link
	conn    fiber.Stream
	opened  time.Time
	writing fiber.Group // the writer
	ready   fiber.Group // the server's SETTINGS have come, or the connection is over

	// The reader's.
	h2Reader
	greeted  bool
	limit    time.Time // by which the server must have begun to speak; zero = it has
	answered bool      // an answer, or a part of one, has come since the last PING
	pinged   time.Time
	strikes  int      // PINGs without an answer, or a part of one, between them
	ripe     *h2Place // whose response has just come whole, for a session without a fiber; nil = none
	coming   *h2Place // the last frame of its response has begun to come; nil = no such frame is under way
	answers  *http2   // that has answers which are to be sent; nil = none has
	scratch  []byte   // a buffer for messages; nil = there is none, or it is in use. It is the loop's

	cell atomic.Pointer[traffic.Cell] // of the endpoint; nil = no request has been sent yet

	mu        sync.Mutex // held for a few instructions
	usable    bool       // SETTINGS have come
	streams   map[uint32]*h2Place
	places    int       // that somebody has
	next      uint32    // the next stream
	most      int       // streams at a time
	since     time.Time // when there was none, and then one
	left      time.Time // when the last place was given up
	asked     time.Time // when the first request was sent since the server has been heard, or been sent a PING; zero = none has been
	waiting   bool      // for the answer to a PING
	rests     bool      // the reader sends no PING for long, unless there is another request
	window    int64     // that the server gives
	initial   int64     // of each stream
	taken     int64     // of body, not yet given back to the server
	extra     int64     // that streams have beyond their windows
	owed      int       // answers in out
	out       []byte
	writer    h2Waiter
	starved   int        // writers that wait
	beginners []*h2Place // of them, those that have no stream yet
	news      []*h2Place // those with a parked session that is to be continued; see quick.go
	told      []*h2Place // memory for the next news, the reader's
	lookAt    time.Time  // when the first of the parked sessions is to be continued whatever comes; zero = none
	waits     bool       // the reader does
	widened   bool       // there is room for what they have
	again     bool       // the reader is to look again
	began     bool       // a block of fields has been sent
	gone      bool       // no stream is begun any more
	dismissed bool       // because the server says so
	farewell  bool       // out is the last that is sent
	err       error
}

func newH2Server(g *h2Group, l *httppool.Link) *h2Server {
	c := &h2Server{
		g: g, link: l, conn: l.NetConn(), opened: time.Now(), streams: make(map[uint32]*h2Place), next: 1,
		most: g.o.most, places: 1, window: 64<<10 - 1, initial: 64<<10 - 1,
	}
	c.heard = c.opened
	c.in.use(c.conn)
	c.h2Reader.begin(c, true, maxResponseHead)
	return c
}

// start begins to speak, and returns the first place when the server has; on an error the connection is closed.
func (c *h2Server) start(ctx context.Context) (*h2Place, error) {
	by := c.opened.Add(c.g.o.patience)
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
	case c.dismissed:
		return nil, errNotBegun
	case c.err != nil:
		return nil, c.err
	case c.most < 1:
		c.detach(false)
		return nil, errNoPlace
	}
	return newH2Place(c), nil
}

// recovered is to be deferred by the fibers of the connection: a panic ends nothing else.
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

// read is the reader. It ends the connection.
func (c *h2Server) read() {
	err := errPanicked
	defer func() { c.end(err) }()
	defer c.recovered()
	err = c.serve()
}

func (c *h2Server) serve() error {
	for !c.settled {
		if err := c.frame(); err != nil {
			return c.notHTTP2(err)
		}
	}
	c.greeted, c.limit = true, time.Time{}
	c.ready.Done()
	for {
		if err := c.frame(); err != nil {
			return err
		}
		c.passRipe()
	}
}

// notHTTP2 says why the server has not begun.
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
	if errors.Is(err, errH2Over) {
		err = net.ErrClosed
	}
	c.locked(func() {
		if !broken && c.err != nil {
			err = c.err
		}
		c.out = appendGoAway(c.outgoing(), 0, code)
		c.farewell = true
		c.broken(err)
	})
	c.continueParked()
	_ = c.conn.SetWriteDeadline(time.Now().Add(byeTime))
	c.writing.Wait()
	_ = c.link.Close()
	c.in.drop()
	c.g.remove(c)
	c.count(connsClosed)
	if !c.greeted {
		c.ready.Done()
	}
}

// broken ends all streams, and has reader and writer end. mu is held.
func (c *h2Server) broken(err error) {
	if c.err == nil {
		c.err = lost(err)
	}
	c.gone = true
	for _, st := range c.streams {
		st.fail(c.err)
	}
	c.wakeWriters()
	c.lookNow()
	c.writer.wake()
}

// lost is the error of streams whose connection is over. It wraps nothing that could be taken for a stream's own deadline.
func lost(err error) error { return fmt.Errorf("the HTTP/2 connection is over: %v", err) } //nolint:errorlint // see there

// lookNow lets the reader look, which may be about to set a deadline that it found before. mu is held.
func (c *h2Server) lookNow() {
	c.again = true
	_ = c.conn.SetReadDeadline(time.Unix(1, 0))
}

// outgoing returns what is to be sent, to be appended to. mu is held.
func (c *h2Server) outgoing() []byte {
	if c.out == nil {
		c.out = buffers.Get().(*[bufferSize]byte)[:0]
	}
	return c.out
}

// pending reports whether there is something to be sent. mu is held.
func (c *h2Server) pending() bool { return len(c.out) > 0 || c.taken >= h2AllWindow/4 }

// write is the writer.
func (c *h2Server) write() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for !c.pending() && !c.farewell {
			c.writer.wait(&c.mu)
		}
		if c.farewell && len(c.out) == 0 {
			return
		}
		out := c.outgoing()
		if c.taken >= h2AllWindow/4 { // not before: it would not be worth a frame
			out = appendWindow(out, 0, c.taken)
			c.taken = 0
		}
		c.out, c.owed = nil, 0
		err := c.send(out)
		if err != nil {
			c.broken(err)
		}
		if err != nil || c.farewell && len(c.out) == 0 {
			c.farewell, c.out = true, nil
			return
		}
		c.wakeWriters()
	}
}

// send sends out. mu is held, and given up meanwhile.
func (c *h2Server) send(out []byte) error {
	limit := writeTime
	if c.farewell {
		limit = byeTime
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(limit)) // with mu held: end's, which is shorter, comes behind it
	c.mu.Unlock()
	defer c.mu.Lock()
	_, err := c.conn.Write(out)
	putOut(nil, out)
	return err
}

// wakeWriters is called with mu held when there is room, or none is needed.
func (c *h2Server) wakeWriters() {
	if c.starved == 0 {
		return
	}
	for _, st := range c.streams {
		st.writer.wake()
	}
	for _, st := range c.beginners {
		st.writer.wake()
	}
}

// fill reads once. It looks after the connection meanwhile.
func (c *h2Server) fill() error {
	for {
		c.continueParked()
		by, err := c.deadline(time.Now(), c.limit)
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
			c.heard = time.Now()
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
}

// changed is called before the reader waits: lookNow's deadline may have come before the one it has set.
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
	c.waits = !c.again && len(c.news) == 0
	return !c.waits
}

// deadline says when the reader is to look again. The error says that it is over. The server must have said something by limit; zero = it
// has.
func (c *h2Server) deadline(now, limit time.Time) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookAtParked(now)
	by, err := c.nextLook(now, limit)
	if !c.lookAt.IsZero() && c.lookAt.Before(by) {
		by = c.lookAt
	}
	return by, err
}

// nextLook is deadline without regard to parked sessions. mu is held.
func (c *h2Server) nextLook(now, limit time.Time) (time.Time, error) {
	c.again, c.rests = false, false
	if !c.asked.After(c.heard) {
		c.asked = time.Time{}
	}
	switch {
	case c.err != nil:
		return limit, c.err
	case !limit.IsZero() && !now.Before(limit):
		return limit, os.ErrDeadlineExceeded
	case !limit.IsZero():
		return limit, nil
	case c.gone && len(c.streams) == 0:
		return limit, errH2Over
	case c.places == 0 && !now.Before(c.left.Add(linger)):
		c.gone = true
		return limit, errH2Over
	case c.places == 0:
		return c.left.Add(linger), nil
	case len(c.streams) == 0:
		return now.Add(c.g.o.pings / 2), nil
	}
	return c.watch(now)
}

// errSilent: the server answers no PING.
var errSilent = errors.New("the server answers no PING")

// watch has a server that is silent with requests under way show that it lives. mu is held.
func (c *h2Server) watch(now time.Time) (time.Time, error) {
	if c.waiting {
		by := c.pinged.Add(min(pongWithin, c.g.o.pings))
		if !now.Before(by) {
			return by, errSilent
		}
		return by, nil
	}
	silent := c.heard
	if silent.Before(c.since) {
		silent = c.since
	}
	by := silent.Add(c.g.o.pings)
	if c.answered || c.pinged.IsZero() {
		c.strikes = 0
	} else if !c.asked.IsZero() && c.strikes < maxStrikes {
		by = c.asked.Add(c.g.o.pings)
	} else if next := c.pinged.Add(pingGap); by.Before(next) {
		by, c.rests = next, c.strikes < maxStrikes
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

// attach returns a place on the connection; nil = there is none.
func (c *h2Server) attach() *h2Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.usable || c.gone || c.places >= c.most || c.g.o.lifetime > 0 && time.Since(c.opened) > c.g.o.lifetime {
		return nil
	}
	c.places++
	return newH2Place(c)
}

// takes is how many streams the server takes at a time, at least 1.
func (c *h2Server) takes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.most, 1)
}

// detach gives a place up. cut says that it was in the middle of a request. mu is held.
func (c *h2Server) detach(cut bool) {
	c.places--
	if c.places > 0 {
		return
	}
	if c.left = time.Now(); !cut {
		c.left = time.Time{}
	}
	c.lookNow()
}

// roomForHead waits while the server takes nothing: heads know no flow control, and places that were given up make room for others. mu is
// held, and given up meanwhile.
func (c *h2Server) roomForHead(st *h2Place) error {
	for !st.closed && !c.gone && len(c.out) >= maxOut {
		c.beginners = append(c.beginners, st)
		err := st.starve()
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

// begin begins a stream; the error is that there can be none. mu is held.
func (c *h2Server) begin(st *h2Place) error {
	if c.gone || len(c.streams) >= c.most {
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
	if c.rests {
		c.rests = false
		c.lookNow()
	}
	st.id = c.next
	if c.next += 2; c.next > maxStream-2 {
		c.gone = true
	}
	c.streams[st.id] = st
	return nil
}

// forget takes a stream out that is over. mu is held.
func (c *h2Server) forget(st *h2Place) {
	if !st.open {
		return
	}
	st.open = false
	delete(c.streams, st.id)
	c.extra -= st.extra
	st.extra = 0
	if c.gone && len(c.streams) == 0 {
		c.lookNow()
	}
}

// count counts for the endpoint what has happened to the connection.
func (c *h2Server) count(what int) {
	if cell := c.cell.Load(); cell != nil {
		cell.Shard(traffic.ShardOf(c.conn.Loop())).Add(what, 1)
	}
}

// counted has what happens to the connection counted in the endpoint's cell, from its first request on.
func (c *h2Server) counted(cell *traffic.Cell) {
	if cell != nil && c.cell.Load() == nil && c.cell.CompareAndSwap(nil, cell) {
		c.count(connsOpened)
	}
}

// place is the place on an HTTP/2 connection that the session has; nil = it has a connection of its own.
func (s *session) place() *h2Place {
	p, _ := s.server.conn.(*h2Place)
	return p
}
