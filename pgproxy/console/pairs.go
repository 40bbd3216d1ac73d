package console

import (
	"cmp"
	"maps"
	"slices"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pool"
)

// poolKey identifies a row of SHOW POOLS.
type poolKey struct{ database, user string }

// poolRow is what a row of SHOW POOLS counts: clients, and the server connections that no client has.
type poolRow struct {
	poolKey
	clients             clientCount
	idle, tested, login int
}

func (r *poolRow) add(p *pool.Stats) {
	r.idle, r.tested, r.login = r.idle+p.Idle, r.tested+p.Busy, r.login+p.Opening
}

// serverUser returns the user whose server connections a client gets. The console has none.
func (v *view) serverUser(info *listener.Info) string {
	if info.Database == v.cfg.Database {
		return info.Database
	}
	d := v.find(info.Database)
	switch {
	case d == nil: // the configuration has changed
		return ""
	case d.PerPair:
		return info.User
	}
	return d.User
}

// owner returns the name of the database that a pair of an upstream is shown for: the one that clients request, or the
// upstream's first if all have the same at the servers. It is "" for pairs of other listeners.
func (v *view) owner(first *Database, p *pgproxy.PairStatus) string {
	if first.DBName != "" {
		return first.Name
	}
	if d := v.find(p.Database); d != nil && d.Upstream.Name == first.Upstream.Name && p.Database != v.cfg.Database {
		return p.Database
	}
	return ""
}

// own returns the server connections of an upstream that are no pair's: the gateway's own, and of pairs that end.
func (d *Database) own() (sum pool.Stats) {
	for i := range d.Upstream.Endpoints {
		p := &d.Upstream.Endpoints[i].Pool
		sum.Idle, sum.Busy, sum.Opening = sum.Idle+p.Idle, sum.Busy+p.Busy, sum.Opening+p.Opening
	}
	for i := range d.Pairs { // asked after the sum, so that it may be less by now
		p := &d.Pairs[i].Pool
		sum.Idle, sum.Busy, sum.Opening = sum.Idle-p.Idle, sum.Busy-p.Busy, sum.Opening-p.Opening
	}
	sum.Idle, sum.Busy, sum.Opening = max(sum.Idle, 0), max(sum.Busy, 0), max(sum.Opening, 0)
	return sum
}

// poolRows returns the rows of SHOW POOLS: databases in the order of names, and of a database its users.
func (v *view) poolRows() []*poolRow {
	rows := map[poolKey]*poolRow{}
	get := func(database, user string) *poolRow {
		key := poolKey{database, user}
		if rows[key] == nil {
			rows[key] = &poolRow{poolKey: key}
		}
		return rows[key]
	}
	sessions := v.cfg.Gateway.Sessions()
	for i := range sessions {
		if info := &sessions[i]; started(info) {
			get(info.Database, v.serverUser(info)).clients.add(info)
		}
	}
	for i := range v.Databases {
		if d := &v.Databases[i]; !d.PerPair {
			get(d.Name, d.User)
		}
	}
	get(v.cfg.Database, v.cfg.Database)
	for _, d := range v.upstreams() {
		own := d.own()
		if !d.PerPair || own.Idle+own.Busy+own.Opening > 0 {
			get(d.Name, d.User).add(&own)
		}
		for i := range d.Pairs {
			if name := v.owner(d, &d.Pairs[i]); name != "" {
				get(name, d.Pairs[i].User).add(&d.Pairs[i].Pool)
			}
		}
	}
	order := map[string]int{v.cfg.Database: len(v.Databases) + 1}
	for i := range v.Databases {
		order[v.Databases[i].Name] = i
	}
	place := func(r *poolRow) int {
		if i, ok := order[r.database]; ok {
			return i
		}
		return len(v.Databases)
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b *poolRow) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.database, b.database), cmp.Compare(a.user, b.user))
	})
}

// opened returns how many server connections a database with PerPair has.
func (v *view) opened(name string, d *Database) (n int) {
	for i := range d.Pairs {
		if p := &d.Pairs[i]; cmp.Or(d.DBName, p.Database) == p.Database && (d.DBName != "" || p.Database == name) {
			n += p.Pool.Idle + p.Pool.InUse + p.Pool.Opening + p.Pool.Busy + p.Pool.Direct
		}
	}
	return n
}
