package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// FailedLogins bounds the attempts with a wrong password of one client address as one user: Attempts at once, and then one
// each Per/Attempts. All users of an address together may fail ten times as often. A login beyond that waits for its turn before
// its password is checked, a right one too, and is refused (53300) if that would take more than some seconds. The zero value
// has no limit.
// An address is an IPv4 address, or the /64 network of an IPv6 address. Clients without one are not limited.
type FailedLogins struct {
	Attempts int
	Per      time.Duration // 0 = a second
}

// verify returns the problem of f.
func (f FailedLogins) verify() error {
	if f.Attempts < 0 || f.Per < 0 {
		return fmt.Errorf("FailedLogins %+v is negative", f)
	}
	return nil
}

// rate returns the limit as one of a user, or of all users.
func (f FailedLogins) rate(users int) ratelimit.Rate {
	per := f.Per
	if per == 0 {
		per = time.Second
	}
	return ratelimit.Rate{Count: f.Attempts * users, Per: per}
}

// usersOfSource is how many users of an address may fail as often as one may. Without this limit somebody could guess as often
// as there are names to try.
const usersOfSource = 10

// failures are the failed logins of clients. They outlive changes of the settings.
type failures struct {
	seed     maphash.Seed
	byUser   attempts[uint64] // by the hash of address and user
	bySource attempts[netip.Addr]
	checking chan struct{} // has the passwords in clear text that are being checked: each costs a millisecond or more of a processor
}

func newFailures() failures {
	return failures{seed: maphash.MakeSeed(), checking: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))}
}

// attempts are the failed logins by key, and the logins that wait until one more may fail. They wait in a queue, so that one
// with the right password has its turn beside somebody who guesses on some connections at a time. The password is checked only
// then: an earlier answer to a right one would tell the others from it.
type attempts[K comparable] struct {
	failed ratelimit.Table[K]
	mu     sync.Mutex // held for a few instructions
	queues map[K]*loginQueue
}

// loginQueue has the logins of a key that wait. It exists while there are any.
type loginQueue struct {
	turn chan struct{} // full while the first one waits for its time, or is checked
	n    int           // of all; guarded by attempts.mu
}

// mostLoginWait bounds the wait, and so the logins in a queue: clients that wait longer for a login give up.
const mostLoginWait = 5 * time.Second

// enter waits until one more login of a key may fail, behind those that wait already. leave is called after the check. ok is
// false if ctx has ended, or the time for the login, or at once if the wait would be too long.
func (a *attempts[K]) enter(ctx context.Context, until time.Time, key K, r ratelimit.Rate) (leave func(), ok bool) {
	a.mu.Lock()
	q, wait := a.queues[key], a.failed.Level(key, r, clock()).Wait
	if q == nil && wait == 0 {
		a.mu.Unlock()
		return func() {}, true
	}
	if q == nil {
		q = &loginQueue{turn: make(chan struct{}, 1)}
	}
	if q.tooLong(wait, r) {
		a.mu.Unlock()
		return nil, false
	}
	if a.queues == nil {
		a.queues = map[K]*loginQueue{}
	}
	a.queues[key] = q
	q.n++
	a.mu.Unlock()
	fiber.Block(func() {
		ctx, stop := context.WithDeadline(ctx, until)
		defer stop()
		ok = a.await(ctx, key, r, q)
	})
	if !ok {
		a.leave(key, q)
		return nil, false
	}
	return func() {
		<-q.turn
		a.leave(key, q)
	}, true
}

// tooLong reports whether a further login would have to wait for too long.
func (q *loginQueue) tooLong(wait time.Duration, r ratelimit.Rate) bool {
	return wait+time.Duration(q.n)*r.Per/time.Duration(r.Count) > mostLoginWait
}

// hopeless reports whether enter would return at once that the wait is too long.
func (a *attempts[K]) hopeless(key K, r ratelimit.Rate) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := a.queues[key]
	if q == nil {
		q = &loginQueue{}
	}
	return q.tooLong(a.failed.Level(key, r, clock()).Wait, r)
}

// await waits to be the first in the queue, and then for its time. It reports false if ctx has ended.
func (a *attempts[K]) await(ctx context.Context, key K, r ratelimit.Rate, q *loginQueue) bool {
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	for {
		wait := a.failed.Level(key, r, clock()).Wait
		if wait == 0 {
			return true
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			<-q.turn
			return false
		}
	}
}

// leave takes a login out of its queue.
func (a *attempts[K]) leave(key K, q *loginQueue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if q.n--; q.n == 0 {
		delete(a.queues, key)
	}
}

// claim is who claims to be a user.
type claim struct {
	source netip.Addr // zero: it has no address, and is not limited
	user   uint64
}

// claimOf returns the claim of the client.
func (g *startup) claimOf(user string) (c claim) {
	if g.set.FailedLogins.Attempts == 0 {
		return c
	}
	if c.source = g.source(); c.source.IsValid() {
		c.user = maphash.String(g.proxy.failures.seed, c.source.String()+" "+user)
	}
	return c
}

// source returns the address of the client, that of its network for IPv6, the zero Addr if it has none.
func (g *startup) source() netip.Addr {
	from, _ := g.accepted.Client()
	addr, ok := from.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(addr.IP)
	if ip = ip.Unmap(); ip.Is6() {
		const network = 64
		p, _ := ip.Prefix(network)
		ip = p.Addr()
	}
	return ip
}

// mayTry returns a refusal if the client's password would not be checked.
func (g *startup) mayTry(user string) error {
	c, f, limit := g.claimOf(user), &g.proxy.failures, g.set.FailedLogins
	if c.source.IsValid() && (f.byUser.hopeless(c.user, limit.rate(1)) || f.bySource.hopeless(c.source, limit.rate(usersOfSource))) {
		return errTooManyFailed(user)
	}
	return nil
}

// errTooManyFailed is the refusal of a login that would have to wait for too long.
func errTooManyFailed(user string) error {
	return &refusal{code: pgwire.StateTooManyConnections, reason: listener.ReasonRateLimited,
		message: fmt.Sprintf("too many logins from this address with a wrong password for user %q", user),
		hint:    "Correct the password, and try again later; failed_logins of the listener is the limit."}
}

// How a check computes: quickly, or for so long that only a few run at a time and others wait.
const (
	quickly = false
	slowly  = true
)

// try checks what a client has sent as a proof. If too many have been wrong, it waits before. check must not wait: what is
// checked at the same time goes beyond the limit.
func (g *startup) try(ctx context.Context, user string, slow bool, check func() error) (err error) {
	c := g.claimOf(user)
	for checked := false; !checked; {
		leave, ok := g.enter(ctx, c)
		if !ok {
			return errTooManyFailed(user)
		}
		if !slow {
			checked, err = g.check(c, check)
		} else {
			fiber.Block(func() {
				checking := g.proxy.failures.checking
				checking <- struct{}{}
				defer func() { <-checking }()
				checked, err = g.check(c, check)
			})
		}
		leave()
	}
	return err
}

// enter waits until a login of the user, and one of the address, may fail; see attempts.enter. The first in the queue of the
// user may wait in that of the address, so the others behind it may wait for longer than they would by their own queue.
func (g *startup) enter(ctx context.Context, c claim) (leave func(), ok bool) {
	if !c.source.IsValid() {
		return func() {}, true
	}
	f, limit, until := &g.proxy.failures, g.set.FailedLogins, g.accepted.Accepted().Add(g.set.LoginTimeout)
	leaveUser, ok := f.byUser.enter(ctx, until, c.user, limit.rate(1))
	if !ok {
		return nil, false
	}
	leaveSource, ok := f.bySource.enter(ctx, until, c.source, limit.rate(usersOfSource))
	if !ok {
		leaveUser()
		return nil, false
	}
	return func() { leaveSource(); leaveUser() }, true
}

// check runs check and counts its failure, unless others have failed meanwhile so often that the login has to wait again.
func (g *startup) check(c claim, check func() error) (checked bool, err error) {
	if !c.source.IsValid() {
		return true, check()
	}
	f, ofUser, ofSource := &g.proxy.failures, g.set.FailedLogins.rate(1), g.set.FailedLogins.rate(usersOfSource)
	if f.byUser.failed.Level(c.user, ofUser, clock()).Wait > 0 || f.bySource.failed.Level(c.source, ofSource, clock()).Wait > 0 {
		return false, nil
	}
	if err = check(); errors.Is(err, pgwire.ErrAuth) {
		f.byUser.failed.Take(c.user, ofUser, clock())
		f.bySource.failed.Take(c.source, ofSource, clock())
	}
	return true, err
}
