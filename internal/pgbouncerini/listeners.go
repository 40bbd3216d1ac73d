package pgbouncerini

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/internal/yamltext"
	"github.com/headpond/headpond/pgwire"
)

// authentication is how clients log in, the same on all listeners.
type authentication struct {
	method    string
	usersFile string // "": none
	hba       string // file of rules, for method rules; "": certificates decide
	ident     string // file of maps; "": none
	query     string // "": none
	upstream  string // for query
}

// authentication decides how clients log in, and adds the upstream of auth_query.
func (c *converter) authentication(upstreams *yamltext.Mapping) (auth authentication) {
	kind := c.set["auth_type"]
	auth.method = strings.ToLower(kind.text)
	file := c.set["auth_file"]
	if file.text != "" {
		auth.usersFile = c.path(file.text)
	}
	switch auth.method {
	case "any", "trust":
		c.trust(auth.method)
		return authentication{method: "trust"}
	case "md5", "scram-sha-256":
	case "plain":
		auth.method = c.hashed()
		c.report(kind.at, "auth_type", Differs, "no password is asked for in clear text; the same passwords work with %s", auth.method)
	case "hba":
		auth.method, auth.hba = "rules", c.path(c.set["auth_hba_file"].text)
		if ident := c.set["auth_ident_file"].text; ident != "" {
			auth.ident = c.path(ident)
		}
	case "cert":
		auth.method = "rules"
	default:
		auth.method = c.hashed()
		c.report(kind.at, "auth_type", Missing, "passwords are not checked by %s: let PostgreSQL have the users, and set `auth_query`, or write a `users_file`", kind.text)
	}
	c.authQuery(&auth, upstreams)
	return auth
}

// hashed returns the method for a file of secrets: md5 if a user has only that.
func (c *converter) hashed() string {
	for _, secret := range c.secrets {
		if pgwire.IsMD5Secret(secret) {
			return "md5"
		}
	}
	return "scram-sha-256"
}

// trust reports what auth_type any and trust do besides.
func (c *converter) trust(kind string) {
	at := c.set["auth_type"].at
	if kind == "trust" {
		c.report(at, "auth_type", Differs, "clients may log in as any user, not only as those of auth_file")
	}
	for _, d := range c.databases {
		if !d.set["user"].written() && len(c.secrets) > 0 {
			c.report(d.Entry, d.Key, Missing, "with auth_type %s PgBouncer logs in to the server with the passwords of auth_file; here the server has to trust the gateway, or clients must log in with a password", kind)
		}
	}
	if kind == "any" && c.console() {
		c.report(at, "auth_type", Missing, "with `any` everybody may use the console; here only admin_users and stats_users may, from this machine")
	}
	c.reportOf("auth_file", Ignored, "with auth_type %s nobody is asked for a password", kind)
	c.reportOf("auth_user", Ignored, "with auth_type %s nobody is asked for a password", kind)
	c.reportOf("auth_query", Ignored, "with auth_type %s nobody is asked for a password", kind)
}

// unqualified matches a call of a function without a schema.
var unqualified = regexp.MustCompile(`(?i)\bfrom\s+([a-z_][a-z0-9_]*)\s*\(`)

// authQuery adds the upstream that runs auth_query.
func (c *converter) authQuery(auth *authentication, upstreams *yamltext.Mapping) {
	var from *database // that says who asks
	var user, query value
	for _, d := range c.databases {
		u, _ := d.own("auth_user", "auth_user")
		if u.text == "" {
			if from != nil {
				c.report(d.Entry, d.Key, Differs, "users of auth_query may log in here, too: the query is for all databases of a listener")
			}
			continue
		}
		q, _ := d.own("auth_query", "auth_query")
		if from == nil {
			from, user, query = d, u, q
			continue
		}
		if u.text != user.text || q.text != query.text {
			c.report(d.Entry, d.Key+": auth_query", Missing, "one query and user are for all databases of a listener, here those of %q: give this database a listener of its own, on another port", from.Key)
		}
	}
	if from == nil {
		c.reportOf("auth_query", Ignored, "PgBouncer does not use it without auth_user")
		return
	}
	if m := unqualified.FindStringSubmatch(query.text); m != nil {
		c.report(query.at, "auth_query", Missing, "the query runs with search_path = pg_catalog, pg_temp: write the schema of %s", m[1])
	}
	at := c.askIn(from)
	endpoints := at.endpoints()
	if query.text == "" || len(endpoints) == 0 {
		c.report(cmp.Or(query.at, from.Entry), "auth_query", Missing, "there is no query, or no server of %q to run it: only users of auth_file can log in", at.Key)
		return
	}
	auth.query = query.text
	auth.upstream = c.upstreamName("auth")
	u := upstreams.In(auth.upstream)
	at.connection(u, endpoints)
	pg := u.In("postgres")
	pg.Put("user", yamltext.Quote(user.text), "auth_user")
	c.password(pg, auth.upstream, cmp.Or(user.at, from.Entry), at.Key, "auth_user", user.text, value{})
	name := cmp.Or(at.set["dbname"].text, at.Key)
	if name == "*" {
		name = cmp.Or(c.authDatabase(from), "postgres")
	}
	pg.Put("dbname", yamltext.Quote(name), "where auth_query runs")
}

func (c *converter) authDatabase(d *database) string {
	v, _ := d.own("auth_dbname", "auth_dbname")
	return v.text
}

// askIn returns the database in which auth_query runs.
func (c *converter) askIn(from *database) *database {
	name := c.authDatabase(from)
	if name == "" {
		if len(c.databases) > 1 || from.isFallback() {
			c.report(cmp.Or(c.set["auth_query"].at, c.set["auth_user"].at, from.Entry), "auth_query", Differs,
				"PgBouncer runs it in the database that the client asks for; here it runs in one, the `dbname` of `auth_upstream`")
		}
		return from
	}
	for _, d := range c.databases {
		if d.Key == name || d.isFallback() && !slices.ContainsFunc(c.databases, func(o *database) bool { return o.Key == name }) {
			return d
		}
	}
	c.report(cmp.Or(from.set["auth_dbname"].at, c.set["auth_dbname"].at), "auth_dbname", Missing, "there is no database %q in section [databases]: PgBouncer lets nobody in by auth_query; here it runs on the server of %q", name, from.Key)
	return from
}

// console reports whether anybody may use the console.
func (c *converter) console() bool {
	return len(c.set["admin_users"].list())+len(c.set["stats_users"].list()) > 0
}

// addListeners writes a listener for each address.
func (c *converter) addListeners(out *yamltext.Mapping, targets []target, auth authentication) {
	port := c.set["listen_port"].text
	if c.opt.Port != 0 {
		port = strconv.Itoa(c.opt.Port)
	}
	addresses := c.set["listen_addr"].list()
	if slices.Contains(addresses, "*") {
		addresses = []string{""}
	}
	dir := c.set["unix_socket_dir"]
	if strings.HasPrefix(dir.text, "@") {
		c.report(dir.at, "unix_socket_dir", Missing, "sockets of the abstract namespace cannot be listened on: write a directory")
		dir.text = ""
	}
	total := len(addresses)
	if dir.text != "" {
		total++
	}
	for i, address := range addresses {
		l := out.Add("listeners")
		name := "db"
		if i > 0 {
			name = fmt.Sprintf("db-%d", i+1)
		}
		l.Put("name", name, "")
		l.Put("protocol", "postgres", "")
		l.Put("listen", yamltext.Quote(net.JoinHostPort(strings.Trim(address, "[]"), port)), c.heard(address))
		c.clientTLS(l)
		c.keepAlive(l)
		c.serve(l, targets, auth, total, true)
	}
	if dir.text != "" {
		l := out.Add("listeners")
		l.Put("name", "db-unix", "")
		l.Put("protocol", "postgres", "")
		l.Put("listen", yamltext.Quote(fmt.Sprintf("unix:%s/.s.PGSQL.%s", strings.TrimRight(c.path(dir.text), "/"), port)), origin("unix_socket_dir", dir))
		c.socket(l)
		c.serve(l, targets, auth, total, false)
	}
}

// heard is the comment at an address to listen on.
func (c *converter) heard(address string) string {
	if c.opt.Port != 0 {
		return "listen_port is " + c.set["listen_port"].text
	}
	if net.ParseIP(strings.Trim(address, "[]")) == nil && address != "" {
		return "the first address of this name"
	}
	return ""
}

// socket writes who may connect to the socket of a file.
func (c *converter) socket(l *yamltext.Mapping) {
	mode, group := c.set["unix_socket_mode"], c.set["unix_socket_group"]
	s := l.In("socket")
	s.Put("mode", fmt.Sprintf(`"%04o"`, mode.number()&0o777|0o200), origin("unix_socket_mode", mode))
	if group.text == "" {
		return
	}
	if user := c.set["user"].text; user != "" {
		s.Put("owner", yamltext.Quote(user+":"+group.text), "user, unix_socket_group")
		return
	}
	c.report(group.at, "unix_socket_group", Missing, "a socket has an owner and a group: write `owner: USER:%s` below `socket`, with the user of the gateway", group.text)
}

// clientTLS writes the TLS of a listener.
func (c *converter) clientTLS(l *yamltext.Mapping) {
	mode := strings.ToLower(c.set["client_tls_sslmode"].text)
	if mode == "disable" {
		return
	}
	t := l.In("tls")
	t.Put("cert", yamltext.Quote(c.path(c.set["client_tls_cert_file"].text)), "client_tls_cert_file")
	t.Put("key", yamltext.Quote(c.path(c.set["client_tls_key_file"].text)), "client_tls_key_file")
	ca, kind := c.set["client_tls_ca_file"].text, strings.ToLower(c.set["auth_type"].text)
	if verify := strings.HasPrefix(mode, "verify"); ca != "" && (verify || kind == "hba" || kind == "cert") {
		t.Put("client_ca", yamltext.Quote(c.path(ca)), "client_tls_ca_file")
		if !verify {
			t.Put("client_auth", "request", "client_tls_sslmode = "+mode)
		}
	} else if verify {
		c.report(c.set["client_tls_sslmode"].at, "client_tls_sslmode", Missing, "there is no client_tls_ca_file: write `client_ca` below `tls`, the authorities of clients' certificates")
	} else {
		c.reportOf("client_tls_ca_file", Ignored, "clients are not asked for certificates in this client_tls_sslmode")
	}
}

// requiresTLS reports whether clients without TLS are refused.
func (c *converter) requiresTLS() bool {
	return slices.Contains([]string{"require", "verify-ca", "verify-full"}, strings.ToLower(c.set["client_tls_sslmode"].text))
}

// keepAlive writes how vanished peers are found, if the file says so.
func (c *converter) keepAlive(out *yamltext.Mapping) {
	const longest = 9 * time.Hour
	k := &yamltext.Mapping{}
	if !c.set["tcp_keepalive"].on() {
		c.reportOf("tcp_keepalive", Ignored, "connections are always probed")
	} else {
		for _, t := range []struct{ from, to string }{{"tcp_keepidle", "idle"}, {"tcp_keepintvl", "interval"}} {
			if v := c.set[t.from]; v.number() > 0 {
				k.Put(t.to, c.duration(v, t.from, time.Second, longest, false), t.from)
			}
		}
		if v := c.set["tcp_keepcnt"]; v.number() > 0 {
			k.Put("count", strconv.Itoa(min(v.number(), 127)), "tcp_keepcnt")
		}
	}
	if v := c.set["tcp_user_timeout"]; v.number() > 0 {
		k.Put("tcp_user_timeout", yamltext.Short(min(max(time.Duration(v.number())*time.Millisecond, time.Second), 24*time.Hour)), "tcp_user_timeout, milliseconds")
	}
	if len(k.Fields) > 0 {
		out.In("keep_alive").Fields = k.Fields
	}
}

// serve writes what a listener does with its clients.
func (c *converter) serve(l *yamltext.Mapping, targets []target, auth authentication, listeners int, tcp bool) {
	most := c.set["max_client_conn"]
	comment := origin("max_client_conn", most)
	if !most.written() {
		comment += "; the gateway's is 10000"
	}
	if listeners > 1 {
		comment += fmt.Sprintf(", here for each of %d listeners", listeners)
	}
	l.Put("max_conns", strconv.Itoa(max(1, min(most.number(), 10_000_000))), comment)
	pg := l.In("postgres")
	comment = ""
	if !c.set["pool_mode"].written() && c.mode == "session" {
		comment = "PgBouncer's default; transaction serves more clients with fewer connections"
	}
	pg.Put("mode", c.mode, comment)
	pg.Put("auth", auth.method, "auth_type = "+c.set["auth_type"].text)
	switch {
	case auth.method != "rules":
	case auth.hba == "":
		rule := pg.Add("auth_rules")
		rule.Put("type", "hostssl", "")
		rule.Put("database", "all", "")
		rule.Put("user", "all", "")
		rule.Put("address", "all", "")
		rule.Put("method", "cert", "the common name is the user")
	default:
		pg.Put("auth_hba_file", yamltext.Quote(auth.hba), "auth_hba_file")
		if auth.ident != "" {
			pg.Put("auth_ident_file", yamltext.Quote(auth.ident), "auth_ident_file")
		}
	}
	if auth.usersFile != "" {
		pg.Put("users_file", yamltext.Quote(auth.usersFile), "auth_file")
	}
	if auth.query != "" {
		pg.Put("auth_query", yamltext.Quote(auth.query), "")
		pg.Put("auth_upstream", auth.upstream, "auth_user")
	}
	if tcp && c.requiresTLS() {
		pg.Put("require_tls", "true", "client_tls_sslmode = "+strings.ToLower(c.set["client_tls_sslmode"].text))
	}
	c.clientLimits(pg)
	if v := c.set["client_idle_timeout"]; v.seconds() > 0 {
		pg.Put("client_idle_timeout", c.duration(v, "client_idle_timeout", time.Second, 8760*time.Hour, false), "client_idle_timeout")
	}
	if c.console() {
		console := pg.In("console")
		if admins := c.set["admin_users"].list(); len(admins) > 0 {
			console.Put("admins", yamltext.List(admins), "admin_users")
		}
		if viewers := c.set["stats_users"].list(); len(viewers) > 0 {
			console.Put("viewers", yamltext.List(viewers), "stats_users")
		}
	}
	databases := pg.In("databases")
	for _, t := range targets {
		databases.Put(yamltext.Quote(t.Key), yamltext.Quote(t.upstream), "")
	}
}

// clientLimits writes how many clients of a user and of a database there may be.
func (c *converter) clientLimits(pg *yamltext.Mapping) {
	const ofUser, ofDatabase = "max_user_client_connections", "max_db_client_connections"
	limits, users, databases := &yamltext.Mapping{}, &yamltext.Mapping{}, &yamltext.Mapping{}
	put := func(to *yamltext.Mapping, name string, v value, from string) {
		if n := v.number(); v.written() && (n > 0 || n == 0 && c.set[from].number() > 0) {
			to.Put(name, strconv.Itoa(min(n, 10_000_000)), from)
		}
	}
	put(limits, "per_user", c.set[ofUser], ofUser)
	put(limits, "per_database", c.set[ofDatabase], ofDatabase)
	for _, u := range c.users {
		put(users, yamltext.Quote(u.Key), u.set[ofUser], ofUser)
	}
	for _, d := range c.databases {
		if v := d.set[ofDatabase]; d.isFallback() && v.number() > 0 {
			c.report(v.at, "*: "+ofDatabase, Missing, "limits of databases have names here: write those that clients use below `databases` of `max_clients`")
			continue
		}
		put(databases, yamltext.Quote(d.Key), d.set[ofDatabase], ofDatabase)
	}
	if len(users.Fields) > 0 {
		limits.In("users").Fields = users.Fields
	}
	if len(databases.Fields) > 0 {
		limits.In("databases").Fields = databases.Fields
	}
	if len(limits.Fields) > 0 {
		pg.In("max_clients").Fields = limits.Fields
	}
}

// reportTLS reports settings of TLS that the gateway decides by itself.
func (c *converter) reportTLS() {
	for _, side := range []string{"client", "server"} {
		if v := c.set[side+"_tls_protocols"]; v.written() && !slices.Contains([]string{"", "secure", "default", "tlsv1.2,tlsv1.3"}, strings.ReplaceAll(strings.ToLower(v.text), " ", "")) {
			c.report(v.at, side+"_tls_protocols", Differs, "TLS 1.2 and 1.3 are used; older versions are not, and 1.2 cannot be switched off")
		}
		for _, name := range []string{"_tls_ciphers", "_tls13_ciphers"} {
			if v := c.set[side+name]; v.written() && !slices.Contains([]string{"", "default", "secure", "fast", "normal"}, strings.ToLower(v.text)) {
				c.report(v.at, side+name, Differs, "the ciphers are Go's: modern ones only")
			}
		}
	}
	if strings.EqualFold(c.set["client_tls_sslmode"].text, "disable") {
		c.reportOf("client_tls_cert_file", Ignored, "client_tls_sslmode is disable")
		c.reportOf("client_tls_key_file", Ignored, "client_tls_sslmode is disable")
		c.reportOf("client_tls_ca_file", Ignored, "client_tls_sslmode is disable")
	}
}

// reportAuth reports settings of authentication that have no effect with this auth_type.
func (c *converter) reportAuth() {
	if kind := strings.ToLower(c.set["auth_type"].text); kind != "hba" {
		c.reportOf("auth_hba_file", Ignored, "PgBouncer does not use it with auth_type %s", kind)
		c.reportOf("auth_ident_file", Ignored, "PgBouncer does not use it with auth_type %s", kind)
	}
	if kind := strings.ToLower(c.set["auth_type"].text); kind != "ldap" {
		c.reportOf("auth_ldap_options", Ignored, "PgBouncer does not use it with auth_type %s", kind)
	} else {
		c.reportOf("auth_ldap_options", Missing, "passwords are not checked by LDAP")
	}
	if q := c.set["server_check_query"]; q.written() && q.text != "" && q.text != "<empty>" {
		c.report(q.at, "server_check_query", Itself, "the gateway has its own check of idle connections")
	}
}
