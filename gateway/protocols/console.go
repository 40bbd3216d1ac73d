package protocols

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/listener"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgproxy/console"
	"github.com/headpond/headpond/upstream"
)

// Console is a database name under which some users get PgBouncer's admin console.
type Console struct {
	Database string   `conf:"database" default:"pgbouncer"`
	Admins   []string `conf:"admins" single:"true" maxlen:"1000"`  // users that may do everything
	Viewers  []string `conf:"viewers" single:"true" maxlen:"1000"` // users that may SHOW
}

// newConsole returns a listener's console, the zero value if it has none.
func newConsole(l extend.Listener, pg *PostgresListener, users pgproxy.Users) (pgproxy.Console, error) {
	if pg.Console == nil {
		return pgproxy.Console{}, nil
	}
	c, err := console.New(console.Config{
		Database: pg.Console.Database, Admins: pg.Console.Admins, Viewers: pg.Console.Viewers, LocalOnly: pg.Auth == AuthTrust,
		Version: l.Gateway.Version(), Gateway: &shown{l.Gateway, l.Name, slices.Sorted(maps.Keys(users))},
	})
	return pgproxy.Console{Database: pg.Console.Database, Backend: c}, err
}

// shown is a listener as its console shows and controls it.
type shown struct {
	gateway  extend.Gateway
	listener string
	users    []string
}

var _ console.Gateway = (*shown)(nil)

// proxy returns the listener's proxy, nil while the listener is being removed.
func (s *shown) proxy() *pgproxy.Proxy {
	for name, p := range s.gateway.Proxies() {
		if name == s.listener {
			proxy, _ := p.(*pgproxy.Proxy)
			return proxy
		}
	}
	return nil
}

// Sessions implements console.Gateway.
func (s *shown) Sessions() []listener.Info {
	if p := s.proxy(); p != nil {
		return p.Sessions()
	}
	return nil
}

// Usage implements console.Gateway.
func (s *shown) Usage() (now, then []pgproxy.Usage, ago time.Duration) {
	p := s.proxy()
	if p == nil {
		return nil, nil, 0
	}
	then, ago = p.RecentUsage()
	return p.Usage(), then, ago
}

// Kill implements console.Gateway.
func (s *shown) Kill(id string) bool { return s.gateway.Kill(id) }

// Pause implements console.Gateway.
func (s *shown) Pause(name string, limit time.Duration) (undo func(), err error) {
	return s.gateway.HoldUpstream(name, limit)
}

// Resume implements console.Gateway.
func (s *shown) Resume(name string) error { return s.gateway.ResumeUpstream(name) }

// Reload implements console.Gateway.
func (s *shown) Reload() error { return s.gateway.ReloadFile() }

// State implements console.Gateway.
func (s *shown) State() (state console.State) {
	cfg := s.gateway.Config()
	i := slices.IndexFunc(cfg.Listeners, func(l config.Listener) bool { return l.Name == s.listener && l.Protocol == config.Postgres })
	if i < 0 {
		return state
	}
	l := &cfg.Listeners[i]
	pg := config.SectionOf[PostgresListener](l)
	if pg.Console == nil { // a reload has just taken it away
		return state
	}
	state.MaxConns, state.PoolMode, state.Users, state.Address = l.MaxConns, string(pg.Mode), s.users, s.gateway.Addr(s.listener)
	upstreams := map[string]*console.Database{} // many databases may share an upstream
	for _, db := range pg.Databases {
		d := upstreams[db.Upstream]
		if d == nil {
			d = s.database(cfg.Upstream(db.Upstream))
			upstreams[db.Upstream] = d
		}
		named := *d
		named.Name = db.Name
		state.Databases = append(state.Databases, named)
	}
	state.Settings = consoleSettings(cfg, l, pg)
	return state
}

// database returns the database of an upstream, without a name.
func (s *shown) database(u *config.Upstream) *console.Database {
	d := &console.Database{Upstream: upstream.Status{Name: u.Name}, Lifetime: max(u.Pool.MaxLifetime, 0)}
	if backend, ok := s.gateway.Upstream(u.Name).(*pgBackend); ok { // else it is being removed
		d.Upstream = backend.Status()
		if pg, ok := backend.Backend.(*pgproxy.Postgres); ok {
			d.Pairs = pg.PairList()
		}
	}
	if login := loginOf(u); login != nil {
		d.User, d.DBName = login.User, cmp.Or(login.DBName, login.User)
		if d.PerPair = login.LoginAs == AsClient; d.PerPair {
			d.DBName, d.PoolSize = login.DBName, u.Pool.MaxSize
		}
	}
	_, sqlite := sqlitePath(u)
	d.Pausable = !sqlite
	return d
}

// consoleSettings are the settings of a listener by the names that they have in PgBouncer, sorted. Settings of upstreams are
// among them if all upstreams of the listener have the same value.
func consoleSettings(cfg *config.Config, l *config.Listener, pg *PostgresListener) (list []console.Setting) {
	add := func(key, value string) { list = append(list, console.Setting{Key: key, Value: value}) }
	common := func(key string, value func(u *config.Upstream) string) {
		values := map[string]bool{}
		for _, db := range pg.Databases {
			values[value(cfg.Upstream(db.Upstream))] = true
		}
		if len(values) == 1 {
			add(key, slices.Collect(maps.Keys(values))[0])
		}
	}
	whole := func(d time.Duration) string { return strconv.FormatFloat(max(d, 0).Seconds(), 'f', -1, 64) }
	host, port := l.Listen, ""
	if i := strings.LastIndexByte(l.Listen, ':'); i >= 0 && !strings.HasPrefix(l.Listen, "unix:") {
		host, port = strings.Trim(l.Listen[:i], "[]"), l.Listen[i+1:]
	}
	add("admin_users", strings.Join(pg.Console.Admins, ", "))
	add("auth_file", string(pg.UsersFile))
	add("auth_hba_file", string(pg.AuthHBAFile))
	add("auth_ident_file", string(pg.AuthIdentFile))
	add("auth_type", strings.Replace(string(pg.Auth), string(AuthRules), "hba", 1))
	add("client_idle_timeout", whole(pg.ClientIdleTimeout))
	add("client_login_timeout", whole(pgproxy.DefaultLoginTimeout))
	add("conffile", cfg.File)
	common("default_pool_size", func(u *config.Upstream) string { return strconv.Itoa(u.Pool.MaxSize) })
	add("listen_addr", host)
	add("listen_port", port)
	add("max_client_conn", strconv.Itoa(l.MaxConns))
	add("max_db_client_connections", strconv.Itoa(pg.MaxClients.PerDatabase))
	add("max_db_connections", "0")
	add("max_user_client_connections", strconv.Itoa(pg.MaxClients.PerUser))
	add("max_user_connections", "0")
	common("min_pool_size", func(u *config.Upstream) string { return strconv.Itoa(u.Pool.MinIdle) })
	add("pool_mode", string(pg.Mode))
	common("query_wait_timeout", func(u *config.Upstream) string { return whole(u.Pool.AcquireTimeout) })
	add("reserve_pool_size", "0")
	common("server_check_delay", func(u *config.Upstream) string { return whole(u.Pool.CheckAfter) })
	common("server_connect_timeout", func(u *config.Upstream) string { return whole(u.ConnectTimeout) })
	common("server_idle_timeout", func(u *config.Upstream) string { return whole(u.Pool.IdleTimeout) })
	common("server_lifetime", func(u *config.Upstream) string { return whole(u.Pool.MaxLifetime) })
	add("stats_period", "60")
	add("stats_users", strings.Join(pg.Console.Viewers, ", "))
	return list
}

// checkConsole reports a console that nobody could use, or that hides a database.
func checkConsole(c *config.Checker, l *config.Listener, pg *PostgresListener) {
	if pg.Console == nil {
		return
	}
	name := pg.Console.Database
	at := c.Mark(&pg.Console)
	if c.Written(&pg.Console.Database) {
		at = c.Mark(&pg.Console.Database)
	}
	has := slices.ContainsFunc(pg.Databases, func(db Database) bool { return db.Name == name })
	switch {
	case name == "" || name == "*":
		c.Report(at, "console: database: want the name of the database that is the console, not %q", name)
	case has:
		c.Report(at, "console: database: %q is a name under \"databases\", too; give the console another one", name)
	case l.Upstream != "" && c.Config.Upstream(l.Upstream) != nil && databaseOf(c.Config, l.Upstream) == name:
		c.Report(at, "console: database: %q is the database of upstream %q, too; give the console another name", name, l.Upstream)
	}
	if len(pg.Console.Admins)+len(pg.Console.Viewers) == 0 {
		c.Report(c.Mark(&pg.Console), "console: nobody may use it; name users in \"admins\" or \"viewers\"")
	}
	if pg.Auth == AuthTrust && l.AcceptProxy {
		c.Report(at, "console: with auth: trust it is for clients of this machine, and a PROXY header says where clients are; set \"users_file\" or \"auth_query\"")
	}
}

// checkConsoleUsers warns of users of the console who cannot log in.
func checkConsoleUsers(c *config.Checker, pg *PostgresListener, users pgproxy.Users) {
	if pg.Console == nil || pg.AuthQuery != "" || pg.Auth == AuthTrust || pg.Auth == AuthRules {
		return
	}
	for _, names := range []*[]string{&pg.Console.Admins, &pg.Console.Viewers} {
		for _, name := range *names {
			if users[name] == "" {
				c.Warn(c.Mark(names), "console: %q has no secret in users_file: nobody can log in as that user", config.Clip(name))
			}
		}
	}
}
