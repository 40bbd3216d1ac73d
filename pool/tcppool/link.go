package tcppool

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/internal/idleconn"
	"github.com/headpond/headpond/pool"
)

// link is a connection in a pool. Conns are the loans of it, one after the other.
type link struct {
	net.Conn
	look *idleconn.Looker // whoever has the link may look; nobody else

	// state is that of the present loan: its number from loanShift on, flags, and the operations under way. A Conn changes it
	// only while the number is its own and ended is not set, so that one whose loan is over cannot touch the next.
	state    atomic.Uint64
	lease    pool.Lease[*link] // of the present loan
	deadline atomic.Bool       // one was set and has to be undone
	looked   time.Duration     // when the last look found it Silent, on the package's clock; 0 = none has
	loans    []Conn            // for loans to come
}

// The flags in link.state. Operations, which callers start, take the bits below: a million at once.
const (
	ended     = 1 << 20 // the loan is over
	broken    = 1 << 21 // a Read or Write has failed
	used      = 1 << 22 // there has been an operation
	loanShift = 23

	operations = ended - 1
)

// A look that found a link quiet counts for freshFor, which is below what a packet takes between two processes of one machine:
// what arrives within that time before a loan could as well arrive just behind its beginning.
const freshFor = 5 * time.Microsecond

// loansAtOnce is how many Conns are allocated together, 16 bytes each.
const loansAtOnce = 32

var began = time.Now()

func newLink(c net.Conn) *link { return &link{Conn: c, look: idleconn.New(c)} }

// loan makes the link a Conn's, for the holder of l.
func (k *link) loan(l pool.Lease[*link]) *Conn {
	n := k.state.Load()>>loanShift + 1
	if len(k.loans) == 0 {
		k.loans = make([]Conn, min(n, loansAtOnce)) // most are lent either once or often
	}
	c := &k.loans[0]
	k.loans = k.loans[1:]
	c.link, c.number, k.lease = k, n, l
	k.state.Store(n << loanShift)
	return c
}

// lent reports whether there has been a loan.
func (k *link) lent() bool { return k.state.Load()>>loanShift > 0 }

// fit reports whether the link may be lent. What has arrived on one that was never lent, such as the greeting of a server
// that speaks first, is for its first borrower.
func (k *link) fit() bool {
	now := time.Since(began)
	if k.looked != 0 && now-k.looked < freshFor {
		return true
	}
	state := k.look.Look()
	if state == idleconn.Silent {
		k.looked = now
		return true
	}
	return !k.lent() && state.Fit()
}

// rests reports whether the loan that ended with this state leaves the link as it has to be for the next.
func (k *link) rests(state uint64) bool {
	if state&(operations|broken) != 0 {
		return false
	}
	if k.deadline.Swap(false) && k.SetDeadline(time.Time{}) != nil {
		return false
	}
	if state&used != 0 {
		k.looked = 0 // something has arrived since, for the borrower, and it may be more than was read
	}
	return k.fit()
}
