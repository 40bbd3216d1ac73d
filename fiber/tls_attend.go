package fiber

import (
	"net"
	"time"
)

// A TLSConn can be attended without a fiber (AttendThen), for small pieces: its steps encrypt and decrypt on the loop, at
// most maxTry received bytes and one record that is sent.

// tlsTry is the most that maxTry received bytes can complete: their own records, and one that had arrived in part.
const tlsTry = maxTry + tlsPiece

// Attend returns false: requests with TLS are served by fibers.
func (t *TLSConn) Attend(func() bool) bool { return false }

// AttendThen is Stream's. In step, TryRead and TryReadEither return up to 32 KiB.
func (t *TLSConn) AttendThen(other net.Conn, step func() (over bool), then func(panicked any)) bool {
	return t.handshakeDone.Load() && t.under.AttendThen(other, step, then)
}

// attended reports whether the caller is a step of AttendThen on t's loop.
func (t *TLSConn) attended() bool {
	l := currentLoop()
	return l != nil && l.current != nil && l.current.alone != nil && t.Loop() == l.id && t.handshakeDone.Load()
}

// TryRead is for AttendThen.
func (t *TLSConn) TryRead(patience time.Duration) (b []byte, over bool) {
	b, _, over = t.tryRead(func() ([]byte, bool, bool) {
		b, over := t.under.TryRead(patience)
		return b, false, over
	})
	return b, over
}

// TryReadEither is for AttendThen.
func (t *TLSConn) TryReadEither(other net.Conn, patience time.Duration) (b []byte, otherReady, over bool) {
	return t.tryRead(func() ([]byte, bool, bool) { return t.under.TryReadEither(other, patience) })
}

// tryRead returns what crypto/tls has, or else can decrypt of the bytes from below. over is true after an error, which
// Read returns.
func (t *TLSConn) tryRead(below func() (b []byte, otherReady, over bool)) (b []byte, otherReady, over bool) {
	for {
		if !t.attended() || t.hasPeeked || t.failed != nil {
			return nil, false, true
		}
		if b = t.decrypt(); len(b) > 0 || t.failed != nil {
			return b, false, len(b) == 0
		}
		received, otherReady, over := below()
		if len(received) == 0 {
			return nil, otherReady, over
		}
		t.under.fed = received
	}
}

// decrypt returns all data that crypto/tls has or finds in under.fed, which is empty afterwards.
func (t *TLSConn) decrypt() []byte {
	l := currentLoop()
	if l.decrypted == nil {
		l.decrypted = new([tlsTry]byte)
	}
	n := 0
	for n < tlsTry && t.failed == nil {
		k := t.readNow(l.decrypted[n:], readFed)
		if k == 0 {
			break
		}
		n += k
	}
	t.under.fed = nil
	if t.under.waits(true) { // the answer to a key update
		t.under.trySend()
	}
	return l.decrypted[:n]
}

// TryWrite is for AttendThen. It accepts p, or at most a record of it, or nothing. If the socket has no room for all of an
// accepted record, a fiber sends the rest, and TryWrite accepts nothing until that is done. A Write, also one without data,
// waits for it; Close does not.
func (t *TLSConn) TryWrite(p []byte) (n int) {
	if !t.attended() || !t.writing.tryLock() {
		return 0
	}
	defer t.writing.Unlock()
	if t.under.busy() {
		return 0
	}
	n, err := t.Conn.Write(p[:min(len(p), tlsPiece)])
	if err != nil {
		return 0 // Write returns it again
	}
	t.under.trySend()
	return n
}

// trySend sends gathered data as far as there is room, and lets a fiber send the rest. It does not wait.
func (g *gathering) trySend() {
	if !g.sending.tryLock() {
		return // a fiber sends it all
	}
	defer g.sending.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.pending
	if out == nil || g.err != nil {
		return
	}
	n := g.Stream.TryWrite(*out)
	if n < len(*out) {
		*out = (*out)[:copy(*out, (*out)[n:])]
		g.Stream.Go(func() { _ = g.flush() }) // the next Write returns the error
		return
	}
	g.pending = nil
	*out = (*out)[:0]
	records.Put(out)
}
