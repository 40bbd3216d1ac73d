package listener

import (
	"errors"
	"io"
	"sync/atomic"
)

// Room bounds the number of connections that several Servers together have open, including queued
// ones, so that there are file descriptors for connections to backends. At the bound no Server
// accepts, and clients wait in the system's accept queue. The zero value has no bound. Methods may
// be called from any goroutine.
type Room struct {
	most, open atomic.Int64
	guard      func(io.Closer) bool
}

// Resize changes the bound; 0 = none. It closes no connection.
func (r *Room) Resize(most int) { r.most.Store(int64(most)) }

// Guard sets a function that Servers call with each accepted connection. It returns false if it has
// closed the connection because the file descriptor is needed elsewhere; the Server then pauses
// before it accepts again. It must not wait. Call Guard before a Server uses the Room.
func (r *Room) Guard(guard func(c io.Closer) bool) { r.guard = guard }

// keeps calls the guard, and reports whether the accepted connection is still open.
func (r *Room) keeps(c io.Closer) bool { return r.guard == nil || r.guard(c) }

func (r *Room) full() bool {
	most := r.most.Load()
	return most > 0 && r.open.Load() >= most
}

var errNoRoom = errors.New("listener: the limit of open files leaves no room for more clients and their connections to backends")
