package acme

import (
	"context"
	"errors"
	"testing"

	"github.com/headpond/headpond/internal/conntest"
)

// TestStorageClose: close waits for who has a lock, who may still store something. Nobody else begins anything.
func TestStorageClose(t *testing.T) {
	s, ctx := newStorage(t.TempDir()), t.Context()
	if err := s.Lock(ctx, "held"); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() { s.close(); close(closed) }()
	conntest.Eventually(t, "it is closing", func() bool {
		ok, err := s.TryLock(ctx, "other")
		if ok {
			_ = s.Unlock(ctx, "other")
		}
		return errors.Is(err, context.Canceled)
	})
	if err := s.Store(ctx, "a", []byte("text")); err != nil {
		t.Errorf("the one with the lock: %v", err)
	}
	select {
	case <-closed:
		t.Error("a lock is held")
	default:
	}
	if err := s.Unlock(ctx, "held"); err != nil {
		t.Error(err)
	}
	<-closed
	if err := s.Store(ctx, "a", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("store after close: %v", err)
	}
	if err := s.Lock(ctx, "held"); !errors.Is(err, context.Canceled) {
		t.Errorf("lock after close: %v", err)
	}
	if err := s.Delete(ctx, "a"); err != nil {
		t.Errorf("delete after close: %v", err)
	}
}
