package fiber

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// TLSConn is a *tls.Conn whose one fiber may read while another writes. crypto/tls holds a sync.Mutex
// while it writes to the connection underneath, and takes it when reading as well, to send an alert or
// to answer a key update: were the writer to wait for a peer that does not read, the reader would hold
// the loop, and both for ever. So on fibers crypto/tls writes to memory, and Write sends that without
// the lock. On goroutines it is a *tls.Conn.
//
// The *tls.Conn inside must not be written to or closed on a fiber.
type TLSConn struct {
	*tls.Conn
	under   *gathering
	shaken  atomic.Bool // the handshake is over
	shaking Mutex       // held across the handshake: crypto/tls holds a sync.Mutex, too
	writing Mutex       // so that a Write is in one piece

	hasOne bool    // one is to be read first
	one    [1]byte // by Buffered or Quiet
	failed error   // of a Read that has not been asked for yet; told by the next

	breaks atomic.Bool // Close does, without close_notify
}

var _ Stream = (*TLSConn)(nil)

// TLSServer is tls.Server for fibers, over a Stream or what StreamOf makes one.
func TLSServer(c net.Conn, cfg *tls.Config) *TLSConn {
	under := &gathering{Stream: StreamOf(c)}
	return &TLSConn{Conn: tls.Server(under, cfg), under: under}
}

// TLSClient is tls.Client for fibers, over a Stream or what StreamOf makes one.
func TLSClient(c net.Conn, cfg *tls.Config) *TLSConn {
	under := &gathering{Stream: StreamOf(c)}
	return &TLSConn{Conn: tls.Client(under, cfg), under: under}
}

// tlsPiece is a record's worth.
const tlsPiece = 16 << 10

// farewell bounds how long close_notify may take, as in crypto/tls.
const farewell = 5 * time.Second

// NetConn returns the connection that TLSServer or TLSClient was given, as a Stream.
func (t *TLSConn) NetConn() net.Conn { return t.under.Stream }

// Read implements net.Conn.
func (t *TLSConn) Read(p []byte) (n int, err error) {
	if err := t.Handshake(); err != nil {
		return 0, err
	}
	switch {
	case len(p) == 0, !t.hasOne && t.failed == nil:
		return t.Conn.Read(p)
	case !t.hasOne:
		err, t.failed = t.failed, nil
		return 0, err
	}
	p[0], t.hasOne = t.one[0], false
	if len(p) > 1 && t.failed == nil {
		n = t.readNow(p[1:], readsNothing)
	}
	return 1 + n, nil
}

// readNow is Read of what has been received, by crypto/tls or as how says. An error is kept for the next
// Read, for crypto/tls tells of some only once.
func (t *TLSConn) readNow(p []byte, how reading) int {
	t.under.how = how
	defer func() { t.under.how = readsAll }()
	n, err := t.Conn.Read(p)
	if err != errNothing { //nolint:errorlint // crypto/tls returns it as it is
		t.failed = err
	}
	return n
}

// Buffered reports whether a Read has something to tell that the connection underneath knows nothing of
// any more: a record that was received together with another. It does not wait, and is for whoever
// reads, after the handshake.
func (t *TLSConn) Buffered() bool {
	if t.Handshake() != nil {
		return true
	}
	if !t.hasOne && t.failed == nil {
		t.hasOne = t.readNow(t.one[:], readsNothing) > 0
	}
	return t.hasOne || t.failed != nil
}

// Write implements net.Conn. After an error all later ones return it. Records are gathered and sent together, so that a failure
// counts as written what may have left in part: 0 means that nothing has.
func (t *TLSConn) Write(p []byte) (total int, err error) {
	if err := t.Handshake(); err != nil {
		return 0, err
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	for first := true; first || len(p) > 0; first = false {
		n, err := t.Conn.Write(p[:min(len(p), tlsPiece)])
		if err != nil {
			return total, err
		}
		total += n
		if err := t.under.flush(); err != nil {
			return total, err
		}
		p = p[n:]
	}
	return total, nil
}

// Handshake is HandshakeContext without a bound.
func (t *TLSConn) Handshake() error { return t.HandshakeContext(context.Background()) }

// HandshakeContext runs the handshake if it has not been run. On a fiber it runs on a goroutine meanwhile, for it
// computes for a while: see Block.
func (t *TLSConn) HandshakeContext(ctx context.Context) error {
	if t.shaken.Load() {
		return nil
	}
	t.shaking.Lock()
	defer t.shaking.Unlock()
	t.under.shaking = true
	var err error
	Block(func() { err = t.Conn.HandshakeContext(ctx) })
	t.under.shaking = false
	if alert, ok := t.under.alert(); ok && err != nil {
		err = &net.OpError{Op: "remote error", Err: alert}
	}
	if failed := t.under.flush(); err == nil {
		err = failed
	}
	t.shaken.Store(err == nil)
	return err
}

// Close implements net.Conn. It sends close_notify unless the connection is to be broken; see SetLinger.
func (t *TLSConn) Close() error {
	if t.breaks.Load() {
		return t.under.Stream.Close()
	}
	return t.Conn.Close()
}

// CloseWrite sends close_notify, which ends the writing half, behind what is being written.
func (t *TLSConn) CloseWrite() error {
	if onFiber() {
		_ = t.under.Stream.SetWriteDeadline(time.Now().Add(farewell))
	}
	t.writing.Lock()
	defer t.writing.Unlock()
	err := t.Conn.CloseWrite()
	if onFiber() {
		if failed := t.under.flush(); err == nil {
			err = failed
		}
		_ = t.under.Stream.SetWriteDeadline(time.Unix(1, 0))
	}
	return err
}

// SetDeadline implements net.Conn.
func (t *TLSConn) SetDeadline(at time.Time) error { return t.under.Stream.SetDeadline(at) }

// SetWriteDeadline implements net.Conn.
func (t *TLSConn) SetWriteDeadline(at time.Time) error { return t.under.Stream.SetWriteDeadline(at) }

// records holds *[]byte with room for a record, empty.
var records = sync.Pool{New: func() any { b := make([]byte, 0, tlsPiece+1<<10); return &b }}

// maxGathered is how much waits for a peer that does not read: a record, and answers to the key updates
// it sends meanwhile.
const maxGathered = 4 * tlsPiece

var errDeaf = errors.New("fiber: the TLS peer asks for more than it reads")

// reading is what a gathering's Read does.
type reading uint8

const (
	readsAll     reading = iota // and waits for it
	readsArrived                // without waiting, and without sending
	readsNothing
)

// gathering is what crypto/tls writes to: on a fiber it keeps the bytes.
type gathering struct {
	Stream
	how      reading // the reader's, as all up to emptied
	received tlsRecords
	emptied  bool              // crypto/tls has nothing left of what was received
	shaking  bool              // the handshake is under way
	tail     [alertRecord]byte // what was last received in it

	sending Mutex // held across I/O, by whoever sends

	mu      sync.Mutex // held for a few instructions
	pending *[]byte    // of records; nil = nothing
	err     error      // of sending
}

// Write implements net.Conn. On a fiber it does not wait.
func (g *gathering) Write(p []byte) (int, error) {
	if !onFiber() {
		return g.Stream.Write(p)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return 0, g.err
	}
	if g.pending == nil {
		g.pending = records.Get().(*[]byte)
	}
	if len(*g.pending) > maxGathered {
		g.err = errDeaf
		return 0, g.err
	}
	*g.pending = append(*g.pending, p...)
	return len(p), nil
}

// Read implements net.Conn. What is to be sent, an answer of the handshake for one, is sent first.
func (g *gathering) Read(p []byte) (int, error) {
	if g.how != readsArrived && g.waits() && g.sending.tryLock() {
		_ = g.send() // Write tells
		g.sending.Unlock()
	}
	if g.how == readsNothing || g.how == readsArrived && g.State().Idle() {
		return 0, errNothing
	}
	n, err := g.Stream.Read(p)
	if n > 0 {
		g.emptied = false
		g.received.pass(p[:n])
		if g.shaking {
			g.keepTail(p[:n])
		}
	}
	return n, err
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

// alert returns the alert that the peer ended the handshake with, if that was not encrypted. In TLS 1.3 many clients that refuse a
// certificate have no keys yet for what they send, and crypto/tls reports their alert as a record with a bad MAC.
func (g *gathering) alert() (tls.AlertError, bool) {
	if t := &g.tail; t[0] == typeAlert && t[1] == 3 && t[3] == 0 && t[4] == alertRecord-recordHeader {
		return tls.AlertError(t[alertRecord-1]), true
	}
	return 0, false
}

// errNothing is what a connection says that has nothing now. crypto/tls takes it for a time-out, after
// which it can be read again.
var errNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "fiber: nothing has been received" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// SetWriteDeadline leaves deadlines to TLSConn's methods: crypto/tls sets one around close_notify,
// which is sent after that.
func (g *gathering) SetWriteDeadline(at time.Time) error {
	if onFiber() {
		return nil
	}
	return g.Stream.SetWriteDeadline(at)
}

// Close sends close_notify, unless somebody is sending, who is interrupted then.
func (g *gathering) Close() error {
	if g.waits() && g.sending.tryLock() {
		_ = g.Stream.SetWriteDeadline(time.Now().Add(farewell))
		_ = g.send()
		g.sending.Unlock()
	}
	return g.Stream.Close()
}

// waits reports whether something is to be sent.
func (g *gathering) waits() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pending != nil && g.err == nil
}

// flush returns when everything gathered before it was called has been sent, or with the first error
// of sending.
func (g *gathering) flush() error {
	g.sending.Lock()
	defer g.sending.Unlock()
	return g.send()
}

// send sends what there is. sending is held.
func (g *gathering) send() error {
	for {
		g.mu.Lock()
		out, err := g.pending, g.err
		g.pending = nil
		g.mu.Unlock()
		if out == nil || err != nil {
			return err
		}
		_, err = g.Stream.Write(*out)
		*out = (*out)[:0]
		records.Put(out)
		if err != nil {
			g.mu.Lock()
			g.err = err
			g.mu.Unlock()
			return err
		}
	}
}
