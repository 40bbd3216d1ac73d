package pgproxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/headpond/headpond/pgproxy/hba"
)

// memberSQL returns the roles of a user in JSON: itself, and those that it is a member of, directly or not. It has no row for a
// user that does not exist. A superuser is a member of no more roles than others, as for pg_hba.conf.
const memberSQL = `WITH RECURSIVE r(oid) AS (
	SELECT oid FROM pg_catalog.pg_roles WHERE rolname = $1::text
	UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN r ON m.member = r.oid)
SELECT $1::text, pg_catalog.json_agg(x.rolname)::text FROM r JOIN pg_catalog.pg_roles x ON x.oid = r.oid HAVING pg_catalog.count(*) > 0`

// rolesIn reads the answer to memberSQL.
func rolesIn(_, text string) (found *answer) {
	found = &answer{}
	if text != "" {
		found.err = json.Unmarshal([]byte(text), &found.roles)
	}
	return found
}

// membership finds out which roles the user of one login is a member of, once a rule asks for that.
type membership struct {
	startup *startup
	ctx     context.Context //nolint:containedctx // of the one login
	user    string
	asked   bool
	roles   []string
	err     error // the server could not be asked: no rule is reliable
}

// is implements hba.Request.Member.
func (m *membership) is(role string) bool {
	if !m.asked {
		m.asked = true
		m.roles, m.err = m.startup.rolesOf(m.ctx, m.user)
	}
	return slices.Contains(m.roles, role)
}

// rolesOf returns the roles that a user is a member of, itself too; none if it does not exist.
func (g *startup) rolesOf(ctx context.Context, user string) ([]string, error) {
	if len(user) > maxUserName || !utf8.ValidString(user) {
		return nil, nil
	}
	found, err := g.set.members.find(ctx, g, user)
	if err != nil {
		return nil, lookUpError(err, fmt.Sprintf("the gateway cannot look up the roles of user %q", user))
	}
	return found.roles, nil
}

// errNoMembers is the problem of a rule for the members of a role.
var errNoMembers = errors.New("it asks who is a member of a role, and there is no server to ask (Members)")

// findRule returns the rule for a connection, nil if there is none.
func (g *startup) findRule(ctx context.Context, req *hba.Request) (*hba.Rule, error) {
	if g.set.members == nil {
		return g.set.Rules.Find(req), nil
	}
	m := &membership{startup: g, ctx: ctx, user: req.User}
	req.Member = m.is
	r := g.set.Rules.Find(req)
	return r, m.err
}
