package fiber

import (
	"net"
	"time"
)

// suspendAfter is how long the fiber of a copyingByFiber keeps its stack while nothing arrives.
const suspendAfter = 100 * time.Millisecond

// copyingByFiber is the state of a CopyThen if src or dst is not a Conn. Either a fiber runs runFiber, or next is set
// as the OnReadable function of src.
type copyingByFiber struct {
	loop  *loop // for its logger and its counters
	src   Stream
	dst   net.Conn
	moved func(n int)
	then  func(readErr, writeErr error)
	next  func() // the method value runFiber, kept because making one allocates
}

// copyByFiber implements CopyThen if src or dst is not a Conn.
func copyByFiber(src Stream, dst net.Conn, moved func(int), then func(readErr, writeErr error)) bool {
	f := currentFiber()
	if f == nil || LoopOf(src) == 0 || LoopOf(dst) == 0 {
		return false
	}
	if err := sendAhead(f.loop, src, dst, moved); err != nil {
		src.Go(func() { then(nil, err) })
		return true
	}
	from := written(src).(Stream) //nolint:forcetypeassert // below a Stream is one
	k := &copyingByFiber{loop: f.loop, src: from, dst: dst, moved: moved, then: then}
	k.next = k.runFiber
	from.Go(k.next)
	return true
}

// runFiber copies on a fiber, until one of the connections ends or nothing has arrived for suspendAfter.
func (k *copyingByFiber) runFiber() {
	if readErr, writeErr, suspended := k.copy(); !suspended {
		k.then(readErr, writeErr)
	}
}

// copy copies. If suspended is true, next runs when there is something to read, perhaps already now: the caller must no
// longer use k.
func (k *copyingByFiber) copy() (readErr, writeErr error, suspended bool) {
	defer func() {
		if p := recover(); p != nil {
			readErr, writeErr = nil, k.loop.panicked(p)
		}
	}()
	for {
		switch ready, err := k.src.WaitReadableFor(suspendAfter); {
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

// piece copies received data, if there is any. It never waits while it holds a buffer, not even for the remainder of a
// TLS record or after one of TLS's own messages.
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
