package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// SelfResult is a generator's measurement of a server whose delays are known.
type SelfResult struct {
	// Known is the mean time from a request to its answer, by the server's own clock; Measured is the generator's mean.
	Known, Measured time.Duration
	// Omitted is the fraction of the operations due during a stall of the server that the generator did not record as
	// late.
	Omitted float64
}

// Error is the relative difference of Measured and Known.
func (r SelfResult) Error() float64 { return float64(r.Measured-r.Known) / float64(r.Known) }

// tolerance is the largest error of a usable generator.
const tolerance = 0.02

// Verdict returns an error for a generator that is not usable.
func (r SelfResult) Verdict() error {
	switch {
	case math.Abs(r.Error()) > tolerance:
		return fmt.Errorf("the generator measures a delay of %v as %v, %+.1f %%: the machine is busy with something else, or the generator is broken",
			r.Known.Round(time.Microsecond), r.Measured.Round(time.Microsecond), 100*r.Error())
	case r.Omitted > 5*tolerance:
		return fmt.Errorf("the generator does not show %.0f %% of the operations that a stall made late", 100*r.Omitted)
	}
	return nil
}

const (
	selfDelay = 10 * time.Millisecond
	selfRate  = 1000.0
	selfStall = 100 * time.Millisecond
)

// Self checks a generator in about half a second, against a server that answers after 10 ms and one that answers at
// once except for a stall of 100 ms. A failed check is repeated twice, because the machine may have been busy.
func Self(ctx context.Context) (r SelfResult, err error) {
	for range 3 {
		if r, err = self(ctx); err != nil || r.Verdict() == nil {
			break
		}
	}
	return r, err
}

func self(ctx context.Context) (SelfResult, error) {
	slow, err := newDelayed(func(int64) time.Duration { return selfDelay })
	if err != nil {
		return SelfResult{}, err
	}
	defer slow.close()
	r, err := runSelf(ctx, slow, Config{Conns: 2}, 250*time.Millisecond, 0)
	if err != nil {
		return SelfResult{}, err
	}
	res := SelfResult{Known: slow.mean(), Measured: r.Latency.Mean()}
	stalls, err := newDelayed(func(i int64) time.Duration {
		if i == 50 {
			return selfStall
		}
		return 0
	})
	if err != nil {
		return SelfResult{}, err
	}
	defer stalls.close()
	if r, err = runSelf(ctx, stalls, Config{Conns: 1}, 250*time.Millisecond, selfRate); err != nil {
		return SelfResult{}, err
	}
	// Half of the operations due during the stall waited for more than half of it.
	want := selfRate * (selfStall / 2).Seconds()
	res.Omitted = max(0, 1-float64(r.Latency.Above(selfStall/2))/want)
	return res, nil
}

func runSelf(ctx context.Context, s *delayed, cfg Config, d time.Duration, rate float64) (Result, error) {
	cfg.Addr, cfg.Workload = s.l.Addr().String(), Echo(8)
	c, err := Open(ctx, cfg)
	if err != nil {
		return Result{}, err
	}
	r, err := c.Run(ctx, d, rate)
	return r, errors.Join(err, r.Err, c.Close())
}

// delayed is an echo server that waits before each answer and records the waits.
type delayed struct {
	l     net.Listener
	delay func(i int64) time.Duration
	wg    sync.WaitGroup
	n     atomic.Int64
	total atomic.Int64
}

func newDelayed(delay func(int64) time.Duration) (*delayed, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &delayed{l: l, delay: delay}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *delayed) mean() time.Duration { return time.Duration(s.total.Load() / max(s.n.Load(), 1)) }

// close waits for the end of the connections. The client has closed them.
func (s *delayed) close() {
	_ = s.l.Close()
	s.wg.Wait()
}

func (s *delayed) accept() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() { s.serve(c) })
	}
}

func (s *delayed) serve(c net.Conn) {
	defer c.Close()
	var b [8]byte
	for {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return
		}
		began := time.Now()
		if d := s.delay(s.n.Add(1)); d > 0 {
			// Timers of the Go runtime are exact to a millisecond, the kernel's to 0.1 ms.
			ts := syscall.NsecToTimespec(int64(d))
			_ = syscall.Nanosleep(&ts, nil)
		}
		// Record before the answer is sent: afterwards this thread may wait for a processor while the client already
		// has the answer.
		s.total.Add(int64(time.Since(began)))
		if _, err := c.Write(b[:]); err != nil {
			return
		}
	}
}
