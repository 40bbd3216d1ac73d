package pgproxy

import (
	"fmt"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgwire"
)

// ClientLimits bounds the clients that a Proxy serves at a time, by the names that they log in with. A limit counts after
// authentication, so that nobody can use up another user's; 0 = no limit. A client beyond it gets 53300, with a server's own
// words. Clients of the Console are not counted.
type ClientLimits struct {
	PerUser, PerDatabase int
	// Users and Databases have the limits of some, in place of PerUser and PerDatabase.
	Users, Databases map[string]int
}

// verify returns what is wrong.
func (l ClientLimits) verify() error {
	least := min(l.PerUser, l.PerDatabase)
	for _, all := range []map[string]int{l.Users, l.Databases} {
		for _, n := range all {
			least = min(least, n)
		}
	}
	if least < 0 {
		return fmt.Errorf("a limit of MaxClients is %d: want 0 or more", least)
	}
	return nil
}

// check returns an error if there are as many clients of the user or of the database as there may be.
func (l *ClientLimits) check(now *clientCounts, login *Login) error {
	for _, c := range []struct {
		what, name string
		count      int
		limits     map[string]int
		limit      int
	}{
		{"role", login.User, now.users[login.User], l.Users, l.PerUser},
		{"database", login.Database, now.databases[login.Database], l.Databases, l.PerDatabase},
	} {
		limit := c.limit
		if own, ok := c.limits[c.name]; ok {
			limit = own
		}
		if limit > 0 && c.count >= limit {
			return &refusal{code: pgwire.StateTooManyConnections, reason: listener.ReasonRejected,
				message: fmt.Sprintf("too many connections for %s %q", c.what, c.name),
				hint:    fmt.Sprintf("The gateway lets %d in at a time; see \"max_clients\".", limit)}
		}
	}
	return nil
}

// clientCounts has how many clients each user and each database has.
type clientCounts struct{ users, databases map[string]int }

func newClientCounts() clientCounts {
	return clientCounts{users: map[string]int{}, databases: map[string]int{}}
}

// add counts n more clients of a login, which may be negative.
func (c *clientCounts) add(login *Login, n int) {
	for _, t := range []struct {
		counts map[string]int
		name   string
	}{{c.users, login.User}, {c.databases, login.Database}} {
		if t.counts[t.name] += n; t.counts[t.name] == 0 {
			delete(t.counts, t.name)
		}
	}
}

// register makes a client known for cancel requests and drains, unless there are too many.
func (p *Proxy) register(c *Client, set *settings) error {
	counted := !set.isConsole(c.Login)
	p.mu.Lock()
	defer p.mu.Unlock()
	if counted {
		if err := set.MaxClients.check(&p.counts, c.Login); err != nil {
			return err
		}
		p.counts.add(c.Login, 1)
		c.flags.Or(clientCounted)
	}
	id := p.nextID.Add(1)
	for p.clients[id] != nil || id == 0 {
		id = p.nextID.Add(1)
	}
	c.id = id
	p.clients[id] = c
	return nil
}

// unregister ends that.
func (p *Proxy) unregister(c *Client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients[c.id] == c {
		p.movedBy(c).add(c)
		if c.flags.Load()&clientCounted != 0 {
			p.counts.add(c.Login, -1)
		}
	}
	delete(p.clients, c.id)
}
