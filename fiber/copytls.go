package fiber

import (
	"net"
	"time"
)

// restAfter is how long the fiber of a copyingByFiber keeps its stack while nothing arrives.
const restAfter = 100 * time.Millisecond

// copyingByFiber is the state of a CopyThen from or to a TLSConn. At most one fiber at a time runs proceed, or src has next for when there is
// something to read.
type copyingByFiber struct {
	loop  *loop
	src   Stream
	dst   net.Conn
	moved func(n int)
	then  func(readErr, writeErr error)
	next  func() // proceed, allocated once
}

// copyByFiber is CopyThen from or to a TLSConn.
func copyByFiber(src Stream, dst net.Conn, moved func(int), then func(readErr, writeErr error)) bool {
	f := currentFiber()
	if f == nil || !bothOn(f.loop, src, dst) {
		return false
	}
	l := f.loop
	if err := sendAhead(l, src, dst, moved); err != nil {
		l.spawn(func() { then(nil, err) })
		return true
	}
	if !bothOn(l, src, dst) { // while sendAhead waited
		return false
	}
	k := &copyingByFiber{loop: l, src: written(src).(Stream), dst: dst, moved: moved, then: then} //nolint:forcetypeassert // below a Stream is one
	k.next = k.proceed
	l.spawn(k.next)
	return true
}

// bothOn reports whether two connections live on l.
func bothOn(l *loop, a, b net.Conn) bool { return LoopOf(a) == l.id && LoopOf(b) == l.id }

// proceed is a fiber that copies until one of the connections ends, or until src rests.
func (k *copyingByFiber) proceed() {
	if readErr, writeErr, rests := k.copy(); !rests {
		k.then(readErr, writeErr)
	}
}

// copy copies. If it returns rests, next runs when there is something to read; then this fiber must no longer use k.
func (k *copyingByFiber) copy() (readErr, writeErr error, rests bool) {
	defer func() {
		if p := recover(); p != nil {
			readErr, writeErr = nil, k.loop.panicked(p)
		}
	}()
	for {
		switch ready, err := k.src.WaitReadableFor(restAfter); {
		case err != nil:
			return err, nil, false
		case ready:
			if readErr, writeErr = k.piece(); readErr != nil || writeErr != nil {
				return readErr, writeErr, false
			}
		case k.src.OnReadable(k.next):
			return nil, nil, true
		}
	}
}

// piece copies received data, if there is any. It waits with a buffer neither for the rest of a record nor for data after
// TLS's own messages.
func (k *copyingByFiber) piece() (readErr, writeErr error) {
	if t, ok := k.src.(*TLSConn); ok {
		_, readErr, writeErr = copyOnce(arrived{t}, k.dst, k.moved)
	} else {
		_, readErr, writeErr = copyOnce(k.src, k.dst, k.moved)
	}
	return readErr, writeErr
}

// arrived reads a TLSConn by readArrived.
type arrived struct{ *TLSConn }

// Read implements io.Reader; it may return 0 without an error.
func (a arrived) Read(p []byte) (int, error) { return a.readArrived(p) }
