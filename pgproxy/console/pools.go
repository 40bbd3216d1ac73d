package console

import (
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pool"
)

// pools is SHOW POOLS: a row for each database, as databases with a user of their own have in PgBouncer, or for each pair of
// database and user. Databases may share an upstream. Its connections that no client has are shown in the row of the first
// one, so that sums are right.
func (v *view) pools(r *result) {
	now := time.Now()
	for _, p := range v.poolRows() {
		d, c := v.find(p.database), &p.clients
		if d == nil || p.database == v.cfg.Database {
			d = &Database{}
		}
		wait, waitMicros := 0, 0
		if c.waiting > 0 {
			wait, waitMicros = seconds(now.Sub(c.longest.Since))
		}
		var balance any
		if len(d.Upstream.Endpoints) > 1 {
			balance = d.Upstream.Balance
		}
		mode := v.PoolMode
		if p.database == v.cfg.Database {
			mode = "statement"
		}
		r.rows = append(r.rows, row{
			p.database, p.user, c.active, c.waiting, 0, 0, c.holding, 0, 0, p.idle, 0, p.tested, p.login, wait, waitMicros, mode, balance,
		})
	}
}

// address returns the host and port of an address. A Unix socket's host is its directory, as in PgBouncer.
func address(at string) (host string, port int) {
	if path, ok := strings.CutPrefix(at, "unix:"); ok {
		if dir, name, ok := strings.Cut(path, "/.s.PGSQL."); ok {
			port, _ = strconv.Atoi(name)
			return dir, port
		}
		return path, 0
	}
	host, text, err := net.SplitHostPort(at)
	if err != nil {
		return at, 0
	}
	port, _ = strconv.Atoi(text)
	return host, port
}

// clients is SHOW CLIENTS.
func (v *view) clients() (rows []row) {
	all := v.cfg.Gateway.Sessions()
	slices.SortFunc(all, func(a, b listener.Info) int { return a.Accepted.Compare(b.Accepted) })
	now := time.Now()
	for i := range all {
		info := &all[i]
		if !started(info) {
			continue
		}
		state, link, wait, micros := "active", "", 0, 0
		switch {
		case info.State == listener.StateWaiting:
			state = "waiting"
			wait, micros = seconds(now.Sub(info.Since))
		case info.Held.IsZero() && info.State == listener.StateIdle:
			state = "idle"
		}
		if !info.Held.IsZero() {
			link = serverOf(info)
		}
		rows = append(rows, v.socket("C", info, state, info.Client, info.ID, link, wait, micros, 0, now))
	}
	return rows
}

// serverOf names the server connection that a session holds.
func serverOf(info *listener.Info) string {
	return info.Endpoint + "#" + strconv.FormatUint(uint64(info.ServerPID), 10)
}

// socket returns the row of a client or of a server connection that a client holds.
func (v *view) socket(kind string, info *listener.Info, state, at, ptr, link string, wait, micros int, pid uint32, now time.Time) row {
	host, port := address(at)
	local, localPort := address(v.Address)
	connected, asked, user, id := info.Accepted, info.Since, info.User, int64(0)
	if kind == "S" {
		local, localPort, connected, asked = "", 0, info.Held, info.Held // connected by then
		user = v.serverUser(info)
	} else if n, _, ok := listener.ParseID(info.ID); ok {
		id = int64(n)
	}
	if asked.After(now) {
		asked = now
	}
	return row{
		kind, user, info.Database, "none", state, host, port, local, localPort, stamp(connected), stamp(asked), wait, micros, 0,
		ptr, link, pid, "", info.Application, 0, id,
	}
}

// servers is SHOW SERVERS: the connections that clients hold, and the idle ones, of which only the number is known.
func (v *view) servers() (rows []row) {
	now := time.Now()
	all := v.cfg.Gateway.Sessions()
	slices.SortFunc(all, func(a, b listener.Info) int { return a.Held.Compare(b.Held) })
	for i := range all {
		if info := &all[i]; started(info) && !info.Held.IsZero() {
			rows = append(rows, v.socket("S", info, "active", info.Endpoint, serverOf(info), info.ID, 0, 0, info.ServerPID, now))
		}
	}
	for _, d := range v.upstreams() {
		if d.PerPair {
			rows = append(rows, v.unheldOfPairs(d)...)
			continue
		}
		for i := range d.Upstream.Endpoints {
			e := &d.Upstream.Endpoints[i]
			rows = append(rows, unheld(d.Name, d.User, e.Address, &e.Pool)...)
		}
	}
	return rows
}

// unheldOfPairs returns rows for server connections of pairs that no client holds. Pairs count those of all endpoints
// together: the address is known if there is only one.
func (v *view) unheldOfPairs(d *Database) (rows []row) {
	at := ""
	if len(d.Upstream.Endpoints) == 1 {
		at = d.Upstream.Endpoints[0].Address
	}
	own := d.own()
	rows = unheld(d.Name, d.User, at, &own)
	for i := range d.Pairs {
		if p := &d.Pairs[i]; v.owner(d, p) != "" {
			rows = append(rows, unheld(v.owner(d, p), p.User, at, &p.Pool)...)
		}
	}
	return rows
}

// unheld returns rows for the server connections of a pool that no client holds.
func unheld(database, user, at string, p *pool.Stats) (rows []row) {
	host, port := address(at)
	now := stamp(time.Now()) // the times are not known, and Datadog's agent fails at NULL
	for _, kind := range []struct {
		state string
		n     int
	}{{"idle", p.Idle}, {"tested", p.Busy}, {"new", p.Opening}} {
		for range kind.n {
			rows = append(rows, row{"S", user, database, "none", kind.state, host, port, "", 0, now, now, 0, 0, 0, "", "", 0, "", "", 0, 0})
		}
	}
	return rows
}

// sockets is SHOW SOCKETS, or SHOW ACTIVE_SOCKETS: the latter are those with something under way.
func (v *view) sockets(active bool) (rows []row) {
	for _, r := range v.clients() {
		rows = append(rows, socketRow(r, "cl_"))
	}
	for _, r := range v.servers() {
		rows = append(rows, socketRow(r, "sv_"))
	}
	if active {
		rows = slices.DeleteFunc(rows, func(r row) bool { state := r[4].(string); return strings.HasSuffix(state, "_idle") }) //nolint:forcetypeassert // as socketRow made it
	}
	return rows
}

// socketRow adds the columns of SHOW SOCKETS.
func socketRow(r row, prefix string) row {
	r[4] = prefix + strings.Replace(r[4].(string), "new", "login", 1) //nolint:forcetypeassert // as socket made it
	return append(r, 0, 0, 0, 0, 0, 0, 0)
}
