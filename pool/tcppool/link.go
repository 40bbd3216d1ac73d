package tcppool

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
)

// link is a connection in a pool. Conns are the loans of it, one after the other.
type link struct {
	net.Conn
	stream fiber.Stream // Conn, to look at; for the pool, or the lease's holder

	// state holds, from bit loanShift on, the number of the present loan, or of the next one while the link is in the pool;
	// flags of that loan; and the number of its operations under way. A Conn changes it only while the loan's number is its
	// own. The end of a loan adds one to that number and clears the other bits, so that a Conn whose loan is over cannot
	// affect the next.
	state  atomic.Uint64
	lease  pool.Lease[*link] // of the present loan
	looked time.Duration     // when the last look found it Silent, on the package's clock; 0 = none has
	loans  []Conn            // of the loans from number first on
	first  uint64
}

// The flags in link.state. Operations, which callers start, take the bits below: a million at once.
const (
	broken    = 1 << 20 // a Read or Write has failed
	used      = 1 << 21 // there has been an operation
	timed     = 1 << 22 // a deadline was set and has to be cleared
	loanShift = 23

	operations = broken - 1
)

// A look that found a link silent is valid for freshFor. That is less than a packet takes between two processes of one
// machine: data that arrives so shortly before a loan could as well arrive just after its beginning.
const freshFor = 5 * time.Microsecond

// loansAtOnce is how many Conns are allocated together, 16 bytes each.
const loansAtOnce = 32

var began = time.Now()

func newLink(c net.Conn) *link {
	k := &link{Conn: c, stream: fiber.StreamOf(c)}
	k.state.Store(1 << loanShift)
	return k
}

// loan returns the Conn of a new loan, for the holder of l.
func (k *link) loan(l pool.Lease[*link]) *Conn {
	n := k.state.Load() >> loanShift
	i := n - k.first
	if i >= uint64(len(k.loans)) {
		i = k.prepare(n)
	}
	k.lease = l
	return &k.loans[i]
}

// prepare makes the Conns of loan n and of those that follow it, and returns the index of the first.
func (k *link) prepare(n uint64) uint64 {
	k.first, k.loans = n, make([]Conn, min(n, loansAtOnce)) // most are lent either once or often
	for i := range k.loans {
		k.loans[i] = Conn{link: k, number: n + uint64(i)}
	}
	return 0
}

// lent reports whether there has been a loan. It is for links that are in the pool.
func (k *link) lent() bool { return k.state.Load()>>loanShift > 1 }

// fit reports whether the link may be lent. Data that has arrived on one that was never lent, such as the banner of a
// server that speaks first, is for its first borrower.
func (k *link) fit() bool {
	now := time.Since(began)
	if k.looked != 0 && now-k.looked < freshFor {
		return true
	}
	k.looked = 0
	state := k.stream.State()
	if state == fiber.Silent {
		k.looked = now
		return true
	}
	return !k.lent() && state.Fit()
}

// reusable reports whether the loan that ended with this state leaves the link fit for the next. A link that was not used
// needs no look if it was silent before the loan: fit looks before the next one.
func (k *link) reusable(state uint64) bool {
	if state&(operations|broken) != 0 {
		return false
	}
	if state&timed != 0 && k.SetDeadline(time.Time{}) != nil {
		return false
	}
	if state&used == 0 && k.looked != 0 {
		return true
	}
	k.looked = 0 // data may have arrived that the borrower has not read
	return k.fit()
}
