package config

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headpond/headpond/pgproxy"
)

// The time-outs of the route a listener's "upstream" key stands for; Route's tags have them too.
const (
	defaultRouteTimeout     = 60 * time.Second
	defaultRouteIdleTimeout = 10 * time.Minute
)

func quoteOr(name string, index int) string {
	if name == "" {
		return strconv.Itoa(index + 1)
	}
	return strconv.Quote(clip(name))
}

func (d *decoder) checkListener(cfg *Config, l *Listener) {
	d.checkSections(l)
	if l.Protocol != TunnelProtocol {
		d.reference(cfg, l, l.Upstream, &l.Upstream)
	}
	if len(l.TrustedProxies) > 0 && !l.AcceptProxy && l.Protocol != HTTP {
		d.warn(d.mark(&l.TrustedProxies), "trusted_proxies: has no effect without accept_proxy: true")
	}
	if l.Socket != nil && !strings.HasPrefix(l.Listen, "unix:") && l.Listen != "" {
		d.report(d.mark(&l.Socket), "socket: only a unix socket has a mode and an owner; this listener has the address %q", l.Listen)
	}
	if l.TLS != nil {
		d.checkPair(&l.TLS.Cert, &l.TLS.Key)
	}
	switch l.Protocol {
	case TCP:
		if l.Upstream == "" && !d.written(&l.Upstream) {
			d.report(d.mark(l), "\"upstream\" is missing")
		}
	case HTTP:
		d.checkHTTP(cfg, l)
	case Postgres:
		d.checkPostgres(cfg, l)
	case TunnelProtocol:
		d.checkTunnelListener(cfg, l)
	}
	if l.TLS != nil && l.Protocol != TunnelProtocol && d.written(&l.TLS.ClientCA) {
		d.report(d.mark(&l.TLS.ClientCA), "client_ca: only tunnel listeners ask for client certificates")
	}
	d.checkLoop(cfg, l)
}

// noProblemAt reports whether none of the fields has a problem yet, so that one cause is not reported twice.
func (d *decoder) noProblemAt(ptrs ...any) bool {
	for _, ptr := range ptrs {
		pos := d.mark(ptr)
		for _, p := range d.problems {
			if pos.Line > 0 && p.Line == pos.Line && p.Column == pos.Column {
				return false
			}
		}
	}
	return true
}

// checkSections refuses settings of another protocol.
func (d *decoder) checkSections(l *Listener) {
	for _, s := range []struct {
		protocol Protocol
		set      bool
		ptr      any
	}{{TCP, l.TCP != nil, &l.TCP}, {HTTP, l.HTTP != nil, &l.HTTP}, {Postgres, l.Postgres != nil, &l.Postgres}, {TunnelProtocol, l.Tunnel != nil, &l.Tunnel}} {
		if s.set && l.Protocol != "" && l.Protocol != s.protocol {
			d.report(d.mark(s.ptr), "%q: these settings are for another protocol; this listener's is %q", s.protocol, l.Protocol)
		}
	}
}

// reference checks that an upstream exists and is used by one protocol only, and notes which.
func (d *decoder) reference(cfg *Config, l *Listener, name string, ptr any) {
	if name == "" {
		return
	}
	u := cfg.Upstream(name)
	switch {
	case u == nil:
		d.unknown(d.mark(ptr, &l.Upstream, l), "upstream", name, upstreamNames(cfg))
	case u.Protocol == "":
		u.Protocol = l.Protocol
	case u.Protocol != l.Protocol && l.Protocol != "":
		d.report(d.mark(ptr, &l.Upstream, l), "upstream %q is already used by a %s listener, this one is %s; an upstream belongs to one protocol, write a second one",
			clip(name), u.Protocol, l.Protocol)
	}
}

// unknown reports a name that nothing has.
func (d *decoder) unknown(pos Position, kind, name string, known []string) {
	hint := didYouMean(name, known)
	if hint == "" && len(known) > 0 {
		hint = "; there are " + clip(strings.Join(known, ", "))
	}
	d.report(pos, "unknown %s %q%s", kind, clip(name), hint)
}

func (d *decoder) checkHTTP(cfg *Config, l *Listener) {
	if l.HTTP == nil {
		return
	}
	if len(l.HTTP.Routes) == 0 && l.Upstream == "" && !d.written(&l.Upstream) && !d.written(&l.HTTP.Routes) {
		d.report(d.mark(l), "nothing to forward to; give it \"upstream\" or \"routes\" under \"http\"")
	}
	seen := map[string]Position{}
	for i := range l.HTTP.Routes {
		r := &l.HTTP.Routes[i]
		pos := d.mark(r)
		if r.Upstream == "" && !d.written(&r.Upstream) {
			d.report(pos, "route %d: \"upstream\" is missing", i+1)
		}
		d.reference(cfg, l, r.Upstream, &r.Upstream)
		d.checkRoute(r)
		key := strings.ToLower(r.Host) + " " + r.Path
		if before, ok := seen[key]; ok {
			d.report(pos, "duplicate route for host %q and path %q; it is already at line %d", clip(r.Host), clip(r.Path), before.Line)
		}
		seen[key] = pos
	}
}

func (d *decoder) checkRoute(r *Route) {
	switch {
	case r.Path != "" && r.Path[0] != '/':
		d.report(d.mark(&r.Path), "path: %q: want a path that starts with \"/\"; did you mean %q?", clip(r.Path), "/"+clip(r.Path))
	case strings.ContainsAny(r.Path, "?#* "):
		d.report(d.mark(&r.Path), "path: %q: a path is a plain prefix, without %q", clip(r.Path), "?#* ")
	}
	if strings.Contains(r.Path, "/./") || strings.Contains(r.Path+"/", "/../") || strings.HasSuffix(r.Path, "/.") {
		d.report(d.mark(&r.Path), "path: %q: a path has no \".\" or \"..\" segments", clip(r.Path))
	}
	host := strings.TrimPrefix(r.Host, "*.")
	if strings.ContainsAny(host, "/*@?# \t") || strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		d.report(d.mark(&r.Host), "host: %q: want a host name such as a.example or *.example, without scheme, port or path", clip(r.Host))
	}
}

func (d *decoder) checkPostgres(cfg *Config, l *Listener) {
	pg := l.Postgres
	if pg == nil {
		return
	}
	if len(pg.Databases) == 0 && l.Upstream == "" && !d.written(&l.Upstream) && !d.written(&pg.Databases) {
		d.report(d.mark(l), "nothing to forward to; give it \"upstream\" or \"databases\" under \"postgres\"")
	}
	for i := range pg.Databases {
		db := &pg.Databases[i]
		if db.Name == "" {
			d.report(d.mark(&db.Name), "databases: a name is empty; write \"*\" for every other database")
		}
		d.reference(cfg, l, db.Upstream, &db.Upstream)
	}
	if pg.RequireTLS && l.TLS == nil {
		d.report(d.mark(&pg.RequireTLS), "require_tls: there is no TLS to require; give the listener \"tls\" with \"cert\" and \"key\"")
	}
	d.checkUsers(pg)
	d.checkAuth(l, pg)
}

// checkUsers reads the user list, so that its mistakes are reported with all others.
func (d *decoder) checkUsers(pg *PostgresListener) {
	auth, known := map[Auth]pgproxy.Auth{AuthTrust: pgproxy.AuthTrust, AuthMD5: pgproxy.AuthMD5, AuthSCRAM: pgproxy.AuthSCRAM}[pg.Auth]
	if pg.UsersFile == "" || !known || !d.noProblemAt(&pg.UsersFile) {
		return
	}
	pos := d.mark(&pg.UsersFile)
	text, err := pg.UsersFile.Read()
	if err != nil {
		d.report(pos, "users_file: %s", err)
		return
	}
	users, err := pgproxy.ParseUsers(bytes.NewReader(text))
	if err == nil {
		err = users.Verify(auth)
	}
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		d.report(pos, "users_file %q: %s", string(pg.UsersFile), strings.TrimPrefix(strings.TrimSuffix(line, "\n"), pgproxy.ErrConfig.Error()+": "))
	}
}

// checkAuth enforces that nobody opens a database to the network without a password by leaving something out.
func (d *decoder) checkAuth(l *Listener, pg *PostgresListener) {
	usersWritten := d.written(&pg.UsersFile)
	switch {
	case pg.Auth == AuthTrust && usersWritten:
		d.warn(d.mark(&pg.UsersFile), "users_file: has no effect with auth: trust; everybody may log in as anybody")
	case pg.Auth != AuthTrust && !usersWritten:
		d.report(d.mark(&pg.Auth), "auth: %q needs \"users_file\": lines of \"user\" \"secret\"", pg.Auth)
	}
	if pg.Auth != AuthTrust || Loopback(l.Listen) || l.Listen == "" {
		return
	}
	if !d.written(&pg.Auth) {
		d.report(d.mark(&l.Listen), "listen: %q can be reached from other machines, and nothing asks for a password; set \"users_file\" under \"postgres\","+
			" or write auth: trust there if you mean it", l.Listen)
		return
	}
	d.warn(d.mark(&pg.Auth), "auth: trust on %q lets every machine that reaches it log in as anybody", l.Listen)
}

// checkLoop refuses a listener that forwards to itself.
func (d *decoder) checkLoop(cfg *Config, l *Listener) {
	names := []string{l.Upstream}
	if l.HTTP != nil {
		for i := range l.HTTP.Routes {
			names = append(names, l.HTTP.Routes[i].Upstream)
		}
	}
	if l.Postgres != nil {
		for i := range l.Postgres.Databases {
			names = append(names, l.Postgres.Databases[i].Upstream)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		u := cfg.Upstream(name)
		if u == nil || u.Tunnel != "" { // what a tunnel dials is on another machine
			continue
		}
		for j := range u.Endpoints {
			if e := u.Endpoints[j]; l.Listen != "" && (e == l.Listen || Loopback(e) && Overlap(e, l.Listen)) {
				d.report(d.mark(&u.Endpoints[j]), "%s", fmt.Sprintf("endpoint %q of upstream %q is this listener itself", e, clip(name)))
			}
		}
	}
}
