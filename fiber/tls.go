package fiber

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// TLSConn is a *tls.Conn that one fiber may read while another writes. crypto/tls holds a
// sync.Mutex while it writes to the underlying connection, and a reader takes the same mutex to
// send an alert or to answer a key update. If the writer waited for a peer that does not read, the
// reader would block the loop. So crypto/tls writes to memory, and Write sends that data without the mutex. A Write that
// runs into a deadline ends the writing of a *tls.Conn for good. Here a later deadline lets the next Write go on with what was not
// sent, as on other connections; see Write.
//
// The *tls.Conn inside must not be written to or closed.
type TLSConn struct {
	*tls.Conn
	under         *gathering
	verifies      bool // the handshake may verify certificates of the peer
	handshakeDone atomic.Bool
	handshaking   Mutex // held across the handshake, as crypto/tls holds a sync.Mutex
	writing       Mutex // held across a Write, so that Writes do not mix

	hasPeeked bool    // peeked is to be read first
	peeked    [1]byte // read by Buffered or State
	failed    error   // the error of reading peeked, for the next Read

	resets atomic.Bool // Close resets, without close_notify
}

var _ Stream = (*TLSConn)(nil)

// TLSServer is tls.Server for fibers. c is adapted by StreamOf. Unless cfg asks for certificates of clients, the handshake
// runs on the fiber: functions of cfg must not hold the loop, and private keys should be from [TLSKey].
func TLSServer(c net.Conn, cfg *tls.Config) *TLSConn {
	under := &gathering{Stream: StreamOf(c)}
	return &TLSConn{Conn: tls.Server(under, cfg), under: under, verifies: cfg.ClientAuth != tls.NoClientCert}
}

// TLSClient is tls.Client for fibers. c is adapted by StreamOf.
func TLSClient(c net.Conn, cfg *tls.Config) *TLSConn {
	under := &gathering{Stream: StreamOf(c)}
	return &TLSConn{Conn: tls.Client(under, cfg), under: under, verifies: true}
}

// NotifiedEnd reports whether the end of the stream that a Read of c has returned was TLS's close_notify, and not just a FIN.
func NotifiedEnd(c net.Conn) bool {
	t, ok := c.(*TLSConn)
	return ok && !t.under.fin
}

// tlsPiece is the most payload of a record, in bytes.
const tlsPiece = 16 << 10

// closeNotifyTimeout bounds the sending of close_notify, as in crypto/tls.
const closeNotifyTimeout = 5 * time.Second

// NetConn returns the connection that TLSServer or TLSClient was given, as a Stream.
func (t *TLSConn) NetConn() net.Conn { return t.under.Stream }

// Read implements net.Conn.
func (t *TLSConn) Read(p []byte) (n int, err error) {
	if err := t.Handshake(); err != nil {
		return 0, err
	}
	switch {
	case len(p) == 0, !t.hasPeeked && t.failed == nil:
		return t.Conn.Read(p)
	case !t.hasPeeked:
		err, t.failed = t.failed, nil
		return 0, err
	}
	p[0], t.hasPeeked = t.peeked[0], false
	if len(p) > 1 && t.failed == nil {
		n = t.readNow(p[1:], readBuffered)
	}
	return 1 + n, nil
}

// readNow reads without waiting, as how specifies. An error is kept for the next Read, because crypto/tls returns some
// errors only once.
func (t *TLSConn) readNow(p []byte, how reading) int {
	t.under.how = how
	defer func() { t.under.how = readAll }()
	n, err := t.Conn.Read(p)
	if err != errNoData { //nolint:errorlint // crypto/tls returns it as it is
		t.failed = err
	}
	return n
}

// readArrived is Read after WaitReadable, with at most one Read of the connection underneath. It returns 0 and no error if
// no data or only a part of a record has arrived. p is not empty.
func (t *TLSConn) readArrived(p []byte) (n int, err error) {
	t.under.how = readOnce
	defer func() { t.under.how = readAll }()
	n, err = t.Read(p)
	if err == errNoData { //nolint:errorlint // crypto/tls returns it as it is
		err = nil
	}
	return n, err
}

// Buffered reports whether crypto/tls has something for Read that the connection underneath no longer has: a record that was
// received together with another. It does not wait, and is for the reader, after the handshake.
func (t *TLSConn) Buffered() bool {
	if t.Handshake() != nil {
		return true
	}
	if !t.hasPeeked && t.failed == nil {
		t.hasPeeked = t.readNow(t.peeked[:], readBuffered) > 0
	}
	return t.hasPeeked || t.failed != nil
}

// Write implements net.Conn. After an error all later Writes return it, but after that of a deadline only until a later one is set.
// Records are gathered and sent together, so a failed Write counts all data that may have been sent in part: 0 means that none was.
// If a deadline was the reason, the next Write begins with the records that are left.
func (t *TLSConn) Write(p []byte) (total int, err error) {
	if err := t.Handshake(); err != nil {
		return 0, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	for first := true; first || len(p) > 0; first = false {
		if err := t.under.begin(); err != nil {
			return total, err
		}
		n, err := t.Conn.Write(p[:min(len(p), tlsPiece)])
		total += n
		if failed := t.under.flush(); err == nil {
			err = failed
		}
		if err != nil {
			return total, err
		}
		p = p[n:]
	}
	return total, nil
}

// Handshake is HandshakeContext without a bound.
func (t *TLSConn) Handshake() error { return t.HandshakeContext(context.Background()) }

// HandshakeContext runs the handshake unless that was done. A fiber computes its share of it, some 200 µs, after other
// fibers of the loop, see runBulk. A goroutine runs a handshake that verifies certificates for a fiber, see Block: the peer
// chooses how many there are, and the roots may have to be read from files.
func (t *TLSConn) HandshakeContext(ctx context.Context) error {
	if t.handshakeDone.Load() {
		return nil
	}
	t.handshaking.Lock()
	defer t.handshaking.Unlock()
	if t.handshakeDone.Load() { // by another caller; the fields below belong to the reader now
		return nil
	}
	t.under.handshaking = true
	var err error
	if f := currentFiber(); f == nil || t.verifies {
		Block(func() { err = t.Conn.HandshakeContext(ctx) })
	} else {
		err = t.handshakeOn(ctx, f)
	}
	t.under.handshaking = false
	if alert, ok := t.under.alert(); ok && err != nil {
		err = &net.OpError{Op: "remote error", Err: alert}
	}
	if failed := t.under.flush(); err == nil {
		err = failed
	}
	t.handshakeDone.Store(err == nil)
	return err
}

// handshakeOn also starts after the other fibers, because the client's first message has often arrived already, and
// answering it is most of the computation.
func (t *TLSConn) handshakeOn(ctx context.Context, f *coroutine) error {
	f.bulk = true
	defer func() { f.bulk = false }()
	f.loop.ready(f)
	f.park()
	return t.Conn.HandshakeContext(ctx)
}

// Close implements net.Conn. It sends close_notify unless the connection is to be reset; see SetLinger.
func (t *TLSConn) Close() error {
	if t.resets.Load() {
		return t.under.Stream.Close()
	}
	_ = t.under.begin()
	return t.Conn.Close()
}

// CloseWrite sends close_notify, which ends the writing half, after all Writes under way. It takes 5 s at most, and no longer than up
// to the deadline for writing.
func (t *TLSConn) CloseWrite() error {
	_ = t.under.Stream.SetWriteDeadline(t.under.closeBy(time.Now()))
	t.writing.Lock()
	defer t.writing.Unlock()
	err := t.under.begin()
	if err == nil {
		err = t.Conn.CloseWrite()
		if failed := t.under.flush(); err == nil {
			err = failed
		}
	}
	_ = t.under.Stream.SetWriteDeadline(time.Unix(1, 0))
	return err
}

// SetDeadline implements net.Conn.
func (t *TLSConn) SetDeadline(at time.Time) error {
	defer t.under.extend(at) // after it: a reader that sends would still run into the old one
	return t.under.Stream.SetDeadline(at)
}

// SetWriteDeadline implements net.Conn.
func (t *TLSConn) SetWriteDeadline(at time.Time) error {
	defer t.under.extend(at)
	return t.under.Stream.SetWriteDeadline(at)
}

// records holds *[]byte with room for a record, empty.
var records = sync.Pool{New: func() any { b := make([]byte, 0, tlsPiece+1<<10); return &b }}

// maxGathered bounds the data kept for a peer that does not read: a record, and answers to the key updates that it
// sends.
const maxGathered = 4 * tlsPiece

var errNotReading = errors.New("fiber: the TLS peer sends key updates and does not read the answers")

// reading is a mode of gathering.Read.
type reading uint8

const (
	readAll      reading = iota // what arrives, and wait for it
	readArrived                 // what has arrived, without waiting and without sending
	readBuffered                // only data that crypto/tls has already
	readOnce                    // what one read gives; then as readBuffered
	readFed                     // only that data and fed, on the loop
)

// gathering is the connection that crypto/tls uses. It keeps the data that crypto/tls writes until flush.
type gathering struct {
	Stream
	how         reading // this and the fields up to emptied are the reader's
	fed         []byte  // received by a step of AttendThen, and not given to crypto/tls yet
	received    tlsRecords
	emptied     bool              // crypto/tls has returned everything that was received
	fin         bool              // a Read has returned io.EOF
	handshaking bool              // the handshake is under way
	tail        [alertRecord]byte // the last bytes received in the handshake

	sending Mutex // held across I/O while sending

	mu      sync.Mutex // held for a few instructions
	pending *[]byte    // of records; nil = nothing
	writes  bool       // whoever has called begin sends pending, with flush; a reader must not
	err     error      // of sending
	until   time.Time  // the deadline that TLSConn's methods have set for writing; zero = none
}

// begin is called before crypto/tls is given something to send, and flush then. A reader that sent it would not read, and its peer
// may read nothing until it has been read from.
func (g *gathering) begin() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = g.err == nil
	return g.err
}

// Write implements net.Conn. It does not wait. After the error of a deadline it gathers on: crypto/tls never writes again after an
// error.
func (g *gathering) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil && !errors.Is(g.err, os.ErrDeadlineExceeded) {
		return 0, g.err
	}
	if g.pending == nil {
		g.pending = records.Get().(*[]byte)
	}
	if len(*g.pending) > maxGathered {
		g.err = errNotReading
		return 0, g.err
	}
	*g.pending = append(*g.pending, p...)
	return len(p), nil
}

// Read implements net.Conn. It sends data first that was gathered outside of Writes, such as a handshake message.
func (g *gathering) Read(p []byte) (int, error) {
	if g.how == readFed {
		n := copy(p, g.fed)
		if g.fed = g.fed[n:]; n == 0 {
			return 0, errNoData
		}
		g.pass(p[:n])
		return n, nil
	}
	if g.how != readArrived && g.waits(true) && g.sending.tryLock() {
		_ = g.send(true) // the next Write returns the error
		g.sending.Unlock()
	}
	switch {
	case g.how == readBuffered, g.how == readArrived && g.State().Idle():
		return 0, errNoData
	case g.how == readOnce:
		g.how = readBuffered
	}
	n, err := g.Stream.Read(p)
	g.fin = g.fin || err == io.EOF
	if n > 0 {
		g.pass(p[:n])
	}
	return n, err
}

// pass notes b, which crypto/tls is given.
func (g *gathering) pass(b []byte) {
	g.emptied = false
	g.received.pass(b)
	if g.handshaking {
		g.keepTail(b)
	}
}

// keepTail keeps the last bytes of the stream, of which b are the newest.
func (g *gathering) keepTail(b []byte) {
	if k := len(b); k < alertRecord {
		copy(g.tail[:], g.tail[k:])
	}
	b = b[max(0, len(b)-alertRecord):]
	copy(g.tail[alertRecord-len(b):], b)
}

// alertRecord is the size of an alert that is not encrypted: type, version, length, level, description (RFC 8446, sections
// 5.1 and 6).
const alertRecord = recordHeader + 2

const (
	recordHeader = 5 // type, version and length of a TLS record (RFC 8446, section 5.1)
	typeAlert    = 21
)

// alert returns the alert that the peer ended the handshake with, if that was not encrypted. In TLS 1.3 many clients
// that refuse a certificate have no keys for sending yet, and crypto/tls reports their alert as a record with a bad
// MAC.
func (g *gathering) alert() (tls.AlertError, bool) {
	if t := &g.tail; t[0] == typeAlert && t[1] == 3 && t[3] == 0 && t[4] == alertRecord-recordHeader {
		return tls.AlertError(t[alertRecord-1]), true
	}
	return 0, false
}

// errNoData is the error of a Read that would wait. crypto/tls takes it for a time-out, after which it can be read again.
var errNoData net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "fiber: nothing has been received" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// SetWriteDeadline does nothing: crypto/tls sets a deadline around close_notify, which is sent only later. TLSConn's own methods
// set deadlines below.
func (g *gathering) SetWriteDeadline(time.Time) error { return nil }

// closeBy returns the deadline for sending close_notify. One that has passed, as that of the last answer on an idle connection, does
// not count.
func (g *gathering) closeBy(now time.Time) time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	by := now.Add(closeNotifyTimeout)
	if g.until.After(now) && g.until.Before(by) {
		return g.until
	}
	return by
}

// extend notes a deadline, and lets sending go on that ran into an earlier one.
func (g *gathering) extend(at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.until = at
	if errors.Is(g.err, os.ErrDeadlineExceeded) && (at.IsZero() || time.Until(at) > 0) {
		g.err = nil
	}
}

// Close sends close_notify, unless another fiber is sending, which is interrupted.
func (g *gathering) Close() error {
	if g.waits(false) && g.sending.tryLock() {
		_ = g.Stream.SetWriteDeadline(time.Now().Add(closeNotifyTimeout))
		_ = g.send(false)
		g.sending.Unlock()
	}
	return g.Stream.Close()
}

// busy reports whether something was gathered and not sent, or sending has failed.
func (g *gathering) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pending != nil || g.err != nil
}

// waits reports whether there is something to send, for a reader or for others.
func (g *gathering) waits(reader bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pending != nil && g.err == nil && !(reader && g.writes)
}

// flush returns when everything gathered before it was called has been sent, or with the first error
// of sending.
func (g *gathering) flush() error {
	g.sending.Lock()
	defer g.sending.Unlock()
	return g.send(false)
}

// send sends gathered data. sending is held. A reader does not send what is left to others.
func (g *gathering) send(reader bool) error {
	for {
		out, err := g.next(reader)
		if out == nil || err != nil {
			return err
		}
		n, err := g.Stream.Write(*out)
		if err != nil {
			g.failed(out, n, err)
			return err
		}
		*out = (*out)[:0]
		records.Put(out)
	}
}

// next takes what is to be sent next, nil if there is nothing.
func (g *gathering) next(reader bool) (out *[]byte, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil && !(reader && g.writes) {
		out, g.pending = g.pending, nil
	}
	if out == nil && !reader {
		g.writes = false // in the same moment: what a reader gathers from now on it has to send
	}
	return out, g.err
}

// failed notes an error of sending out, of which n bytes were sent. After a deadline the others are kept, see extend.
func (g *gathering) failed(out *[]byte, n int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	*out = (*out)[:copy(*out, (*out)[n:])]
	if g.pending != nil {
		*out = append(*out, *g.pending...)
	}
	g.pending = out
}
