package pool_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headpond/headpond/pool"
)

func TestBoundedEndsAtItsTime(t *testing.T) {
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := pool.Bound(t.Context(), time.Now().Add(time.Second))
			defer b.End()
			if waits {
				<-b.Done()
			} else {
				time.Sleep(time.Second)
			}
			if !errors.Is(b.Err(), context.DeadlineExceeded) {
				t.Errorf("waits %v: the error is %v", waits, b.Err())
			}
			if at, ok := b.Deadline(); !ok || !at.Equal(time.Now()) {
				t.Errorf("waits %v: the deadline is %v, %v", waits, at, ok)
			}
		})
	}
}

func TestBoundedEnds(t *testing.T) {
	type key struct{}
	for _, asked := range []bool{false, true} {
		for _, byParent := range []bool{false, true} {
			parent, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
			b := pool.Bound(parent, time.Now().Add(time.Hour))
			if asked { // before its end
				if b.Err() != nil {
					t.Errorf("the error is %v before the end", b.Err())
				}
				child, stop := context.WithCancel(b)
				defer stop()
				defer func() { <-child.Done() }()
			}
			if byParent {
				cancel()
			} else {
				b.End()
			}
			<-b.Done()
			if !errors.Is(b.Err(), context.Canceled) || b.Value(key{}) != "value" {
				t.Errorf("asked %v, by parent %v: error %v, value %v", asked, byParent, b.Err(), b.Value(key{}))
			}
			b.End()
			cancel()
		}
	}
}
