package tcppool

import (
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/pool"
)

// link is a connection in a pool. Conns are the loans of it, one after the other.
type link struct {
	net.Conn
	stream fiber.Stream // Conn, to look at; for the pool, or the lease's holder

	// state holds, from bit loanShift on, the number of the current loan, or of the next one while the link is in the pool;
	// flags of that loan; and the number of its operations under way. A Conn changes it only while the loan's number is its
	// own. The end of a loan adds one to that number and clears the other bits, so that a Conn whose loan is over cannot
	// affect the next.
	state     atomic.Uint64
	lease     pool.Lease[*link] // of the current loan
	checkedAt time.Duration     // when the last look found it Silent, on the package's clock; 0 = none has
	loans     *loans            // the last loan is one of these, or the next will be
}

// loans are the Conns of consecutive loans of a link, allocated together. Every loan has its own Conn, so that its use
// after the end of the loan is recognised. A loan allocates only its Conn, so that is one word: its number follows from
// its position.
type loans struct {
	link  *link
	first uint64 // number of the first loan
	conns [loansAtOnce]Conn
}

// loansAtOnce fills an allocation of 256 bytes.
const loansAtOnce = 30

func newLoans(k *link, first uint64) *loans {
	l := &loans{link: k, first: first}
	for i := range l.conns {
		l.conns[i].loans = l
	}
	return l
}

// number is the number of c's loan; for a copy of a Conn, which lies elsewhere, it is no loan's.
func (l *loans) number(c *Conn) uint64 {
	at := uintptr(unsafe.Pointer(c)) - uintptr(unsafe.Pointer(&l.conns[0]))
	return l.first + uint64(at/unsafe.Sizeof(*c))
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

var began = time.Now()

func newLink(c net.Conn) *link {
	k := &link{Conn: c, stream: fiber.StreamOf(c)}
	k.state.Store(1 << loanShift)
	k.loans = newLoans(k, 1)
	return k
}

// loan returns the Conn of a new loan, for the holder of l.
func (k *link) loan(l pool.Lease[*link]) *Conn {
	n := k.state.Load() >> loanShift
	if n-k.loans.first >= loansAtOnce {
		k.loans = newLoans(k, n)
	}
	k.lease = l
	return &k.loans.conns[n-k.loans.first]
}

// lent reports whether there has been a loan. It is for links that are in the pool.
func (k *link) lent() bool { return k.state.Load()>>loanShift > 1 }

// fit reports whether the link may be lent. Data that has arrived on one that was never lent, such as the banner of a
// server that speaks first, is for its first borrower.
func (k *link) fit() bool {
	now := time.Since(began)
	if k.checkedAt != 0 && now-k.checkedAt < freshFor {
		return true
	}
	k.checkedAt = 0
	state := k.stream.State()
	if state == fiber.Silent {
		k.checkedAt = now
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
	if state&used == 0 && k.checkedAt != 0 {
		return true
	}
	k.checkedAt = 0 // data may have arrived that the borrower has not read
	return k.fit()
}
