// Package duplex has the rules for the two directions of a connection that another protocol was upgraded to: how they end,
// and for how long both may be silent. Moving the bytes is the business of its users.
package duplex

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Tunnel is the state of both directions between a client and a server. The exported members are set before Begin.
type Tunnel struct {
	// ClientGone and ServerGone wrap the errors of their connections.
	ClientGone, ServerGone error
	// Silent is the error of a tunnel in which no byte has moved for the time given to Begin.
	Silent error
	// Close closes both connections with the tunnel's error, by a reset where one must not take what it got for the whole. It
	// is called once at most, by any goroutine.
	Close func(err error, resetClient, resetServer bool)

	in, out atomic.Int64 // bytes that went to the server, to the client
	began   time.Time
	moved   atomic.Int64  // when the last byte went to either side, in ns since began: a step of the wall clock changes nothing
	idle    time.Duration // 0 = no limit
	timer   *time.Timer   // nil = no limit
	ended   sync.Once     // the first failure ends both directions
	err     error         // that failure; read it only when both directions have ended

	clientWhole, serverWhole atomic.Bool // each has got the other one's end, after all that came before it
}

// Begin starts the clock. The limit holds for both directions together, and also while neither side reads.
func (t *Tunnel) Begin(idle time.Duration) {
	t.began, t.idle = time.Now(), idle
	if idle > 0 {
		t.timer = time.AfterFunc(math.MaxInt64, t.check)
		t.timer.Reset(idle) // only now, so that check finds the timer
	}
}

// check ends the tunnel if it has been silent for too long, and otherwise sets the timer again. The timer calls it.
func (t *Tunnel) check() {
	if left := t.idle - t.Silence(); left > 0 {
		t.timer.Reset(left)
		return
	}
	t.Fail(t.Silent)
}

// Sent counts n bytes that went to the server or, if not, to the client.
func (t *Tunnel) Sent(toServer bool, n int) {
	count := &t.out
	if toServer {
		count = &t.in
	}
	count.Add(int64(n))
	t.moved.Store(int64(time.Since(t.began)))
}

// Traffic returns how many bytes went to the server, and to the client.
func (t *Tunnel) Traffic() (in, out int64) { return t.in.Load(), t.out.Load() }

// Lasted returns how long ago the tunnel began.
func (t *Tunnel) Lasted() time.Duration { return time.Since(t.began) }

// Silence returns for how long no byte has moved.
func (t *Tunnel) Silence() time.Duration {
	return time.Since(t.began) - time.Duration(t.moved.Load())
}

// Ended handles the end of the direction to the server or, if not, to the client: the end of the stream of src is passed on
// to dst, and a failure of either ends both directions. whole reports that src has ended its stream.
func (t *Tunnel) Ended(toServer bool, src, dst interface{ CloseWrite() error }, readErr, writeErr error) (whole bool) {
	srcGone, dstGone, got := t.ServerGone, t.ClientGone, &t.clientWhole
	if toServer {
		srcGone, dstGone, got = t.ClientGone, t.ServerGone, &t.serverWhole
	}
	switch {
	case readErr == io.EOF:
		got.Store(true)
		if err := dst.CloseWrite(); errors.Is(err, errors.ErrUnsupported) {
			_ = src.CloseWrite()
			t.Fail(nil) // dst cannot be half-closed
		}
		return true
	case readErr != nil:
		t.Reset(fmt.Errorf("%w: %w", srcGone, readErr))
	default:
		t.Reset(fmt.Errorf("%w: %w", dstGone, writeErr))
	}
	return false
}

// Reset is Fail after one side, or the proxy itself, has failed. A side must not take what it got for the whole, unless it is: then a
// reset could cost it what it has not read.
func (t *Tunnel) Reset(err error) { t.end(err, true) }

// Fail ends both directions with the error; only the first call of Fail and Reset has an effect.
func (t *Tunnel) Fail(err error) { t.end(err, false) }

func (t *Tunnel) end(err error, resets bool) {
	t.ended.Do(func() {
		t.err = err
		t.Close(err, resets && !t.clientWhole.Load(), resets && !t.serverWhole.Load())
	})
}

// End ends the tunnel, whose directions have ended: Close is not called any more. It returns the error of Fail or Reset, nil
// if both sides have ended their streams.
func (t *Tunnel) End() error {
	if t.timer != nil {
		t.timer.Stop()
	}
	t.ended.Do(func() {})
	return t.err
}
