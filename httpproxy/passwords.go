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

// Bounds of the passwords that wait to be checked, in the process. A check takes 50 ms or more.
const (
	maxHashing       = 1024 // of all sources together: a few hundred bytes each
	maxHashingSource = 64   // of one source: it waits for some seconds then
)

// hashing is where all Users check passwords. A flood of guesses leaves half of the processors to others.
var hashing = newHashQueue(max(runtime.GOMAXPROCS(0)/2, 1), func(f *flight) { go f.run() })

// flight checks one pair of a name and a password, for all requests that have it.
type flight struct {
	users    *Users
	id       [sha256.Size]byte
	hash     []byte
	password []byte // its own
	known    bool   // hash is that of the user, and not of any
	source   netip.Addr
	done     chan struct{} // closed when v is there
	v        verdict
	waiters  int // requests; guarded by users.flying
}

// compare runs bcrypt, for unknown users too, so that the time does not tell names. It waits for as long as ctx lasts.
func (u *Users) compare(ctx context.Context, source netip.Addr, list *userList, c credentials) verdict {
	f, v := u.board(source, list, c)
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
	u.alight(f)
	return v
}

// board returns the flight of a pair, or the verdict if there is one already, or no room.
func (u *Users) board(source netip.Addr, list *userList, c credentials) (*flight, verdict) {
	u.flying.Lock()
	defer u.flying.Unlock()
	f := u.flights[c.id]
	switch {
	case f != nil:
		f.waiters++
		return f, 0
	case u.right.has(c.id): // another request was faster
		return nil, rightPassword
	case u.wrong.has(c.id):
		return nil, wrongPassword
	}
	f = &flight{users: u, id: c.id, hash: c.hash, known: c.hash != nil, password: slices.Clone(c.password), source: source, done: make(chan struct{}), waiters: 1}
	if !f.known {
		if f.hash = list.another(u.identify(c.name, nil, nil)); f.hash == nil {
			return nil, wrongPassword // there is nobody
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

// alight is called when a request waits no more. A flight that nobody waits for, and that has not begun, is given up.
func (u *Users) alight(f *flight) {
	u.flying.Lock()
	defer u.flying.Unlock()
	if f.waiters--; f.waiters == 0 && u.queue.leave(f) {
		delete(u.flights, f.id)
	}
}

// run is a goroutine that has one of the places of hashing.
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

// hashQueue is who waits for a password to be checked. Sources take turns, so that the guesses of one do not delay the logins of others.
type hashQueue struct {
	mu      sync.Mutex // held for a few instructions; users.flying may be held before it
	free    int        // checks that may begin
	waiting int
	sources map[netip.Addr]*hashSource // with flights that wait
	turns   []*hashSource              // the same, in the order of their turns
	start   func(*flight)              // must not wait
}

func newHashQueue(free int, start func(*flight)) *hashQueue {
	return &hashQueue{free: free, sources: map[netip.Addr]*hashSource{}, start: start}
}

// hashSource is what waits of one source.
type hashSource struct {
	addr    netip.Addr
	flights []*flight
}

// enter begins a flight, or puts it in the queue; false = there is no room.
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

// next begins the first flight of the source whose turn it is, when another has ended.
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

// leave removes a flight that waits; false = it has begun.
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

// remove takes the i-th flight of a source out. mu is held.
func (q *hashQueue) remove(s *hashSource, i int) {
	s.flights = slices.Delete(s.flights, i, i+1)
	q.waiting--
	if len(s.flights) == 0 {
		delete(q.sources, s.addr)
		q.turns = slices.DeleteFunc(q.turns, func(o *hashSource) bool { return o == s })
	}
}
