package config

import (
	"cmp"
	"reflect"
	"time"
)

// poolDefaults are those of an upstream's pools by protocol. PostgreSQL servers allow 100 connections by default, shared with everybody else.
// An HTTP server takes thousands; 60s is below the keep-alive time of common servers, so that our side closes first, and each exchange looks
// at its connection anyway. A TCP upstream's pool holds one connection per session and must not be what limits them; servers close
// connections that stay silent, kube-apiserver after 32s.
var poolDefaults = map[Protocol]Pool{
	Postgres:       {MaxSize: 20, IdleTimeout: 5 * time.Minute, CheckAfter: time.Second},
	HTTP:           {MaxSize: 1024, IdleTimeout: time.Minute, CheckAfter: -1},
	TCP:            {MaxSize: 10_000, IdleTimeout: 5 * time.Minute, MaxLifetime: 20 * time.Second, CheckAfter: -1, CheckInterval: time.Second},
	TunnelProtocol: {MaxSize: 10_000, IdleTimeout: 5 * time.Minute, MaxLifetime: 20 * time.Second, CheckAfter: -1, CheckInterval: time.Second},
}

// sqliteReaders is the size of the pool of readers of a SQLite file.
const sqliteReaders = 4

// minPeerSessions is what one peer of a tunnel may have at least by default: as many as it keeps, and one while it replaces another.
const minPeerSessions = 2

// fillDefaults gives every field that the file leaves out its default. It moves nothing, so that marks stay valid.
func (d *decoder) fillDefaults(cfg *Config) {
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		switch {
		case l.Protocol == Postgres && l.Postgres == nil:
			l.Postgres = &PostgresListener{}
		case l.Protocol == HTTP && l.HTTP == nil:
			l.HTTP = &HTTPListener{}
		case l.Protocol == TCP && l.TCP == nil:
			l.TCP = &TCPListener{}
		case l.Protocol == TunnelProtocol && l.Tunnel == nil:
			l.Tunnel = &TunnelListener{}
		}
	}
	d.fillStruct(reflect.ValueOf(cfg).Elem())
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if t := l.Tunnel; t != nil && t.PeerSessions == 0 {
			t.PeerSessions = max(minPeerSessions, t.MaxSessions/4)
		}
		if pg := l.Postgres; pg != nil && pg.Auth == "" {
			pg.Auth = AuthTrust
			if pg.UsersFile != "" {
				pg.Auth = AuthSCRAM
			}
		}
		if l.HTTP == nil {
			continue
		}
		for j := range l.HTTP.Routes {
			if r := &l.HTTP.Routes[j]; r.Upstream == "" {
				r.Upstream = l.Upstream
			}
		}
	}
}

// fillStruct applies the default tags, depth first.
func (d *decoder) fillStruct(v reflect.Value) {
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if name := tag.Get("conf"); name == "" || name == "-" {
			continue
		}
		f := v.Field(i)
		_, written := d.marks[f.Addr().Interface()]
		switch {
		case isScalar(f.Type()):
			if text, ok := tag.Lookup("default"); ok && !written {
				_ = d.set(f, text, tag) // the schema's own test keeps the tags well-formed
			}
		case f.Kind() == reflect.Pointer && !f.IsNil():
			d.fillStruct(f.Elem())
		case f.Kind() == reflect.Struct:
			d.fillStruct(f)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct && !isScalar(f.Type().Elem()):
			for j := range f.Len() {
				d.fillStruct(f.Index(j))
			}
		}
	}
}

// fillPool sets the limits whose defaults depend on what the upstream is used for.
func (d *decoder) fillPool(u *Upstream) {
	p, defaults := &u.Pool, poolDefaults[u.Protocol]
	if _, sqlite := u.SQLite(); sqlite {
		defaults.MaxSize = sqliteReaders
	}
	if !d.written(&p.MaxSize) {
		p.MaxSize = max(defaults.MaxSize, p.MinIdle)
	}
	if !d.written(&p.IdleTimeout) {
		p.IdleTimeout = defaults.IdleTimeout
	}
	if !d.written(&p.MaxLifetime) {
		p.MaxLifetime = defaults.MaxLifetime
	}
	if p.MaxIdle == 0 {
		p.MaxIdle = p.MaxSize
	}
	if !d.written(&p.CheckAfter) {
		p.CheckAfter = defaults.CheckAfter
	}
	if !d.written(&p.CheckInterval) {
		p.CheckInterval = defaults.CheckInterval
	}
}

// finish writes out what the listeners' "upstream" key stands for: the upstream's own database, the route without host and path.
// It comes last, because it moves lists and with them the fields that marks know.
func finish(cfg *Config) {
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if l.Upstream == "" {
			continue
		}
		if pg := l.Postgres; pg != nil && !hasDatabase(pg, "*") {
			if name := databaseOf(cfg, l.Upstream); !hasDatabase(pg, name) {
				pg.Databases = append(pg.Databases, Database{Name: name, Upstream: l.Upstream})
			}
		}
		if h := l.HTTP; h != nil && !hasCatchAll(h) {
			h.Routes = append(h.Routes, Route{Path: "/", Upstream: l.Upstream, Timeout: defaultRouteTimeout, IdleTimeout: defaultRouteIdleTimeout})
		}
	}
}

// databaseOf is the name clients ask for when they mean an upstream's database: a client that asks for another one must not end up in this
// one. A SQLite file has no name of its own and answers to any.
func databaseOf(cfg *Config, name string) string {
	if u := cfg.Upstream(name); u != nil && u.Postgres != nil {
		return cmp.Or(u.Postgres.DBName, u.Postgres.User, "*")
	}
	return "*"
}

func hasDatabase(pg *PostgresListener, name string) bool {
	for _, db := range pg.Databases {
		if db.Name == name {
			return true
		}
	}
	return false
}

func hasCatchAll(h *HTTPListener) bool {
	for _, r := range h.Routes {
		if r.Host == "" && r.Path == "/" {
			return true
		}
	}
	return false
}
