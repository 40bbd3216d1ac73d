package protocols

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/pgproxy"
)

func init() {
	extend.RegisterProtocol(extend.Protocol{Prepare: preparePostgres, Backend: newPostgresBackend, Rebuilds: rebuildsPostgres, Files: authFiles, OffLoop: servesSQLite, Reuses: true, Heavy: true, Config: config.ListenerProtocol{
		Name: config.Postgres, Section: &PostgresListener{}, Default: defaultPostgres, Upstreams: databasesAt, Check: checkPostgres, Finish: finishPostgres, Named: authLists,
		// Servers allow 100 connections by default, shared with other clients.
		Pool: config.Pool{MaxSize: 20, IdleTimeout: 5 * time.Minute, CheckAfter: time.Second}, Limits: postgresLimits,
		Keys: postgresKeys(), Uses: isPostgres, ClientCerts: true, ClientFirst: true, TLSWithin: true,
	}})
}

func authFiles(l *config.Listener) []config.Path {
	pg := config.SectionOf[PostgresListener](l)
	return append(filesOf(pg.AuthHBAFile, config.Path.Read), pg.UsersFile, pg.AuthHBAFile, pg.AuthIdentFile)
}

// authLists lists the files that a listener's pg_hba.conf names.
func authLists(l *config.Listener) []config.Path {
	return filesOf(config.SectionOf[PostgresListener](l).AuthHBAFile, config.Path.ReadRegular)
}

// servesSQLite reports whether one of a listener's databases is a SQLite file: SQLite computes and
// waits for files, which would block a loop.
func servesSQLite(cfg *config.Config, l *config.Listener) bool {
	return slices.ContainsFunc(l.Upstreams(), func(name string) bool { _, sqlite := sqlitePath(cfg.Upstream(name)); return sqlite })
}

func preparePostgres(l extend.Listener) (extend.Server, error) {
	pg := config.SectionOf[PostgresListener](l.Listener)
	users, err := loadUsers(pg.UsersFile)
	if err != nil {
		return extend.Server{}, err
	}
	query, err := authQuery(l, pg)
	if err != nil {
		return extend.Server{}, err
	}
	rules, maps, err := loadRules(pg)
	if err != nil {
		return extend.Server{}, err
	}
	members, err := membersOf(l, pg, rules)
	if err != nil {
		return extend.Server{}, err
	}
	cfg := pgproxy.Config{
		Members:  members,
		Listener: l.Common, Users: users, AuthQuery: query, Databases: map[string]pgproxy.Backend{}, TLS: l.TLS, RequireTLS: pg.RequireTLS,
		ShowStatements: pg.ShowStatements, ClientIdleTimeout: pg.ClientIdleTimeout, MaxClients: pg.MaxClients.settings(), MaxPinned: pg.MaxPinned, ReplicationUsers: pg.ReplicationUsers,
		OnState: map[OnState]pgproxy.OnState{PinState: pgproxy.PinState, RefuseState: pgproxy.RefuseState, ResetState: pgproxy.ResetState}[pg.OnState],
		PinAlso: pinsAlso(pg.PinAlso),
		Mode:    modes[pg.Mode],
		Auth:    auths[pg.Auth], Rules: rules, Maps: maps, ChannelBinding: channelBindings[pg.ChannelBinding],

		CancelElsewhere: l.Gateway.Cancel, FailedLogins: pg.failedLogins(),
	}
	if cfg.Console, err = newConsole(l, pg, users); err != nil {
		return extend.Server{}, err
	}
	for _, db := range pg.Databases {
		if cfg.Databases[db.Name], err = extend.Runs[pgproxy.Backend](l, db.Upstream); err != nil {
			return extend.Server{}, err
		}
	}
	return extend.Serve(cfg, pgproxy.New)
}

// loadUsers reads a user list; "" is none.
func loadUsers(path config.Path) (pgproxy.Users, error) {
	if path == "" {
		return nil, nil
	}
	text, err := path.Read()
	if err != nil {
		return nil, fmt.Errorf("users_file: %w", err)
	}
	users, err := pgproxy.ParseUsers(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("users_file %s: %s", path, strings.ReplaceAll(err.Error(), pgproxy.ErrConfig.Error()+": ", ""))
	}
	return users, nil
}

// PostgresListener is the section of a postgres listener.
type PostgresListener struct {
	Mode      PoolMode    `conf:"mode" default:"transaction"`
	Auth      Auth        `conf:"auth"`       // default: rules if there are some, scram-sha-256 with a users file or AuthQuery, else trust (refused off loopback unless written out)
	UsersFile config.Path `conf:"users_file"` // lines of "user" "secret"
	// AuthRules choose how each client authenticates: the first one that matches. AuthHBAFile has them in the form of PostgreSQL's pg_hba.conf.
	AuthRules   []AuthRule  `conf:"auth_rules" maxlen:"10000"`
	AuthHBAFile config.Path `conf:"auth_hba_file"`
	// AuthMaps are maps of names that rules refer to. AuthIdentFile has them in the form of PostgreSQL's pg_ident.conf.
	AuthMaps      []AuthMap   `conf:"auth_maps" maxlen:"10000"`
	AuthIdentFile config.Path `conf:"auth_ident_file"`
	// AuthQuery is a query for the name and secret of a user, $1, that the users file does not have.
	AuthQuery string `conf:"auth_query"`
	// AuthUpstream runs AuthQuery, as a user that no client's session should have, and knows the members of roles in rules.
	AuthUpstream string `conf:"auth_upstream"`
	// FailedLogins bounds how often a client address may send a wrong password for a user. All its users together have ten times
	// as many attempts. nil: 50 within 5s.
	FailedLogins *FailedLogins `conf:"failed_logins"`
	// RequireTLS refuses clients without TLS, except those of Unix sockets.
	RequireTLS bool `conf:"require_tls"`
	// ChannelBinding says whether clients with TLS may, or must, use SCRAM-SHA-256-PLUS.
	ChannelBinding ChannelBinding `conf:"channel_binding" default:"prefer"`
	// ShowStatements makes the list of sessions show the beginning of each client's last statement.
	// Statements may hold secrets.
	ShowStatements bool `conf:"show_statements"`
	// ClientIdleTimeout ends the session of a client that is idle for longer outside a transaction.
	ClientIdleTimeout time.Duration `conf:"client_idle_timeout" default:"never" min:"1s" max:"8760h" never:"0s"`
	// MaxClients bounds the clients of each user and of each database.
	MaxClients ClientLimits `conf:"max_clients"`
	// OnState says what happens to session state that cannot follow its client in transaction mode.
	OnState OnState `conf:"on_session_state" default:"pin"`
	// MaxPinned is how many server connections of an upstream clients may keep for such state; 0: half of its max_size, at least 1.
	MaxPinned int `conf:"max_pinned" min:"0" max:"1000000"`
	// PinAlso are further kinds of session state that pin a client in transaction mode.
	PinAlso []PinAlso `conf:"pin_also" single:"true" maxlen:"3"`
	// ReplicationUsers are the clients' users that may make replication connections, or "*"; empty: none.
	// The upstream's user replicates; with LoginAs client, the client's.
	ReplicationUsers []string `conf:"replication_users" single:"true" maxlen:"1000"`
	// Console is a database that shows and controls the listener, with the commands of PgBouncer; nil: there is none.
	Console   *Console   `conf:"console"`
	Databases []Database `conf:"databases" key:"Name" scalar:"Upstream" maxlen:"10000"` // empty: every database is the listener's upstream
}

// FailedLogins bounds logins with a wrong password.
type FailedLogins struct {
	Attempts int           `conf:"attempts" required:"true" min:"0" max:"1000000"` // at once, and then one each Per/Attempts; 0: any number
	Per      time.Duration `conf:"per" default:"5s" min:"10ms" max:"1h"`
}

// standardFailedLogins lets a program that still has an old password try some times a second for each of its connections,
// and holds somebody who guesses to less than a million attempts a day.
var standardFailedLogins = FailedLogins{Attempts: 50, Per: 5 * time.Second}

func (pg *PostgresListener) failedLogins() pgproxy.FailedLogins {
	if pg.FailedLogins == nil {
		return pgproxy.FailedLogins(standardFailedLogins)
	}
	return pgproxy.FailedLogins(*pg.FailedLogins)
}

// PoolMode is how long a client keeps a server connection.
type PoolMode string

// The pool modes.
const (
	TransactionMode PoolMode = "transaction"
	SessionMode     PoolMode = "session"
	StatementMode   PoolMode = "statement"
)

var modes = map[PoolMode]pgproxy.Mode{
	TransactionMode: pgproxy.Transaction, SessionMode: pgproxy.Session, StatementMode: pgproxy.Statement,
}

// Values implements config.Enum.
func (PoolMode) Values() []string { return []string{"transaction", "session", "statement"} }

// OnState says what happens to session state that cannot follow its client.
type OnState string

// The values of OnState.
const (
	PinState    OnState = "pin"
	RefuseState OnState = "refuse"
	ResetState  OnState = "reset"
)

// Values implements config.Enum.
func (OnState) Values() []string { return []string{"pin", "refuse", "reset"} }

// PinAlso is a kind of session state that pins a client only on request.
type PinAlso string

// The values of PinAlso.
const (
	PinSequences    PinAlso = "sequence_values"
	PinSettingNames PinAlso = "setting_names"
	PinTempBuffers  PinAlso = "temp_buffers"
)

// Values implements config.Enum.
func (PinAlso) Values() []string {
	return []string{"sequence_values", "setting_names", "temp_buffers"}
}

// pinsAlso returns the set of the kinds in a list.
func pinsAlso(list []PinAlso) (all pgproxy.PinAlso) {
	for _, kind := range list {
		all |= map[PinAlso]pgproxy.PinAlso{
			PinSequences: pgproxy.PinSequences, PinSettingNames: pgproxy.PinSettingNames, PinTempBuffers: pgproxy.PinTempBuffers,
		}[kind]
	}
	return all
}

// Auth says how clients of a postgres listener authenticate.
type Auth string

// The values of Auth.
const (
	AuthTrust Auth = "trust"
	AuthMD5   Auth = "md5"
	AuthSCRAM Auth = "scram-sha-256"
	AuthRules Auth = "rules" // as AuthRules of the listener, or its AuthHBAFile, say
)

// Values implements config.Enum.
func (Auth) Values() []string { return []string{"trust", "md5", "scram-sha-256", "rules"} }

// auths has what is known of the secrets of users: with rules they may have any form.
var auths = map[Auth]pgproxy.Auth{AuthTrust: pgproxy.AuthTrust, AuthMD5: pgproxy.AuthMD5, AuthSCRAM: pgproxy.AuthSCRAM, AuthRules: pgproxy.AuthMD5}

// ClientLimits bounds the clients at a time; 0: no limit.
type ClientLimits struct {
	PerUser     int           `conf:"per_user" default:"0" min:"0" max:"10000000"`
	PerDatabase int           `conf:"per_database" default:"0" min:"0" max:"10000000"`
	Users       []ClientLimit `conf:"users" key:"Name" scalar:"Most" maxlen:"10000"`     // in place of PerUser
	Databases   []ClientLimit `conf:"databases" key:"Name" scalar:"Most" maxlen:"10000"` // in place of PerDatabase
}

// ClientLimit is the limit of one user or database.
type ClientLimit struct {
	Name string `conf:"-"`
	Most int    `conf:"most" required:"true" min:"0" max:"10000000"`
}

func (l ClientLimits) settings() pgproxy.ClientLimits {
	limits := func(list []ClientLimit) map[string]int {
		all := map[string]int{}
		for _, one := range list {
			all[one.Name] = one.Most
		}
		return all
	}
	return pgproxy.ClientLimits{PerUser: l.PerUser, PerDatabase: l.PerDatabase, Users: limits(l.Users), Databases: limits(l.Databases)}
}

// Database sends one database name, or "*" for every other one, to an upstream.
type Database struct {
	Name     string `conf:"-"`
	Upstream string `conf:"upstream" required:"true"`
}

func defaultPostgres(l *config.Listener) {
	pg := config.SectionOf[PostgresListener](l)
	switch {
	case pg.Auth != "":
	case pg.hasRules():
		pg.Auth = AuthRules
	case pg.UsersFile != "" || pg.AuthQuery != "":
		pg.Auth = AuthSCRAM
	default:
		pg.Auth = AuthTrust
	}
}

func databasesAt(l *config.Listener) (names []*string) {
	pg := config.SectionOf[PostgresListener](l)
	for i := range pg.Databases {
		names = append(names, &pg.Databases[i].Upstream)
	}
	if pg.AuthUpstream != "" {
		names = append(names, &pg.AuthUpstream)
	}
	return names
}

// finishPostgres adds the upstream's own database.
func finishPostgres(cfg *config.Config, l *config.Listener) {
	pg := config.SectionOf[PostgresListener](l)
	has := func(name string) bool {
		return slices.ContainsFunc(pg.Databases, func(db Database) bool { return db.Name == name })
	}
	if name := databaseOf(cfg, l.Upstream); !has("*") && !has(name) {
		pg.Databases = append(pg.Databases, Database{Name: name, Upstream: l.Upstream})
	}
}

// databaseOf is the name under which clients request an upstream's database: a client that requests another one must
// not get this one. A SQLite file has no name and accepts any.
func databaseOf(cfg *config.Config, name string) string {
	switch u := cfg.Upstream(name); {
	case u == nil || loginOf(u) == nil:
		return "*"
	case logsInAsClient(u):
		return cmp.Or(loginOf(u).DBName, "*")
	default:
		return cmp.Or(loginOf(u).DBName, loginOf(u).User, "*")
	}
}

func checkPostgres(c *config.Checker, l *config.Listener) {
	pg := config.SectionOf[PostgresListener](l)
	if len(pg.Databases) == 0 && l.Upstream == "" && !c.Written(&l.Upstream) && !c.Written(&pg.Databases) {
		c.Report(c.Mark(l), "nothing to forward to; give it \"upstream\" or \"databases\" under \"postgres\"")
	}
	for i := range pg.Databases {
		db := &pg.Databases[i]
		if db.Name == "" {
			c.Report(c.Mark(&db.Name), "databases: a name is empty; write \"*\" for every other database")
		}
	}
	if pg.Mode == StatementMode && servesSQLite(c.Config, l) {
		c.Report(c.Mark(&pg.Mode), "mode: statement is for PostgreSQL servers, and one of the databases is a SQLite file; use transaction")
	}
	if pg.RequireTLS && l.TLS == nil {
		c.Report(c.Mark(&pg.RequireTLS), "require_tls: there is no TLS to require; give the listener \"tls\" with \"cert\" and \"key\"")
	}
	checkChannelBinding(c, l, pg)
	if c.Written(&pg.MaxPinned) && (pg.Mode == SessionMode || pg.OnState != PinState) {
		c.Warn(c.Mark(&pg.MaxPinned), "max_pinned: has no effect without mode: transaction and on_session_state: pin")
	}
	switch {
	case len(pg.PinAlso) == 0:
	case pg.OnState != PinState:
		c.Report(c.Mark(&pg.PinAlso), "pin_also: needs on_session_state: pin; it is %q", string(pg.OnState))
	case pg.Mode == SessionMode:
		c.Warn(c.Mark(&pg.PinAlso), "pin_also: has no effect in mode: session")
	default:
		checkPinsAlso(c, l, pg)
	}
	checkClientLimits(c, pg)
	checkUsers(c, pg)
	checkConsole(c, l, pg)
	checkAuthQuery(c, pg)
	checkRules(c, l, pg)
	checkAuth(c, l, pg)
}

// checkClientLimits warns of limits of databases that clients cannot request.
func checkClientLimits(c *config.Checker, pg *PostgresListener) {
	var names []string
	for _, db := range pg.Databases {
		names = append(names, db.Name)
	}
	if len(names) == 0 || slices.Contains(names, "*") {
		return
	}
	for i := range pg.MaxClients.Databases {
		if limit := &pg.MaxClients.Databases[i]; !slices.Contains(names, limit.Name) {
			c.Warn(c.Mark(&limit.Name), "max_clients: no client can request the database %q; there are %s", limit.Name, strings.Join(names, ", "))
		}
	}
}

// checkPinsAlso warns if another listener shares the server connections and pins its clients for fewer
// kinds of state.
func checkPinsAlso(c *config.Checker, l *config.Listener, pg *PostgresListener) {
	for i := range c.Config.Listeners {
		other := &c.Config.Listeners[i]
		if other == l || other.Protocol != config.Postgres || !sharesUpstream(l, other) {
			continue
		}
		o := config.SectionOf[PostgresListener](other)
		if o.Mode == SessionMode || slices.ContainsFunc(pg.PinAlso, func(kind PinAlso) bool { return !slices.Contains(o.PinAlso, kind) }) {
			c.Warn(c.Mark(&pg.PinAlso), "pin_also: listener %q shares an upstream and does not pin for the same: what its clients leave is seen here", other.Name)
			return
		}
	}
}

// sharesUpstream reports whether two listeners have an upstream in common.
func sharesUpstream(a, b *config.Listener) bool {
	of := leasesFrom(a)
	return slices.ContainsFunc(leasesFrom(b), func(name string) bool { return name != "" && slices.Contains(of, name) })
}

// leasesFrom lists the upstreams whose server connections a listener's clients get.
func leasesFrom(l *config.Listener) []string {
	names := []string{l.Upstream}
	for _, db := range config.SectionOf[PostgresListener](l).Databases {
		names = append(names, db.Upstream)
	}
	return names
}

// asClientAt returns one of a listener's upstreams that logs in as the client's user, "" if there is none.
func asClientAt(cfg *config.Config, l *config.Listener) string {
	for _, name := range leasesFrom(l) {
		if logsInAsClient(cfg.Upstream(name)) {
			return name
		}
	}
	return ""
}

// checkUsers reads the user list, so that its mistakes are reported with all others.
func checkUsers(c *config.Checker, pg *PostgresListener) {
	auth, known := auths[pg.Auth]
	if pg.UsersFile == "" || !known || !c.NoProblemAt(&pg.UsersFile) {
		return
	}
	pos := c.Mark(&pg.UsersFile)
	text, err := pg.UsersFile.Read()
	if err != nil {
		c.Report(pos, "users_file: %s", err)
		return
	}
	users, err := pgproxy.ParseUsers(bytes.NewReader(text))
	if err == nil && (len(users) > 0 || pg.AuthQuery == "") {
		err = users.Verify(auth)
	}
	if err == nil {
		checkConsoleUsers(c, pg, users)
		return
	}
	for line := range strings.Lines(err.Error()) {
		c.Report(pos, "users_file %q: %s", string(pg.UsersFile), strings.TrimPrefix(strings.TrimSuffix(line, "\n"), pgproxy.ErrConfig.Error()+": "))
	}
}

// checkAuth prevents configurations that open a database to the network without a password by omission.
func checkAuth(c *config.Checker, l *config.Listener, pg *PostgresListener) {
	usersWritten := c.Written(&pg.UsersFile)
	switch {
	case pg.Auth == AuthTrust && usersWritten:
		c.Warn(c.Mark(&pg.UsersFile), "users_file: has no effect with auth: trust; everybody may log in as anybody")
	case pg.Auth != AuthTrust && pg.Auth != AuthRules && !usersWritten && pg.AuthQuery == "":
		c.Report(c.Mark(&pg.Auth), "auth: %q needs \"users_file\", lines of \"user\" \"secret\", or \"auth_query\"", pg.Auth)
	}
	if pg.Auth != AuthTrust {
		return
	}
	if name := asClientAt(c.Config, l); name != "" && !c.Written(&pg.Auth) {
		c.Report(c.Mark(l), "upstream %q logs in to the servers as each client's user (login_as: client), and nothing asks the clients for a password; set \"users_file\" or \"auth_query\" under \"postgres\","+
			" or write auth: trust there if the servers let these users in without one", name)
		return
	} else if name != "" && !config.Loopback(l.Listen) && l.Listen != "" && c.NoProblemAt(&l.Listen) {
		c.Warn(c.Mark(&pg.Auth), "auth: trust on %q lets every machine that reaches it log in to the servers of upstream %q as any user, superusers too, whom they let in from the gateway without a password", l.Listen, name)
		return
	}
	if config.Loopback(l.Listen) || l.Listen == "" || !c.NoProblemAt(&l.Listen) {
		return
	}
	if !c.Written(&pg.Auth) {
		c.Report(c.Mark(&l.Listen), "listen: %q can be reached from other machines, and nothing asks for a password; set \"users_file\" or \"auth_query\" under \"postgres\","+
			" or write auth: trust there if you mean it", l.Listen)
		return
	}
	c.Warn(c.Mark(&pg.Auth), "auth: trust on %q lets every machine that reaches it log in as anybody", l.Listen)
}
