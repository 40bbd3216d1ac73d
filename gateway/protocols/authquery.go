package protocols

import (
	"slices"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/hba"
)

// authQuery returns a listener's AuthQuery, the zero value if there is none.
func authQuery(l extend.Listener, pg *PostgresListener) (pgproxy.AuthQuery, error) {
	if pg.AuthQuery == "" || pg.Auth == AuthTrust {
		return pgproxy.AuthQuery{}, nil
	}
	from, err := extend.Runs[pgproxy.SecretSource](l, pg.AuthUpstream)
	return pgproxy.AuthQuery{SQL: pg.AuthQuery, From: from}, err
}

// membersOf returns the source that knows the members of the roles in rules, nil if there are no such rules.
func membersOf(l extend.Listener, pg *PostgresListener, rules hba.Rules) (pgproxy.SecretSource, error) {
	if !rules.AskMembers() {
		return nil, nil //nolint:nilnil // as documented
	}
	return extend.Runs[pgproxy.SecretSource](l, pg.AuthUpstream)
}

// checkAuthQuery reports an auth_query that cannot work.
func checkAuthQuery(c *config.Checker, pg *PostgresListener) {
	if pg.AuthQuery == "" {
		if c.Written(&pg.AuthUpstream) && !pg.hasRules() {
			c.Report(c.Mark(&pg.AuthUpstream), "auth_upstream: there is no \"auth_query\" to run there")
		}
		checkAuthUpstream(c, pg)
		return
	}
	if pg.Auth == AuthTrust {
		c.Warn(c.Mark(&pg.AuthQuery), "auth_query: has no effect with auth: trust; everybody may log in as anybody")
	}
	if !strings.Contains(pg.AuthQuery, "$1") {
		c.Report(c.Mark(&pg.AuthQuery), "auth_query: want a query with the user's name as $1, such as SELECT name, secret FROM gateway_auth.find($1)")
	}
	if strings.Contains(pg.AuthQuery, "\x00") {
		c.Report(c.Mark(&pg.AuthQuery), "auth_query: has a NUL character in it")
	}
	if pg.AuthUpstream == "" {
		c.Report(c.Mark(&pg.AuthQuery), "auth_query: needs \"auth_upstream\", an upstream with a user of its own that no client's session has")
	}
	if u := c.Config.Upstream(pg.AuthUpstream); checkAuthUpstream(c, pg) && u != nil && loginOf(u) != nil {
		checkAuthUser(c, pg, u)
	}
}

// checkAuthUpstream reports an auth_upstream that cannot be asked, and whether it can.
func checkAuthUpstream(c *config.Checker, pg *PostgresListener) bool {
	u := c.Config.Upstream(pg.AuthUpstream)
	if _, sqlite := sqlitePath(u); sqlite {
		c.Report(c.Mark(&pg.AuthUpstream), "auth_upstream: %q is a SQLite file, which has no users; name an upstream of PostgreSQL servers", pg.AuthUpstream)
	} else if logsInAsClient(u) && loginOf(u).User == "" {
		c.Report(c.Mark(&pg.AuthUpstream), "auth_upstream: %q has no \"user\" of its own under \"postgres\" (login_as: client), as which the query could run", pg.AuthUpstream)
	} else {
		return true
	}
	return false
}

// checkAuthUser warns if clients' sessions have the user of an auth_query: they could read and change what it reads.
func checkAuthUser(c *config.Checker, pg *PostgresListener, u *config.Upstream) {
	for i := range c.Config.Listeners {
		l := &c.Config.Listeners[i]
		if l.Protocol != config.Postgres {
			continue
		}
		for _, name := range leasesFrom(l) {
			other := c.Config.Upstream(name)
			if other == nil || loginOf(other) == nil || logsInAsClient(other) || loginOf(other).User != loginOf(u).User || !sameServer(u, other) {
				continue
			}
			c.Warn(c.Mark(&pg.AuthUpstream), "auth_upstream: clients of listener %q have the user %q of upstream %q, too: they can read all secrets that auth_query can; give it a user of its own",
				l.Name, loginOf(u).User, u.Name)
			return
		}
	}
}

// sameServer reports whether two upstreams have an endpoint in common.
func sameServer(a, b *config.Upstream) bool {
	return a == b || slices.ContainsFunc(a.Endpoints, func(e config.Endpoint) bool {
		return slices.ContainsFunc(b.Endpoints, func(o config.Endpoint) bool { return o.Address == e.Address })
	})
}
