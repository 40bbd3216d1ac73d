package httpproxy

import (
	"context"
	"crypto/sha256"
	"net/netip"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/crypto/bcrypt"

	"github.com/headpond/headpond/fiber"
)

// Bounds of the password checks that wait, in the process. A check takes 50 ms or more.
const (
	maxHashing       = 1024 // of all sources; each takes a few hundred bytes
	maxHashingSource = 64   // of one source, which is a wait of some seconds
)

// hashing runs the password checks of all Users. A flood of guesses leaves half of the processors for other work.
var hashing = newHashQueue(max(runtime.GOMAXPROCS(0)/2, 1), func(f *flight) { go f.run() })

// flight is the check of one name and password, shared by all requests that send them.
type flight struct {
	users    *Users
	id       [sha256.Size]byte
	hash     []byte
	password []byte // a copy
	known    bool   // hash belongs to the user; false = the name is unknown
	source   netip.Addr
	done     chan struct{} // closed when v is set
	v        verdict
	waiters  int // number of requests that wait; guarded by users.flying
}

// compare runs bcrypt, also for an unknown user, so that the time does not reveal names. It waits until ctx ends at
// most.
func (u *Users) compare(ctx context.Context, source netip.Addr, list *userList, c credentials) verdict {
	f, v := u.joinFlight(source, list, c)
	if f == nil {
		return v
	}
	fiber.Block(func() {
		select {
		case <-f.done:
			v = f.v
		case <-ctx.Done():
			if v = givenUp; goneIn(ctx) {
				v = clientLeft
			}
		}
	})
	u.leaveFlight(f)
	return v
}

// joinFlight joins or starts the flight for credentials. It returns a verdict instead if that is known already, or if the queue
// is full.
func (u *Users) joinFlight(source netip.Addr, list *userList, c credentials) (*flight, verdict) {
	u.flying.Lock()
	defer u.flying.Unlock()
	f := u.flights[c.id]
	switch {
	case f != nil:
		f.waiters++
		return f, 0
	case u.right.has(c.id): // a flight has ended since the caller looked
		return nil, rightPassword
	case u.wrong.has(c.id):
		return nil, wrongPassword
	}
	f = &flight{users: u, id: c.id, hash: c.hash, known: c.hash != nil, password: slices.Clone(c.password), source: source, done: make(chan struct{}), waiters: 1}
	if !f.known {
		if f.hash = list.another(u.identify(c.name, nil, nil)); f.hash == nil {
			return nil, wrongPassword // the file has no users
		}
	}
	if !u.queue.enter(f) {
		return nil, tooBusy
	}
	if u.flights == nil {
		u.flights = map[[sha256.Size]byte]*flight{}
	}
	u.flights[c.id] = f
	return f, 0
}

// leaveFlight is called when a request no longer waits. It cancels a flight without waiters that has not begun.
func (u *Users) leaveFlight(f *flight) {
	u.flying.Lock()
	defer u.flying.Unlock()
	if f.waiters--; f.waiters == 0 && u.queue.leave(f) {
		delete(u.flights, f.id)
	}
}

// run checks the password, on a goroutine that has one of the places in hashing.
func (f *flight) run() {
	u := f.users
	u.hashed.Add(1)
	err := bcrypt.CompareHashAndPassword(f.hash, f.password)
	if f.v = wrongPassword; err == nil && f.known {
		f.v = rightPassword
		u.right.add(f.id)
	} else {
		u.wrong.add(f.id)
	}
	u.flying.Lock()
	delete(u.flights, f.id)
	u.flying.Unlock()
	close(f.done)
	u.queue.next()
}

// hashQueue holds the password checks that wait. Sources take turns, so that one source's guesses do not delay others'
// logins.
type hashQueue struct {
	mu      sync.Mutex // held for a few instructions; users.flying may be held before it
	free    int        // number of checks that may start now
	waiting int
	sources map[netip.Addr]*hashSource // sources with waiting flights
	turns   []*hashSource              // these sources, in the order of their turns
	start   func(*flight)              // must not wait
}

func newHashQueue(free int, start func(*flight)) *hashQueue {
	return &hashQueue{free: free, sources: map[netip.Addr]*hashSource{}, start: start}
}

// hashSource holds the waiting flights of one source.
type hashSource struct {
	addr    netip.Addr
	flights []*flight
}

// enter starts a flight or queues it; false = the queue is full.
func (q *hashQueue) enter(f *flight) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.free > 0 {
		q.free--
		q.start(f)
		return true
	}
	s := q.sources[f.source]
	if q.waiting >= maxHashing || s != nil && len(s.flights) >= maxHashingSource {
		return false
	}
	if s == nil {
		s = &hashSource{addr: f.source}
		q.sources[f.source] = s
		q.turns = append(q.turns, s)
	}
	s.flights = append(s.flights, f)
	q.waiting++
	return true
}

// next is called when a flight has ended. It starts the first flight of the source whose turn it is.
func (q *hashQueue) next() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		q.free++
		return
	}
	s := q.turns[0]
	q.turns = append(slices.Delete(q.turns, 0, 1), s)
	f := s.flights[0]
	q.remove(s, 0)
	q.start(f)
}

// leave removes a waiting flight; false = it has begun.
func (q *hashQueue) leave(f *flight) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.sources[f.source]
	if s == nil {
		return false
	}
	i := slices.Index(s.flights, f)
	if i >= 0 {
		q.remove(s, i)
	}
	return i >= 0
}

// remove removes the i-th flight of a source. The caller holds mu.
func (q *hashQueue) remove(s *hashSource, i int) {
	s.flights = slices.Delete(s.flights, i, i+1)
	q.waiting--
	if len(s.flights) == 0 {
		delete(q.sources, s.addr)
		q.turns = slices.DeleteFunc(q.turns, func(o *hashSource) bool { return o == s })
	}
}
