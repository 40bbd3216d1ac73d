package console

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/headpond/headpond/listener"
)

// table is a kind of SHOW.
type table struct {
	columns []column // nil = notices only
	fill    func(v *view, r *result)
}

// view is what a SHOW shows: the gateway at one moment.
type view struct {
	*Console
	State
	byName map[string]*Database
}

// find returns the database that clients get for a name, nil if there is none.
func (v *view) find(name string) *Database { return find(v.byName, name) }

// texts and numbers return columns of the types that most have.
func texts(names string) []column   { return columns(typeText, names) }
func numbers(names string) []column { return columns(typeInt4, names) }

func join(lists ...[]column) []column { return slices.Concat(lists...) }

// sockets are the columns of SHOW CLIENTS and SHOW SERVERS.
var sockets = join(
	texts("type user database replication state addr"), numbers("port"), texts("local_addr"), numbers("local_port"),
	texts("connect_time request_time"), numbers("wait wait_us close_needed"), texts("ptr link"), numbers("remote_pid"),
	texts("tls application_name"), numbers("prepared_statements"), columns(typeInt8, "id"),
)

// socketDetails are further columns of SHOW SOCKETS: PgBouncer's buffers.
var socketDetails = numbers("recv_pos pkt_pos pkt_remain send_pos send_remain pkt_avail send_avail")

// tables are the kinds of SHOW, by name.
var tables = map[string]*table{
	"help":    {nil, func(_ *view, r *result) { r.notice("Console usage", helpText()) }},
	"version": {texts("version"), func(v *view, r *result) { r.rows = []row{{v.version()}} }},
	"state":   {texts("key value"), (*view).state},
	"config": {texts("key value default changeable"), func(v *view, r *result) {
		for _, s := range v.Settings {
			r.rows = append(r.rows, row{s.Key, s.Value, nil, "yes"})
		}
	}},
	"databases": {join(texts("name host"), numbers("port"), texts("database force_user"),
		numbers("pool_size min_pool_size reserve_pool_size server_lifetime"), texts("pool_mode load_balance_hosts"),
		numbers("max_connections current_connections max_client_connections current_client_connections paused disabled")), (*view).databases},
	"users": {join(texts("name pool_size reserve_pool_size pool_mode"),
		numbers("max_user_connections current_connections max_user_client_connections current_client_connections")), (*view).users},
	"lists": {join(texts("list"), numbers("items")), (*view).lists},
	"pools": {join(texts("database user"), numbers("cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active sv_active_cancel "+
		"sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait maxwait_us"), texts("pool_mode load_balance_hosts")), (*view).pools},
	"clients":        {sockets, func(v *view, r *result) { r.rows = v.clients() }},
	"servers":        {sockets, func(v *view, r *result) { r.rows = v.servers() }},
	"sockets":        {join(sockets, socketDetails), func(v *view, r *result) { r.rows = v.sockets(false) }},
	"active_sockets": {join(sockets, socketDetails), func(v *view, r *result) { r.rows = v.sockets(true) }},
	"stats":          {join(texts("database"), columns(typeNumeric, prefixed("total_", totals)+prefixed("avg_", averages))), (*view).stats},
	"stats_totals":   {join(texts("database"), columns(typeNumeric, statNames+" client_parse_count server_parse_count bind_count client_login_count")), (*view).statsTotals},
	"stats_averages": {join(texts("database"), columns(typeNumeric, statNames+" avg_client_parse_count avg_server_parse_count avg_bind_count avg_client_login_count")), (*view).statsAverages},
	"totals":         {join(texts("name"), columns(typeNumeric, "value")), (*view).totals},
	"peers":          {join(numbers("peer_id"), texts("host"), numbers("port pool_size")), nothing},
	"peer_pools":     {numbers("peer_id cl_active_cancel_req cl_waiting_cancel_req sv_active_cancel sv_login"), nothing},
	"mem":            {join(texts("name"), numbers("size used free memtotal")), nothing},
	"dns_hosts":      {join(texts("hostname"), columns(typeInt8, "ttl"), texts("addrs")), nothing},
	"dns_zones":      {join(texts("zonename"), columns(typeInt8, "serial"), numbers("count")), nothing},
}

// nothing fills a table of what Headpond does not have.
func nothing(*view, *result) {}

// showOf returns the table of a SHOW, or of a SELECT as PgBouncer has it; nil if the statement is none.
func showOf(st *statement) *table {
	if w := st.word(0); w != "show" && w != "select" || len(st.tokens) != 2 {
		return nil
	}
	name := st.word(1)
	if t := tables[name]; t != nil {
		return t
	}
	if value, ok := settings[name]; ok {
		return &table{texts(name), func(_ *view, r *result) { r.rows = []row{{value}} }}
	}
	return nil
}

func (v *view) version() string {
	return strings.TrimSpace("PgBouncer "+emulated+" (Headpond "+v.cfg.Version) + ")"
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// state shows a pause once every database is paused.
func (v *view) state(r *result) {
	paused := len(v.Databases) > 0
	for i := range v.Databases {
		paused = paused && (!v.Databases[i].Upstream.PausedUntil.IsZero() || !v.Databases[i].Pausable)
	}
	paused = paused && slices.ContainsFunc(v.Databases, func(d Database) bool { return d.Pausable })
	r.rows = []row{{"active", yes(!paused)}, {"paused", yes(paused)}, {"suspended", yes(false)}}
}

// clientCount is the clients of one database or user.
type clientCount struct {
	all, active, waiting, holding int
	longest                       listener.Info // the client that has waited longest, if one waits
}

func (c *clientCount) add(info *listener.Info) {
	c.all++
	switch info.State {
	case listener.StateWaiting:
		if c.waiting++; c.waiting == 1 || info.Since.Before(c.longest.Since) {
			c.longest = *info
		}
	default:
		c.active++
	}
	if !info.Held.IsZero() {
		c.holding++
	}
}

// count counts the clients by a key.
func count(sessions []listener.Info, key func(*listener.Info) string) map[string]*clientCount {
	counts := map[string]*clientCount{}
	for i := range sessions {
		info := &sessions[i]
		if !started(info) {
			continue
		}
		c := counts[key(info)]
		if c == nil {
			c = &clientCount{}
			counts[key(info)] = c
		}
		c.add(info)
	}
	return counts
}

func databaseOf(info *listener.Info) string { return info.Database }
func userOf(info *listener.Info) string     { return info.User }

// names returns the names of databases: those of the configuration in its order, and others that clients use.
func (v *view) names(used map[string]*clientCount) (list []string) {
	for i := range v.Databases {
		list = append(list, v.Databases[i].Name)
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		if name != v.cfg.Database && v.byName[name] == nil {
			list = append(list, name)
		}
	}
	return append(list, v.cfg.Database)
}

// databases is SHOW DATABASES.
func (v *view) databases(r *result) {
	used := count(v.cfg.Gateway.Sessions(), databaseOf)
	for _, name := range v.names(used) {
		clients := 0
		if c := used[name]; c != nil {
			clients = c.all
		}
		d := v.find(name)
		if name == v.cfg.Database || d == nil {
			host, port := address(v.Address)
			r.rows = append(r.rows, row{name, host, port, name, name, 0, 0, 0, 0, "statement", nil, 0, 0, v.MaxConns, clients, 0, 0})
			continue
		}
		size, idle, hosts := 0, 0, []string{}
		var port any
		for i := range d.Upstream.Endpoints {
			e := &d.Upstream.Endpoints[i]
			if e.Removed {
				continue
			}
			host, at := address(e.Address)
			most := e.Pool.MaxSize
			if d.PerPair {
				most = d.PoolSize
			}
			size, idle, hosts, port = size+most, idle+e.Pool.MinIdle, append(hosts, host), cmp.Or(port, any(at))
		}
		var balance any
		if len(hosts) > 1 {
			balance = d.Upstream.Balance
		}
		lifetime, _ := seconds(d.Lifetime)
		user, most, open := any(d.User), size, connections(&d.Upstream)
		if d.PerPair { // no user is forced, and each has a pool
			user, most, open = nil, 0, v.opened(name, d)
		}
		paused := 0
		if !d.Upstream.PausedUntil.IsZero() {
			paused = 1
		}
		r.rows = append(r.rows, row{
			name, strings.Join(hosts, ","), port, cmp.Or(d.DBName, name), user, size, idle, 0, lifetime, v.PoolMode, balance,
			most, open, v.MaxConns, clients, paused, 0,
		})
	}
}

// users is SHOW USERS: the configured users, and others who are connected.
func (v *view) users(r *result) {
	used := count(v.cfg.Gateway.Sessions(), userOf)
	names := slices.Concat(v.Users, v.cfg.Admins, v.cfg.Viewers, slices.Collect(maps.Keys(used)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		c := used[name]
		if c == nil {
			c = &clientCount{}
		}
		r.rows = append(r.rows, row{name, "", "", nil, 0, c.holding, 0, c.all})
	}
}

// lists is SHOW LISTS.
func (v *view) lists(r *result) {
	all := v.cfg.Gateway.Sessions()
	clients, login, servers, pools := 0, 0, 0, result{}
	for i := range all {
		if clients++; !started(&all[i]) {
			login++
		}
	}
	for _, d := range v.upstreams() {
		servers += connections(&d.Upstream)
	}
	v.pools(&pools)
	users := result{}
	v.users(&users)
	for _, l := range []struct {
		name  string
		items int
	}{
		{"databases", len(v.Databases) + 1}, {"users", len(users.rows)}, {"peers", 0}, {"pools", len(pools.rows)}, {"peer_pools", 0},
		{"free_clients", 0}, {"used_clients", clients}, {"login_clients", login}, {"free_servers", 0}, {"used_servers", servers},
		{"dns_names", 0}, {"dns_zones", 0}, {"dns_queries", 0}, {"dns_pending", 0},
	} {
		r.rows = append(r.rows, row{l.name, l.items})
	}
}

// upstreams returns the first database of each upstream.
func (v *view) upstreams() (list []*Database) {
	seen := map[string]bool{}
	for i := range v.Databases {
		if d := &v.Databases[i]; !seen[d.Upstream.Name] {
			seen[d.Upstream.Name] = true
			list = append(list, d)
		}
	}
	return list
}
