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

// database is a line of section [databases].
type database struct {
	named
	c *converter
}

// isFallback reports whether it is for all names that have no line.
func (d *database) isFallback() bool { return d.Key == "*" }

func (d *database) mode() string {
	return strings.ToLower(cmp.Or(d.set["pool_mode"].text, d.c.set["pool_mode"].text))
}

// own returns the database's own setting, or else the global one, and its name for comments.
func (d *database) own(key, global string) (value, string) {
	if v := d.set[key]; v.written() && v.text != "-1" {
		return v, d.Key + ": " + key
	}
	return d.c.set[global], global
}

// target is a database name that clients may use.
type target struct {
	*database
	upstream string
}

// unlimited is the size of a pool without a limit.
const unlimited = 10_000

// maxLimit bounds sizes of pools, and max_connections.
const maxLimit = 100_000

// addUpstreams writes an upstream for each database, and returns what clients can reach. Upstreams are not shared, since
// PAUSE and limits are for one database.
func (c *converter) addUpstreams(out *yamltext.Mapping) (targets []target) {
	for _, d := range c.databases {
		endpoints := d.endpoints()
		if len(endpoints) == 0 {
			continue
		}
		if d.isFallback() && d.set["user"].written() && !d.set["dbname"].written() {
			c.report(d.Entry, "*: user", Missing, "an upstream with a `user` has one `dbname`: write a line for each database instead of `*`, and import again")
			continue
		}
		wish := d.Key
		if d.isFallback() {
			wish = "any"
		}
		name := c.upstreamName(wish)
		d.write(out.In(yamltext.Quote(name)), name, endpoints)
		targets = append(targets, target{d, name})
	}
	return targets
}

// endpoints returns the servers' addresses; there are none if the gateway cannot connect to them.
func (d *database) endpoints() (list []string) {
	port := d.set["port"].text
	hosts := splitList(d.set["host"].text)
	if len(hosts) == 0 {
		hosts = []string{d.c.set["unix_socket_dir"].text}
		if hosts[0] == "" {
			d.c.report(d.Entry, d.Key, Missing, "it has no `host`, and unix_socket_dir is empty: PgBouncer cannot connect to it either")
			return nil
		}
	}
	for _, host := range hosts {
		switch {
		case strings.HasPrefix(host, "@"):
			d.c.report(d.Entry, d.Key+": host", Missing, "sockets of the abstract namespace cannot be connected to: let the server listen on a file, and write its directory")
			return nil
		case strings.HasPrefix(host, "/"):
			list = append(list, fmt.Sprintf("unix:%s/.s.PGSQL.%s", strings.TrimRight(host, "/"), port))
		default:
			list = append(list, net.JoinHostPort(strings.Trim(host, "[]"), port))
		}
	}
	return list
}

// local reports whether all endpoints are sockets of files.
func local(endpoints []string) bool {
	return !slices.ContainsFunc(endpoints, func(e string) bool { return !strings.HasPrefix(e, "unix:") })
}

// write writes the upstream.
func (d *database) write(u *yamltext.Mapping, name string, endpoints []string) {
	d.connection(u, endpoints)
	divide := len(endpoints)
	if divide > 1 {
		if strings.ToLower(d.set["load_balance_hosts"].text) == "disable" {
			u.Put("balance", "first", "load_balance_hosts: the others when it is out")
			divide = 1
		} else {
			u.Put("balance", "round_robin", "")
		}
	}
	d.pool(u.In("pool"), divide)
	pg := u.In("postgres")
	d.login(pg, name)
	if limit, from := d.own("max_db_connections", "max_db_connections"); limit.number() > 0 && !d.set["user"].written() {
		pg.Put("max_connections", strconv.Itoa(min(share(limit.number(), divide), maxLimit)), from+perHost(divide))
		if d.isFallback() {
			d.c.report(cmp.Or(limit.at, d.Entry), from, Differs, "for `*` it limits the connections of all its databases together, to each host")
		}
	}
	d.params(pg.In("params"))
}

// connection writes how servers are connected to.
func (d *database) connection(u *yamltext.Mapping, endpoints []string) {
	u.Put("endpoints", yamltext.List(endpoints), "")
	timeout := d.c.set["server_connect_timeout"]
	if timeout.seconds() == 0 {
		timeout.text = "3600" // none, which is reported
	}
	u.Put("connect_timeout", d.c.duration(timeout, "server_connect_timeout", time.Millisecond, 10*time.Minute, false), origin("server_connect_timeout", timeout))
	if local(endpoints) {
		return
	}
	d.c.keepAlive(u)
	d.tls(u, endpoints)
}

// tls writes the upstream's TLS.
func (d *database) tls(u *yamltext.Mapping, endpoints []string) {
	c, mode := d.c, strings.ToLower(d.c.set["server_tls_sslmode"].text)
	comment := "server_tls_sslmode = " + mode
	var tls yamltext.Mapping
	switch mode {
	case "disable":
		return
	case "allow", "prefer":
		if !slices.ContainsFunc(endpoints, func(e string) bool { host, _, _ := net.SplitHostPort(e); return !isLoopback(host) }) {
			u.Note("server_tls_sslmode = %s: clear text to this machine. For TLS: tls: {insecure_skip_verify: true}", mode)
			return
		}
		u.Note("server_tls_sslmode = %s falls back to clear text if the server has no TLS; here TLS is used always or never. "+
			"Remove tls if the server has none. Better: tls: {ca: FILE}, which knows the server.", mode)
		c.report(c.set["server_tls_sslmode"].at, "server_tls_sslmode", Differs,
			"%s falls back to clear text; here connections to other machines always use TLS: remove `tls` of upstreams whose server has none", mode)
		tls.Put("insecure_skip_verify", "true", "")
	case "require":
		tls.Put("insecure_skip_verify", "true", comment)
	case "verify-ca", "verify-full":
		ca := c.set["server_tls_ca_file"]
		if ca.text != "" {
			tls.Put("ca", yamltext.Quote(c.path(ca.text)), "server_tls_ca_file")
		}
		switch {
		case mode == "verify-ca" && ca.text == "":
			c.report(c.set["server_tls_sslmode"].at, "server_tls_sslmode", Differs, "without server_tls_ca_file the name in the server's certificate is checked too: the system's authorities sign for anybody")
		case mode == "verify-ca":
			tls.Put("verify", "ca", comment)
		}
	}
	if cert := c.set["server_tls_cert_file"].text; cert != "" {
		tls.Put("cert", yamltext.Quote(c.path(cert)), "server_tls_cert_file")
		tls.Put("key", yamltext.Quote(c.path(c.set["server_tls_key_file"].text)), "server_tls_key_file")
	}
	if len(tls.Fields) == 0 {
		u.Put("tls", "{}", comment+", by the system's authorities")
		return
	}
	u.In("tls").Fields = tls.Fields
}

// pool writes the pool's limits, of one of n hosts.
func (d *database) pool(pool *yamltext.Mapping, n int) {
	size, from := d.own("pool_size", "default_pool_size")
	most, comment := size.number(), origin(from, size)
	reserve, reserveFrom := d.own("reserve_pool_size", "reserve_pool_size")
	if v := d.set["reserve_pool"]; !d.set["reserve_pool_size"].written() && v.written() {
		reserve, reserveFrom = v, d.Key+": reserve_pool"
	}
	if extra := reserve.number(); extra > 0 && most > 0 {
		most += extra
		comment = fmt.Sprintf("%s %d and %s %d: there is no reserve", from, size.number(), reserveFrom, extra)
	}
	if limit, limitFrom := d.own("max_db_connections", "max_db_connections"); limit.number() > 0 && d.set["user"].written() && (most == 0 || limit.number() < most) {
		most, comment = limit.number(), limitFrom
	}
	if most == 0 {
		most, comment = unlimited, from+": no limit"
	}
	most = min(share(most, n), maxLimit)
	pool.Put("max_size", strconv.Itoa(most), comment+perHost(n))
	if least, from := d.own("min_pool_size", "min_pool_size"); least.number() > 0 {
		if d.set["user"].written() {
			pool.Put("min_idle", strconv.Itoa(min(share(least.number(), n), most)), from+": here of idle connections"+perHost(n))
		} else {
			d.c.report(cmp.Or(least.at, d.Entry), from, Differs, "pools of users (`login_as: client`) open connections when clients need them")
		}
	}
	wait, from := d.own("query_wait_timeout", "query_wait_timeout")
	pool.Put("acquire_timeout", d.c.duration(wait, from, time.Millisecond, 24*time.Hour, true), origin(from, wait))
	const year = 8760 * time.Hour
	idle := d.c.set["server_idle_timeout"]
	pool.Put("idle_timeout", d.c.duration(idle, "server_idle_timeout", time.Millisecond, year, true), origin("server_idle_timeout", idle))
	life, from := d.own("server_lifetime", "server_lifetime")
	pool.Put("max_lifetime", d.c.duration(nonZero(life), from, time.Millisecond, year, false), origin(from, life))
	d.check(pool)
}

// nonZero returns the shortest time for 0: such connections are used once.
func nonZero(v value) value {
	if v.seconds() == 0 {
		v.text = "0.001"
	}
	return v
}

// check writes after which time an idle connection is checked.
func (d *database) check(pool *yamltext.Mapping) {
	query, delay := d.c.set["server_check_query"], d.c.set["server_check_delay"]
	if query.text == "" {
		pool.Put("check_after", "never", "server_check_query is empty")
		return
	}
	pool.Put("check_after", d.c.duration(nonZero(delay), "server_check_delay", time.Millisecond, 24*time.Hour, false), origin("server_check_delay", delay))
}

// share returns what each of n hosts gets of a limit.
func share(limit, n int) int { return (limit + n - 1) / n }

func perHost(n int) string {
	if n == 1 {
		return ""
	}
	return fmt.Sprintf(", for each of %d hosts", n)
}

// login writes as whom the gateway logs in.
func (d *database) login(pg *yamltext.Mapping, name string) {
	user := d.set["user"]
	if !user.written() {
		pg.Put("login_as", "client", "the database has no user=")
		if db := d.set["dbname"]; db.written() && db.text != d.Key {
			pg.Put("dbname", yamltext.Quote(db.text), "")
		}
		return
	}
	pg.Put("user", yamltext.Quote(user.text), "")
	d.c.password(pg, name, d.Entry, d.Key, "user", user.text, d.set["password"])
	pg.Put("dbname", yamltext.Quote(cmp.Or(d.set["dbname"].text, d.Key)), "")
}

// password writes the password of an upstream's user, which the configuration has, or else auth_file.
func (c *converter) password(pg *yamltext.Mapping, upstream string, at *Entry, database, key, user string, own value) {
	of := fmt.Sprintf("user %q of database %q", user, database)
	secret := c.secrets[user]
	switch {
	case own.written():
		pg.Put("password", c.secret(upstream, of, own.text), "")
	case secret == "":
		pg.Note("no password: neither the database nor auth_file has one of this user")
	case pgwire.IsMD5Secret(secret) || strings.HasPrefix(secret, pgwire.MechanismSCRAM+"$"):
		pg.Put("password", c.secret(upstream, of, ""), "auth_file has only its hash")
		c.report(at, database+": "+key, Missing, "auth_file has only a hash of the password of %q, with which the gateway cannot log in: give it the password", user)
	default:
		pg.Put("password", c.secret(upstream, of, secret), "from auth_file")
	}
}

// params writes the settings of server connections.
func (d *database) params(out *yamltext.Mapping) {
	seen := map[string]bool{}
	put := func(name, text, comment string) {
		if lower := strings.ToLower(name); !seen[lower] {
			seen[lower] = true
			out.Put(yamltext.Quote(name), yamltext.Quote(text), comment)
		}
	}
	if query := d.set["connect_query"]; query.written() {
		settings, ok := settingsOf(query.text)
		if !ok {
			d.c.report(d.Entry, d.Key+": connect_query", Missing, "nothing is run on new connections: for settings use `params`, or ALTER ROLE or ALTER DATABASE … SET on the server")
		}
		for _, s := range settings {
			put(s.key, s.value, "connect_query")
		}
	}
	for _, key := range []string{"client_encoding", "datestyle", "timezone", "application_name"} {
		if v := d.set[key]; v.written() {
			put(key, v.text, "")
		}
	}
	for _, t := range []struct{ from, to string }{
		{"query_timeout", "statement_timeout"}, {"idle_transaction_timeout", "idle_in_transaction_session_timeout"},
	} {
		if v := d.c.set[t.from]; v.seconds() > 0 {
			put(t.to, strconv.FormatInt(min(max(v.seconds().Milliseconds(), 1), 1<<31-1), 10)+"ms", t.from+": the server's own; clients may set another")
		}
	}
}

// setStatement matches SET of one setting: its name, and a value in quotes, or words and numbers with commas.
var setStatement = regexp.MustCompile(`(?i)^set\s+(?:session\s+)?([a-z_][a-z0-9_.]*)\s*(?:=|\s+to\s)\s*('(?:[^']|'')*'|[\w.+-]+(?:\s*,\s*[\w.+-]+)*)$`)

// settingsOf returns what the statements of a text set; ok is false if they do anything else.
func settingsOf(text string) (settings []pair, ok bool) {
	for statement := range strings.SplitSeq(text, ";") {
		if statement = strings.TrimSpace(statement); statement == "" {
			continue
		}
		m := setStatement.FindStringSubmatch(statement)
		if m == nil || slices.Contains([]string{"role", "session_authorization", "local", "transaction"}, strings.ToLower(m[1])) || strings.EqualFold(m[2], "default") {
			return nil, false
		}
		value := m[2]
		if strings.HasPrefix(value, "'") {
			value = strings.ReplaceAll(value[1:len(value)-1], "''", "'")
		}
		settings = append(settings, pair{m[1], value})
	}
	return settings, true
}
