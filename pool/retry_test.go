package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

// retrier is a Pool of any resource.
type retrier interface {
	Retry()
	Renew()
}

// eachRetry runs a test with each method that makes a pool open again at once.
func eachRetry(t *testing.T, test func(t *testing.T, retry func(retrier))) {
	t.Helper()
	for name, retry := range map[string]func(retrier){"Retry": retrier.Retry, "Renew": retrier.Renew} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, retry) })
		})
	}
}

// TestRetry mends a backend while its pool waits between attempts.
func TestRetry(t *testing.T) {
	eachRetry(t, func(t *testing.T, retry func(retrier)) {
		fails := errDown
		p, err := pool.New(pool.Config[int]{
			Name:   "p",
			Open:   func(context.Context) (int, error) { return 0, fails },
			Close:  func(int) {},
			Limits: pool.Limits{MaxSize: 2, AcquireTimeout: time.Minute},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 8 {
			if _, err := p.Acquire(t.Context()); !errors.Is(err, pool.ErrOpen) {
				t.Fatal(err)
			}
		}
		fails = nil
		if _, err := p.Acquire(t.Context()); !errors.Is(err, errDown) {
			t.Fatalf("%v: the pool does not wait between attempts, so that the test shows nothing", err)
		}
		retry(p)
		began := time.Now()
		l, err := p.Acquire(t.Context())
		if err != nil || time.Since(began) > 0 {
			t.Fatalf("afterwards: %v in %v", err, time.Since(began))
		}
		retry(p) // nothing has failed
		l.Release()
		p.Close()
		retry(p)
	})
}

// TestRetryServesWaiters has a caller wait for the next attempt when the pool is to open again.
func TestRetryServesWaiters(t *testing.T) {
	eachRetry(t, func(t *testing.T, retry func(retrier)) {
		b := &backend{t: t}
		p := b.start(pool.Limits{MaxSize: 2, AcquireTimeout: time.Minute})
		held := acquire(t, p)
		b.set(func() { b.down = true })
		_, _ = p.Acquire(t.Context())
		waits := begin(ctx, p) // a connection is in use, so that the pool may wait before the next attempt
		synctest.Wait()
		want(t, "waiting", p.Stats().Waiting, 1)
		b.set(func() { b.down = false })
		began := time.Now()
		retry(p)
		synctest.Wait()
		if !waits.done || waits.err != nil || time.Since(began) > 0 {
			t.Fatalf("the waiter: served %v, %v after %v", waits.done, waits.err, time.Since(began))
		}
		waits.lease.Release()
		held.Release()
		b.end(p)
	})
}
