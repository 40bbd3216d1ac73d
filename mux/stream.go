package mux

import (
	"context"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
)

// Stream carries bytes, both ways. It is a net.Conn, with CloseWrite as TCP has
// it, and a fiber.Stream: fibers that read or write wait without holding their
// loop. All methods may be called from any goroutine or fiber; a Write is not
// mixed with others.
type Stream struct {
	fiber.NoLoop
	s      *Session
	ch     *channel
	rd, wr deadline
	breaks atomic.Bool // Close resets the stream

	reader, writer fiber.ParkerSlot
}

var _ fiber.Stream = (*Stream)(nil)

func newStream(s *Session, ch *channel) *Stream { return &Stream{s: s, ch: ch} }

// Name is the name the stream was opened with.
func (t *Stream) Name() string { return t.ch.name }

// ID is the ID the stream was opened with; zero for none.
func (t *Stream) ID() ID { return t.ch.id }

// Number is the stream's number on the wire, unique in the session.
func (t *Stream) Number() uint32 { return t.ch.num }

// Session is the session the stream belongs to.
func (t *Stream) Session() *Session { return t.s }

// WaitAccepted waits until the other side's application has accepted the stream.
func (t *Stream) WaitAccepted(ctx context.Context) error { return t.s.waitAccepted(ctx, t.ch) }

// Read reads available data, waiting for the first byte. The end is io.EOF after the other side's
// CloseWrite or Close.
func (t *Stream) Read(p []byte) (int, error) {
	by := t.reader.Take()
	if by == nil {
		return t.read(p, nil)
	}
	n, err := t.read(p, by)
	t.reader.Keep(by)
	return n, err
}

// parker is how a fiber waits: Park returns when Unpark has been called, be it before,
// or ctx ends. One call at a time may use it; to return without cause does no harm.
type parker interface {
	Park(ctx context.Context) error
	Unpark()
}

// read is Read for a caller that waits by a parker, nil for a goroutine.
func (t *Stream) read(p []byte, by parker) (int, error) {
	s, ch := t.s, t.ch
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.rd.expired && !ch.closed {
		return 0, t.error("read", os.ErrDeadlineExceeded)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := t.awaitBytes(by); err != nil {
		return 0, err
	}
	n := s.core.readStream(ch, p)
	t.taken()
	return n, nil
}

// WriteTo implements io.WriterTo: it writes what arrives to w until the end, from the buffers in which it arrived, so that
// it saves a copy, and holds no memory while nothing arrives. w must not keep the bytes. A nil error is the end that Read
// reports by io.EOF; another one is Read's or w's.
func (t *Stream) WriteTo(w io.Writer) (n int64, err error) {
	by := t.reader.Take()
	if by == nil {
		return t.writeTo(w, nil)
	}
	n, err = t.writeTo(w, by)
	t.reader.Keep(by)
	return n, err
}

// writeTo is WriteTo for a caller that waits by a parker, nil for a goroutine.
func (t *Stream) writeTo(w io.Writer, by parker) (n int64, err error) {
	s, ch := t.s, t.ch
	for {
		s.mu.Lock()
		b, err := t.takeBuffer(by)
		s.mu.Unlock()
		if err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		m, err := w.Write(b.data[b.off:])
		n += int64(m)
		s.mu.Lock()
		s.core.consume(ch, b.cost)
		s.flush(nil, false)
		s.mu.Unlock()
		b.release()
		if err != nil {
			return n, err
		}
	}
}

// WriteTo joins buffers of less than joinBelow bytes, up to joinSize: a copy costs less than a write.
const (
	joinBelow = 4 << 10
	joinSize  = 16 << 10
)

// takeBuffer waits for bytes, and takes a buffer of them. Their credit has to be returned. mu is held, and released while waiting.
func (t *Stream) takeBuffer(by parker) (*buffer, error) {
	if t.rd.expired && !t.ch.closed {
		return nil, t.error("read", os.ErrDeadlineExceeded)
	}
	if err := t.awaitBytes(by); err != nil {
		return nil, err
	}
	b := t.ch.ready.head
	if len(b.data)-b.off < joinBelow && b.next != nil {
		b = newBuffer(joinSize)
		b.data = b.data[:t.s.core.readStream(t.ch, b.data[:joinSize])]
	} else {
		t.ch.ready.pop()
	}
	t.taken()
	return b, nil
}

// taken is called when a reader has taken bytes. mu is held.
func (t *Stream) taken() {
	if t.ch.ready.head != nil {
		t.ch.receivers.wakeOne()
	}
	t.s.flush(nil, false)
}

// State implements fiber.Stream. An idle stream in a pool that is not Silent must no longer be used.
func (t *Stream) State() fiber.State {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	unread, closed := t.ch.ready.head != nil, t.peerClosed()
	switch {
	case unread && closed:
		return fiber.Closing
	case unread:
		return fiber.Pending
	case closed:
		return fiber.Dead
	}
	return fiber.Silent
}

// Ended reports that only the end is left to read: the other side's, this side's Close, or the loss of the session.
func (t *Stream) Ended() bool { return t.State() == fiber.Dead }

// PeerClosed is Ended, also while data before the end is unread.
func (t *Stream) PeerClosed() bool {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.peerClosed()
}

// Acked returns how many bytes the other side has let this side send since the stream was opened, which grows as the other
// side's application reads. Whether it has read all is not known, so all is false.
func (t *Stream) Acked() (n uint64, all bool) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.ch.snd.limit, false
}

// CopyTo implements fiber.Stream, by reading and writing.
func (t *Stream) CopyTo(dst net.Conn, moved, _ func(n int)) (readErr, writeErr error) {
	return fiber.Copy(t, dst, moved)
}

// Detach returns the stream itself, which lives on no loop.
func (t *Stream) Detach() (conn net.Conn, ahead []byte, err error) { return t, nil, nil }

func (t *Stream) peerClosed() bool { return t.ch.recvErr != nil || t.s.core.err != nil || t.ch.closed }

// awaitBytes waits for at least one byte. mu is held, and released while waiting.
func (t *Stream) awaitBytes(by parker) (err error) {
	s, ch := t.s, t.ch
	if ch.ready.head != nil {
		return nil
	}
	w, alarm := s.newWaiter(), s.newWaiter()
	own := alarm.ready
	alarm.ready = w.ready // one goroutine waits for both
	w.by, alarm.by = by, by
	ch.receivers.add(w)
	t.rd.waiting.add(alarm)
	led := false
	s.quick = 0
	s.patient = t.rd.timer == nil && by == nil
	for ch.ready.head == nil {
		if err = ch.recvErr; err == nil {
			err = s.core.err
		}
		if err == nil && t.rd.expired {
			err = os.ErrDeadlineExceeded
		}
		if err != nil {
			break
		}
		if t.rd.timer == nil && by == nil && s.readHere(ch, w, alarm) {
			led = true
			continue
		}
		_ = s.pause(context.Background(), w) // never fails
	}
	t.rd.waiting.remove(alarm)
	alarm.ready = own
	ch.receivers.remove(w)
	if led {
		s.doneReading()
	}
	s.freeWaiter(w)
	s.freeWaiter(alarm)
	if err == nil || err == io.EOF {
		return err
	}
	return t.error("read", err)
}

// readStream moves bytes to p.
func (c *core) readStream(ch *channel, p []byte) (n int) {
	for n < len(p) {
		b := ch.ready.head
		if b == nil {
			break
		}
		m := copy(p[n:], b.data[b.off:])
		n += m
		if b.off += m; b.off == len(b.data) {
			ch.ready.pop()
			c.consume(ch, b.cost)
			b.release()
		}
	}
	return n
}

// Write sends p. It returns when p is in the connection's hands or copied, and
// waits for credit when the reader is slow. On an error n bytes were handed over.
func (t *Stream) Write(p []byte) (n int, err error) {
	by := t.writer.Take()
	if by == nil {
		return t.write(p, nil)
	}
	n, err = t.write(p, by)
	t.writer.Keep(by)
	return n, err
}

// write is Write for a caller that waits by a parker, nil for a goroutine.
func (t *Stream) write(p []byte, by parker) (n int, err error) {
	s := t.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.sendable(t.ch); err != nil {
		return 0, t.error("write", err)
	}
	if t.wr.expired {
		return 0, t.error("write", os.ErrDeadlineExceeded)
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err = s.send(context.Background(), t.ch, p, &t.wr, by)
	if err != nil {
		return n, t.error("write", err)
	}
	return n, nil
}

// WaitStopped waits until nothing more can be written, and says why: the error wraps ErrPeerClosed
// when the other side reads no more, ErrReset, ErrClosed after CloseWrite or Close here, or what
// ended the session. When ctx ends first, the error is ctx's. A relay whose source may be silent
// for long uses it to notice that the stream's reader has gone.
func (t *Stream) WaitStopped(ctx context.Context) error {
	s, ch := t.s, t.ch
	s.mu.Lock()
	defer s.mu.Unlock()
	w := newWaiter()
	ch.watch.add(&w)
	defer ch.watch.remove(&w)
	for {
		err := s.sendable(ch)
		if err == nil {
			err = s.pause(ctx, &w)
		}
		if err != nil {
			return t.error("wait", err)
		}
	}
}

// CloseWrite ends this direction: the other side reads all data written before, then io.EOF.
func (t *Stream) CloseWrite() error { return t.s.closeWrite(t.ch) }

// Close ends both directions. Data written before is delivered; unread data is dropped, and the
// other side's writers fail with ErrPeerClosed. Close every stream, see [Channel.Close].
func (t *Stream) Close() error {
	if t.breaks.Load() {
		t.Reset(codeLinger, "closed with SetLinger(0)")
		return nil
	}
	t.stopDeadlines()
	return t.s.closeChannel(t.ch)
}

func (t *Stream) stopDeadlines() {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.rd.stop()
	t.wr.stop()
}

// codeLinger is the application's code of a stream that is reset by Close.
const codeLinger = 0

// SetLinger(0) makes Close reset the stream, as with a net.TCPConn: the other side does not take a part of the stream
// for the whole. Other values undo that.
func (t *Stream) SetLinger(seconds int) error {
	t.breaks.Store(seconds == 0)
	return nil
}

// Reset ends both directions at once and sends the other side the reason; see [Channel.Reset].
func (t *Stream) Reset(code uint16, reason string) {
	t.stopDeadlines()
	t.s.resetChannel(t.ch, code, reason)
}

// SetDeadline sets both deadlines; the zero time means none.
func (t *Stream) SetDeadline(at time.Time) error {
	return t.deadlines(at, &t.rd, &t.wr)
}

// SetReadDeadline bounds Read, also one that waits now.
func (t *Stream) SetReadDeadline(at time.Time) error { return t.deadlines(at, &t.rd) }

// SetWriteDeadline bounds Write, also one that waits now.
func (t *Stream) SetWriteDeadline(at time.Time) error { return t.deadlines(at, &t.wr) }

func (t *Stream) deadlines(at time.Time, ds ...*deadline) error {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.ch.closed {
		return t.error("set deadline", ErrClosed)
	}
	for _, d := range ds {
		t.s.setDeadline(d, at)
	}
	return nil
}

// Addr is the address of a stream's end: the connection's below it, and the stream's name.
type Addr struct {
	Conn net.Addr
	Name string
}

// Network is "mux".
func (a Addr) Network() string { return "mux" }

// String is the connection's address and the stream's name.
func (a Addr) String() string { return a.Conn.String() + "/" + a.Name }

// LocalAddr is an [Addr].
func (t *Stream) LocalAddr() net.Addr { return Addr{t.s.conn().LocalAddr(), t.ch.name} }

// RemoteAddr is an [Addr].
func (t *Stream) RemoteAddr() net.Addr { return Addr{t.s.conn().RemoteAddr(), t.ch.name} }

func (t *Stream) error(op string, err error) error {
	return &Error{Op: op, Channel: t.ch.num, Name: t.ch.name, Err: err, retry: refused(err)}
}
