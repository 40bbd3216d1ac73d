package listener

import (
	"errors"
	"sync/atomic"
)

// Room bounds how many connections several Servers have open together, including
// queued ones, so that file descriptors are left for connections to
// backends. At the bound no Server accepts, and clients wait in
// the system's accept queue. The zero value has no bound. Methods may be called from
// any goroutine.
type Room struct{ most, open atomic.Int64 }

// Resize changes the bound; 0 = none. It closes no connection.
func (r *Room) Resize(most int) { r.most.Store(int64(most)) }

func (r *Room) full() bool {
	most := r.most.Load()
	return most > 0 && r.open.Load() >= most
}

var errNoRoom = errors.New("listener: the limit of open files leaves no room for more clients and their connections to backends")
