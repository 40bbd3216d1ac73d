package acme

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"
)

// storage is a folder whose users close can wait for: certmagic runs renewals on its own goroutines,
// which it does not wait for. Work between Lock and Unlock is completed. After close nothing is
// written again.
type storage struct {
	*certmagic.FileStorage

	mu     sync.Mutex
	idle   sync.Cond // of mu: busy is 0
	busy   int       // calls under way, and locks that are held
	closed bool
}

var (
	_ certmagic.Storage   = (*storage)(nil)
	_ certmagic.TryLocker = (*storage)(nil)
)

func newStorage(folder string) *storage {
	s := &storage{FileStorage: &certmagic.FileStorage{Path: folder}}
	s.idle.L = &s.mu
	return s
}

// enter reports whether a call may begin. After close only calls other than locks may, which may
// belong to work that has begun.
func (s *storage) enter(lock bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && (lock || s.busy == 0) {
		return false
	}
	s.busy++
	return true
}

func (s *storage) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy--; s.busy == 0 {
		s.idle.Broadcast()
	}
}

// close waits until no call and no lock is left.
func (s *storage) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for s.busy > 0 {
		s.idle.Wait()
	}
}

// Lock implements certmagic.Locker.
func (s *storage) Lock(ctx context.Context, name string) error {
	_, err := s.locked(func() (bool, error) { return true, s.FileStorage.Lock(ctx, name) })
	return err
}

// TryLock implements certmagic.TryLocker.
func (s *storage) TryLock(ctx context.Context, name string) (bool, error) {
	return s.locked(func() (bool, error) { return s.FileStorage.TryLock(ctx, name) })
}

// locked calls lock, and records a lock that it obtains.
func (s *storage) locked(lock func() (bool, error)) (ok bool, err error) {
	if !s.enter(true) {
		return false, context.Canceled
	}
	if ok, err = lock(); !ok || err != nil {
		s.leave()
	}
	return ok, err
}

// Unlock implements certmagic.Locker. The lock is held.
func (s *storage) Unlock(ctx context.Context, name string) error {
	defer s.leave()
	return s.FileStorage.Unlock(ctx, name)
}

// Store implements certmagic.Storage.
func (s *storage) Store(ctx context.Context, key string, value []byte) error {
	if !s.enter(false) {
		return context.Canceled
	}
	defer s.leave()
	return s.FileStorage.Store(ctx, key, value)
}

// Delete implements certmagic.Storage. Removing stored data is always permitted.
func (s *storage) Delete(ctx context.Context, key string) error {
	if s.enter(false) {
		defer s.leave()
	}
	return s.FileStorage.Delete(ctx, key)
}
