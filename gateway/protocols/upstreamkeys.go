package protocols

import (
	"errors"
	"strings"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy"
)

// UpstreamKeys are the keys that the protocol postgres adds to upstreams.
type UpstreamKeys struct {
	Postgres *PostgresUpstream `conf:"postgres"`
	SQLite   *SQLiteFile       `conf:"sqlite"`
}

// Fixed implements config.Changeable.
func (k *UpstreamKeys) Fixed() any {
	fixed := *k
	if k.Postgres != nil {
		pg := *k.Postgres
		pg.MaxConnections, pg.Target = 0, TargetAny
		fixed.Postgres = &pg
	}
	return fixed
}

// PostgresUpstream is how the gateway logs in to a PostgreSQL server.
type PostgresUpstream struct {
	// LoginAs says whose user and database the clients' server connections have.
	LoginAs  LoginAs       `conf:"login_as" default:"upstream"`
	User     string        `conf:"user"` // with LoginAs client, of the gateway's own connections only; empty: there are none
	Password config.Secret `conf:"password"`
	DBName   string        `conf:"dbname"` // empty: User; with LoginAs client, the database that the client asks for
	// ChannelBinding says whether the gateway logs in by SCRAM-SHA-256-PLUS to servers with TLS.
	ChannelBinding ChannelBinding `conf:"channel_binding" default:"prefer"`
	// MaxPairs is how many pairs of user and database may exist at a time, with LoginAs client.
	MaxPairs int `conf:"max_pairs" default:"1000" min:"1" max:"10000"`
	// MaxConnections is how many connections to each endpoint all pairs may have together; 0: pool.max_size each.
	MaxConnections int `conf:"max_connections" default:"0" min:"0" max:"100000"`
	// Params are settings of every connection to the server, such as statement_timeout; a client's own win.
	Params []Param `conf:"params" key:"Name" scalar:"Value" maxlen:"100"`
	// Target says which role a server must have to get clients.
	Target Target `conf:"target" default:"any"`
	// ReadCatalogs has the gateway read the functions, views and triggers of the database, for listeners
	// in transaction mode.
	ReadCatalogs ReadCatalogs `conf:"read_catalogs" default:"evident"`
}

// LoginAs says as whom the gateway logs in to servers for its clients.
type LoginAs string

// The values of LoginAs.
const (
	AsUpstream LoginAs = "upstream"
	AsClient   LoginAs = "client"
)

// Values implements config.Enum.
func (LoginAs) Values() []string { return []string{"upstream", "client"} }

// Target is a role of servers, in the words of libpq's target_session_attrs.
type Target string

// TargetAny accepts every server.
const TargetAny Target = "any"

// Values implements config.Enum.
func (Target) Values() []string {
	return []string{"any", "primary", "standby", "prefer-standby", "read-write", "read-only"}
}

// ReadCatalogs says whether the gateway reads a database's catalogs, and whether it trusts them.
type ReadCatalogs string

// The values of ReadCatalogs.
const (
	CatalogsNever   ReadCatalogs = "false"
	CatalogsEvident ReadCatalogs = "evident"
	CatalogsHidden  ReadCatalogs = "hidden"
	CatalogsTrusted ReadCatalogs = "true"
)

// Values implements config.Enum.
func (ReadCatalogs) Values() []string { return []string{"false", "evident", "hidden", "true"} }

var catalogs = map[ReadCatalogs]pgproxy.Catalogs{
	CatalogsNever: pgproxy.CatalogsNever, CatalogsEvident: pgproxy.CatalogsEvident, CatalogsHidden: pgproxy.CatalogsHidden, CatalogsTrusted: pgproxy.CatalogsTrusted,
}

// Param is a PostgreSQL setting.
type Param struct {
	Name  string `conf:"-"`
	Value string `conf:"value" required:"true"`
}

// SQLiteFile has the settings of an upstream that is a SQLite file.
type SQLiteFile struct {
	MaxMemoryMiB int `conf:"max_memory_mib" default:"512" min:"16" max:"1048576"` // of all statements together; a value may take a fourth of it
}

// sqlitePrefix begins the endpoint of an upstream that is a SQLite file.
const sqlitePrefix = "sqlite:"

// sqliteReaders is the size of the pool of readers of a SQLite file.
const sqliteReaders = 4

// sqlitePath returns the database file's path when an upstream is one.
func sqlitePath(u *config.Upstream) (path string, ok bool) { return u.FileAt(sqlitePrefix) }

// loginOf returns how to log in to the servers of an upstream; nil: the file has no login.
func loginOf(u *config.Upstream) *PostgresUpstream { return config.PartOf[UpstreamKeys](u).Postgres }

// logsInAsClient reports whether the gateway logs in to the servers of an upstream as each client's user.
func logsInAsClient(u *config.Upstream) bool {
	return u != nil && loginOf(u) != nil && loginOf(u).LoginAs == AsClient
}

// postgresKeys describes the protocol's keys in upstreams.
func postgresKeys() *config.Extension {
	return &config.Extension{
		Upstream: &UpstreamKeys{}, CheckUpstream: checkPostgresUpstream,
		Files: map[string]func(string) error{sqlitePrefix: checkSQLitePath},
	}
}

// isPostgres reports whether an upstream has keys, or an endpoint, of the protocol.
func isPostgres(u *config.Upstream) bool {
	_, sqlite := sqlitePath(u)
	return sqlite || loginOf(u) != nil
}

// postgresLimits are the limits of one upstream's pools.
func postgresLimits(u *config.Upstream, p *config.Pool) {
	if _, sqlite := sqlitePath(u); sqlite {
		p.MaxSize = sqliteReaders
	}
}

func checkSQLitePath(path string) error {
	if strings.HasPrefix(path, ":memory:") || strings.Contains(path, "?") {
		return errors.New("want the path of a database file after \"sqlite:\"; memory databases and parameters are not supported")
	}
	return nil
}

// checkPostgresUpstream checks the keys and endpoints of the protocol, in upstreams of any protocol.
func checkPostgresUpstream(c *config.Checker, u *config.Upstream) {
	keys := config.PartOf[UpstreamKeys](u)
	if u.Health != nil && u.Health.Postgres && u.Protocol != config.Postgres {
		c.Report(c.Mark(&u.Health.Postgres), "postgres: this check is for PostgreSQL servers; this upstream's protocol is %q", u.Protocol)
	}
	if keys.Postgres != nil {
		if u.Protocol != config.Postgres {
			c.Report(c.Mark(&keys.Postgres), "\"postgres\": these settings are for another protocol; this upstream's is %q", u.Protocol)
		}
		checkParams(c, keys.Postgres.Params)
		checkServerBinding(c, u, keys.Postgres)
	}
	for i := range u.Endpoints {
		if e := u.Endpoints[i].Address; strings.HasPrefix(e, sqlitePrefix) && len(u.Endpoints) > 1 {
			c.Report(c.Mark(&u.Endpoints[i]), "endpoint %q: a SQLite file must be the only endpoint of its upstream", e)
		}
	}
	if _, sqlite := sqlitePath(u); sqlite {
		checkSQLite(c, u, keys)
		return
	}
	if keys.SQLite != nil {
		c.Report(c.Mark(&keys.SQLite), "\"sqlite\" applies to a SQLite file only")
	}
	if logsInAsClient(u) {
		checkOwnUser(c, u, keys.Postgres)
		if keys.Postgres.MaxConnections > 0 && u.Pool.Overflow == config.OverflowDirect {
			c.Report(c.Mark(&keys.Postgres.MaxConnections), "max_connections: cannot bound the connections of overflow: direct; remove one of them")
		}
		return
	}
	if keys.Postgres != nil && c.Written(&keys.Postgres.MaxPairs) {
		c.Warn(c.Mark(&keys.Postgres.MaxPairs), "max_pairs: has no effect without login_as: client")
	}
	if keys.Postgres != nil && c.Written(&keys.Postgres.MaxConnections) {
		c.Warn(c.Mark(&keys.Postgres.MaxConnections), "max_connections: has no effect without login_as: client; max_size of the pool is the limit")
	}
	if u.Protocol == config.Postgres && (len(u.Endpoints) > 0 || u.Discover != nil) && (keys.Postgres == nil || !c.Written(&keys.Postgres.User)) {
		c.Report(c.Mark(&keys.Postgres, &u.Name), "\"user\" is missing under \"postgres\": who the gateway logs in as at the server")
	}
}

// checkOwnUser reports what an upstream that logs in as its clients cannot do without a user of its own.
func checkOwnUser(c *config.Checker, u *config.Upstream, pg *PostgresUpstream) {
	if pg.User != "" {
		return
	}
	if pg.Target != TargetAny && c.NoProblemAt(&pg.Target) {
		c.Report(c.Mark(&pg.Target), "target: %s: the gateway asks the servers for their roles, and this upstream has no \"user\" of its own under \"postgres\" to log in as (login_as: client); add one", string(pg.Target))
	}
	if c.Written(&pg.Password) {
		c.Report(c.Mark(&pg.Password), "password: there is no \"user\" that it is of; with login_as: client both are for the gateway's own connections")
	}
	if u.Health != nil && u.Health.Postgres {
		c.Report(c.Mark(&u.Health.Postgres), "health: postgres: true logs in, and this upstream has no \"user\" of its own under \"postgres\" (login_as: client); add one, or write tcp: true")
	}
}

// checkSQLite refuses keys that do not apply to a SQLite file.
func checkSQLite(c *config.Checker, u *config.Upstream, keys *UpstreamKeys) {
	if u.Protocol != config.Postgres {
		c.Report(c.Mark(&u.Endpoints[0]), "endpoint %q: a SQLite file is served by postgres listeners only, this upstream is used by a listener of protocol %s",
			u.Endpoints[0].Address, u.Protocol)
	}
	for _, s := range []struct {
		key string
		ptr any
	}{{"slow_start", &u.SlowStart}, {"on_removed", &u.OnRemoved}, {"drain_timeout", &u.RemovedTimeout}, {"tls", &u.TLS}, {"keep_alive", &u.KeepAlive}, {"health", &u.Health}, {"postgres", &keys.Postgres}} {
		if c.Written(s.ptr) {
			c.Report(c.Mark(s.ptr), "%q does not apply to a SQLite file", s.key)
		}
	}
}

// checkParams refuses names that no setting has, and settings that a connection cannot change.
func checkParams(c *config.Checker, params []Param) {
	seen := map[string]bool{}
	for i := range params {
		p := &params[i]
		name, pos := strings.ToLower(p.Name), c.Mark(&p.Name)
		switch {
		case name == "user" || name == "database":
			c.Report(pos, "params: %q is not a setting; write \"user\" and \"dbname\" beside params", p.Name)
		case name == "role" || name == "session_authorization":
			c.Report(pos, "params: %q would not outlive a client that changes its role; log in as the user it should be", p.Name)
		case name == "options":
			c.Report(pos, "params: write the settings in \"options\" one by one")
		case name == "replication" || strings.HasPrefix(name, "_pq_."):
			c.Report(pos, "params: %q is not possible through the gateway", p.Name)
		case name == "" || strings.ContainsFunc(name, notInParam):
			c.Report(pos, "params: %q: want the name of a setting: letters, digits, \"_\" and \".\"", config.Clip(p.Name))
		case seen[name]:
			c.Report(pos, "params: %q is there twice; case makes no difference", p.Name)
		}
		seen[name] = true
		if strings.ContainsRune(p.Value, 0) {
			c.Report(c.Mark(&p.Value), "params: the value of %q has a NUL character in it", config.Clip(p.Name))
		}
	}
}

// notInParam reports whether no name of a setting can have the character.
func notInParam(r rune) bool {
	return r != '_' && r != '.' && r != '$' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
}
