package httpproxy

import (
	"math/rand/v2"
	"slices"

	"github.com/headpond/headpond/httpwire"
	"github.com/headpond/headpond/internal/identity"
)

// group is a group of requests that an upstream serves. field is the index of the group's key in the table's fields.
type group struct {
	identity.Group
	field int
}

// groupsOf returns the groups of a route; Verify has checked them.
func groupsOf(r Route, fields []string) (groups []group) {
	for _, text := range r.Groups {
		g, _ := identity.Parse(text)
		groups = append(groups, group{g, slices.Index(fields, g.Key)})
	}
	return groups
}

// verifyGroups checks the groups.
func (r Route) verifyGroups() error {
	for _, text := range r.Groups {
		g, err := identity.Parse(text)
		if err == nil && g.Key != "" {
			err = checkField(g.Key)
		}
		if err != nil {
			return err
		}
	}
	return tooMany(len(r.Groups))
}

// leastRank returns the lowest rank that a request accepts.
func leastRank(r *httpwire.Request) identity.Rank {
	fallback, otela := "", ""
	for i := range r.Fields {
		switch f := &r.Fields[i]; {
		case httpwire.EqualFold(f.Name, fallbackField):
			fallback = view(f.Value)
		case httpwire.EqualFold(f.Name, otelaField):
			otela = view(f.Value)
		}
	}
	return identity.Least(fallback, otela)
}

// The names of identity.Fallback, identity.OtelaFallback and identity.Node in lower case.
const (
	fallbackField = "x-headpond-fallback"
	otelaField    = "x-otela-fallback"
	nodeField     = "x-computing-node"
)

// rank returns how well a route's upstream fits a request. Every upstream fits a request without a body.
func (tg *target) rank(r *httpwire.Request, body *peek) identity.Rank {
	if r.Length == 0 {
		return identity.All
	}
	best := identity.None
	for i := range tg.groups {
		g := &tg.groups[i]
		best = max(best, g.Rank(func(string) (string, bool) { return body.field(g.field) }))
	}
	if best < leastRank(r) {
		return identity.None
	}
	return best
}

// provider returns the route of the set that a request goes to: among the best fits the one whose upstream has the
// fewest leases per endpoint, and a random one among equals. nil = none fits.
func (tg *target) provider(r *httpwire.Request, body *peek) (chosen *target) {
	var best identity.Rank
	var leases, in int64
	equals := 0
	for _, t := range tg.set {
		rank := t.rank(r, body)
		if rank == identity.None || rank < best {
			continue
		}
		l, n := t.route.Upstream.Load()
		less := l*in - leases*n // by cross-multiplication; an upstream without endpoints comes last
		switch {
		case rank > best, n > 0 && in == 0, n > 0 && less < 0:
			equals = 0
		case n == 0 && in > 0, less > 0:
			continue
		}
		if equals++; rand.IntN(equals) == 0 {
			chosen = t
		}
		best, leases, in = rank, l, n
	}
	return chosen
}
