package fiber

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
)

// CopyThen does what src.CopyTo(dst, moved, spliced) does, but needs no stack while it copies; a
// stack is most of the memory of a session that only copies. It returns true if both connections
// live on the loop of the calling fiber, and no other fiber reads src or writes dst. Then the loop
// copies, and calls the function then once, with the results of CopyTo, on a fiber of that loop;
// perhaps before CopyThen has returned. Otherwise CopyThen returns false: it has copied nothing, or
// only the bytes of an Ahead, which CopyTo does not copy again. Bulk data is moved by a fiber with
// a stack, until a small piece has followed. A panic of moved or spliced is logged, counted in
// Stats.Panics, and becomes writeErr, which wraps ErrPanicked.
//
// If src or dst is not a Conn of an engine, such as a TLSConn or a stream of HTTP/2, a fiber of
// src's loop copies: cryptography, for one, would hold the loop. The fiber ends when nothing has
// arrived for 100 ms, and the next data starts another one. Each of the two may live on any loop.
// CopyThen does not check whether another fiber uses such connections.
func CopyThen(src Stream, dst net.Conn, moved, spliced func(n int), then func(readErr, writeErr error)) bool {
	c, receives := written(src).(*Conn)
	d, sends := written(dst).(*Conn)
	if !receives || !sends {
		return copyByFiber(src, dst, moved, then)
	}
	l := c.loop.Load()
	if d.loop.Load() != l || !l.isCaller() || l.current == nil || c.reading || c.then != nil || d.writing {
		return false
	}
	if err := sendAhead(l, src, d, moved); err != nil {
		l.spawn(func() { then(nil, err) })
		return true
	}
	if c.loop.Load() != l || d.loop.Load() != l || c.reading || d.writing { // while sendAhead waited
		return false
	}
	k := &copyingAlone{copying: newCopying(l, c, d, moved, spliced), then: then}
	c.reading, d.writing = true, true
	k.fiber = &k.own
	k.own.loop, k.own.alone = l, k
	if !k.tryStep() {
		l.ready(l.fiberFor(k))
	}
	return true
}

// sendAhead writes the bytes of src that were read before, see Ahead. A panic of moved becomes its error.
func sendAhead(l *loop, src Stream, dst net.Conn, moved func(int)) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = l.panicked(p)
		}
	}()
	for {
		a, ok := src.(*ahead)
		if !ok {
			return nil
		}
		if len(a.bytes) > 0 {
			n, err := dst.Write(a.bytes)
			a.bytes = nil
			if moved(n); err != nil {
				return err
			}
		}
		src = a.Stream
	}
}

// ErrPanicked is wrapped by the writeErr of a CopyThen that a panic ended: neither of the connections has failed.
var ErrPanicked = errors.New("fiber: copying has panicked")

// panicked logs and counts a panic that ended copying, and returns it as an error.
func (l *loop) panicked(p any) error {
	l.logger().Error("copying panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	return l.countPanic(p)
}

// countPanic counts a panic that ended copying and was logged, and returns it as an error.
func (l *loop) countPanic(p any) error {
	l.panics.Add(1)
	return fmt.Errorf("%w: %v", ErrPanicked, p)
}

// copyingAlone is the state of a CopyThen.
type copyingAlone struct {
	copying
	then func(readErr, writeErr error)
	own  coroutine // without a stack: the loop calls step, and then starts a fiber that calls runFiber
}

// tryStep calls the first step, and reports whether the loop must call further ones.
func (k *copyingAlone) tryStep() bool {
	return !k.own.callStep()
}

// bulk is splice. A panic ends it.
func (k *copyingAlone) bulk() (over bool) {
	defer func() {
		if p := recover(); p != nil {
			k.loop.logger().Error("splicing panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			k.own.fault, over = p, true
		}
	}()
	return k.splice()
}

// runFiber runs on a fiber, for what a step cannot do: it splices bulk data, and ends the copying.
// After bulk data the loop continues without a fiber.
func (k *copyingAlone) runFiber() {
	for k.own.fault == nil && !k.ended() && !k.bulk() {
		if k.tryStep() {
			return
		}
	}
	if fault := k.own.fault; fault != nil {
		k.writeErr = k.loop.countPanic(fault)
	}
	k.window.free()
	k.c.end(k.loop, &k.c.rd)
	k.d.end(k.loop, &k.d.wr)
	readErr := k.readErr
	if readErr != io.EOF {
		readErr = k.c.opError("read", readErr)
	}
	k.then(readErr, k.d.opError("write", k.writeErr))
}
