package pgproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// With a Target, the upstream asks each server for its role over a connection of the gateway's own. What server
// connections show of it (their login, a changed in_hot_standby, a refused write) is a reason to ask again.

// roleSQL is the question. In a hot standby every transaction is read-only.
const roleSQL = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only')"

// hotStandby is the parameter by which servers from PostgreSQL 14 on report whether they are a standby.
const hotStandby = "in_hot_standby"

// roleAsker implements upstream.RoleAsker with a connection that logs in as the upstream's user.
type roleAsker struct {
	b        *Postgres // the upstream's
	endpoint string
	srv      *server // nil = none
}

var _ upstream.RoleAsker = (*roleAsker)(nil)

// errNoLogin is the error of a question that would need a login while the backend is retired: the server may refuse its
// password by now.
var errNoLogin = fmt.Errorf("%w: %w", upstream.ErrTenant, errRetired)

// Ask implements upstream.RoleAsker. If a connection that was open before turns out to be dead, it opens another one.
func (a *roleAsker) Ask(ctx context.Context, anew bool) (upstream.Role, error) {
	if anew && a.b.logsIn() {
		a.Close()
	}
	for {
		reused := a.srv != nil
		if err := a.connect(ctx); err != nil {
			return upstream.UnknownRole, err
		}
		role, err := a.srv.askRole(ctx)
		if err == nil {
			return role, nil
		}
		if ordinary(err) {
			return upstream.UnknownRole, fmt.Errorf("PostgreSQL server %s: %w: %w: %w", a.endpoint, upstream.ErrTenant, upstream.ErrPassing, err)
		}
		a.Close()
		if !reused || ctx.Err() != nil {
			return upstream.UnknownRole, fmt.Errorf("PostgreSQL server %s: %w", a.endpoint, err)
		}
	}
}

// logsIn reports whether the servers should accept the gateway's login.
func (b *Postgres) logsIn() bool { return !b.retired.Load() || b.follows.Load() != nil }

// connect logs in, unless there is a connection. Refusals that are not about the server as a whole wrap ErrTenant.
func (a *roleAsker) connect(ctx context.Context) (err error) {
	if a.srv != nil {
		return nil
	}
	if !a.b.logsIn() {
		return errNoLogin
	}
	cfg := a.b.login().own()
	if a.srv, err = connect(ctx, &cfg, a.endpoint); err != nil && pairsOwn(err) {
		err = pairError{err}
	}
	if err != nil && passing(err) {
		err = fmt.Errorf("%w: %w", upstream.ErrPassing, err)
	}
	return err
}

// passing reports whether a server may accept a login later that it has refused: it has no connection left, or waits for something.
func passing(err error) bool {
	said, ok := errors.AsType[*loginError](err)
	return isStall(err) || ok && !said.gateways && said.Code == pgwire.StateTooManyConnections
}

// Close implements upstream.RoleAsker.
func (a *roleAsker) Close() {
	if a.srv != nil {
		closeServer(a.srv)
		a.srv = nil
	}
}

// askRole asks the server for its role.
func (s *server) askRole(ctx context.Context) (role upstream.Role, err error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.SetDeadline(unixPast) })
	err = s.query(roleSQL, func(m *pgwire.DataRow) {
		if len(m.Values) == 2 {
			role = roleFrom(string(m.Values[0]), string(m.Values[1]))
		}
	})
	s.unnamed = 0 // any Query destroys it
	s.releaseBuffers()
	switch {
	case !stop():
		return upstream.UnknownRole, errors.Join(context.Cause(ctx), err)
	case err != nil:
		return upstream.UnknownRole, err
	case role == upstream.UnknownRole:
		return role, fmt.Errorf("%w: no role in the answer to %s", errBackendProtocol, roleSQL)
	}
	return role, nil
}

// roleFrom returns the role that a row of roleSQL's result says.
func roleFrom(recovers, readOnly string) upstream.Role {
	switch {
	case recovers == "t":
		return upstream.Standby
	case recovers == "f" && readOnly == "on":
		return upstream.ReadOnlyPrimary
	case recovers == "f":
		return upstream.Primary
	}
	return upstream.UnknownRole
}

// roleOf returns the role that a new server connection leads to. It asks servers that do not report it.
func roleOf(ctx context.Context, s *server) (upstream.Role, error) {
	i := slices.IndexFunc(s.baseline, func(p pgwire.Param) bool { return p.Name == hotStandby })
	switch {
	case i < 0:
		role, err := s.askRole(ctx)
		s.replays = role == upstream.Standby
		return role, err
	case s.standby():
		return upstream.Standby, nil
	}
	return upstream.Primary, nil
}

// standby reports whether the server is a standby, as far as the connection knows.
func (s *serverState) standby() bool {
	return s.replays || slices.Contains(s.baseline, pgwire.Param{Name: hotStandby, Value: "on"})
}

// refusedWrite notes that the server takes no writes (25006). A standby's connection is closed after it: the endpoint's
// name may stand for the primary by now. On a primary, the client's own transaction is read-only.
func (s *serverState) refusedWrite() {
	if !s.standby() {
		return
	}
	s.mustClose = true
	if s.newest != nil {
		s.newest.doubt(s.endpoint)
	}
}

// noRoleText says which roles the servers have, none of which the Target accepts.
func noRoleText(e *upstream.Error) string {
	counts := map[string]int{}
	for _, r := range e.Roles {
		counts[roleText(r)]++
	}
	var list []string
	for _, what := range []string{"primary", "read-only primary", "standby", "not answering", "not saying its role"} {
		if n := counts[what]; n > 0 {
			list = append(list, fmt.Sprintf("%d %s", n, what))
		}
	}
	return fmt.Sprintf("no server is %s (of %d: %s)", e.Target.Wanted(), len(e.Roles), strings.Join(list, ", "))
}

// roleText says what is known of a server's role, in words that fit after a number.
func roleText(r upstream.EndpointRole) string {
	switch {
	case r.Role != upstream.UnknownRole:
		return r.Role.String()
	case errors.Is(r.Err, upstream.ErrTenant):
		return "not saying its role"
	}
	return "not answering"
}
