package pgproxy

import (
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/internal/ratelimit"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// FailedLogins bounds the attempts with a wrong password of one client address as one user: Attempts at once, and then one
// each Per/Attempts. All users of an address together may fail ten times as often. An address that may not fail any more is
// refused (53300) before its password is checked, a right one too, until that time has passed. The zero value has no limit.
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
	byUser   ratelimit.Table[uint64] // by the hash of address and user
	bySource ratelimit.Table[netip.Addr]
	checking chan struct{} // has the passwords in clear text that are being checked: each costs a millisecond or more of a processor
}

func newFailures() failures {
	return failures{seed: maphash.MakeSeed(), checking: make(chan struct{}, max(runtime.GOMAXPROCS(0)/2, 1))}
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

// mayTry returns a refusal if too many logins have failed.
func (g *startup) mayTry(user string, c claim) error {
	f, limit := &g.proxy.failures, g.set.FailedLogins
	if !c.source.IsValid() || f.byUser.Left(c.user, limit.rate(1), clock()) > 0 && f.bySource.Left(c.source, limit.rate(usersOfSource), clock()) > 0 {
		return nil
	}
	return &refusal{code: pgwire.StateTooManyConnections, reason: listener.ReasonRateLimited,
		message: fmt.Sprintf("too many logins from this address with a wrong password for user %q", user),
		hint:    "Correct the password, and try again later; failed_logins of the listener is the limit."}
}

// try checks what a client has sent as a proof, unless too many have been wrong. It must not wait: what is checked at the same
// time goes beyond the limit.
func (g *startup) try(user string, check func() error) error {
	c := g.claimOf(user)
	if err := g.mayTry(user, c); err != nil {
		return err
	}
	err := check()
	if c.source.IsValid() && errors.Is(err, pgwire.ErrAuth) {
		f, limit := &g.proxy.failures, g.set.FailedLogins
		f.byUser.Take(c.user, limit.rate(1), clock())
		f.bySource.Take(c.source, limit.rate(usersOfSource), clock())
	}
	return err
}

// trySlowly is try for a check that computes for long. A few run at a time, and others wait.
func (g *startup) trySlowly(user string, check func() error) (err error) {
	fiber.Block(func() {
		checking := g.proxy.failures.checking
		checking <- struct{}{}
		defer func() { <-checking }()
		err = g.try(user, check)
	})
	return err
}
