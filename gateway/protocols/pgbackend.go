package protocols

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
	"github.com/headpond/headpond/upstream"
)

// pgBackend is an upstream of postgres listeners. It counts its sessions: in transaction mode they lease repeatedly.
type pgBackend struct {
	pgproxy.Backend
	apply func(s extend.Settings) error // nil: nothing changes in place

	sessions atomic.Int64
}

var (
	_ pgproxy.Backend = (*pgBackend)(nil)
	_ extend.Counted  = (*pgBackend)(nil)

	_ extend.Changeable = (*pgBackend)(nil)
	_ extend.Follower   = (*pgBackend)(nil)

	_ pgproxy.SecretSource = (*pgBackend)(nil)
)

// Serve implements pgproxy.Backend.
func (b *pgBackend) Serve(ctx context.Context, c *pgproxy.Client) (err error) {
	if c.Session == nil { // otherwise it was suspended, and is counted
		b.sessions.Add(1)
	}
	defer func() {
		if err != pgproxy.ErrSuspended { //nolint:errorlint // returned as it is
			b.sessions.Add(-1)
		}
	}()
	return b.Backend.Serve(ctx, c)
}

// Active implements extend.Counted.
func (b *pgBackend) Active() int { return int(b.sessions.Load()) }

// Runs implements extend.Backend.
func (b *pgBackend) Runs() any { return b }

// Unwrap returns the backend by which a proxy finds what PostgreSQL's have besides.
func (b *pgBackend) Unwrap() pgproxy.Backend { return b.Backend }

// Retire implements extend.Backend.
func (b *pgBackend) Retire() {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		p.Retire()
	}
}

// errOneFile is why operators cannot change a SQLite file's endpoint.
var errOneFile = errors.New("it is a SQLite file, which is the only endpoint it can have")

// ChangeEndpoint implements extend.Changeable.
func (b *pgBackend) ChangeEndpoint(c upstream.Change) error {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		return p.ChangeEndpoint(c)
	}
	return errOneFile
}

// Overrides implements extend.Changeable.
func (b *pgBackend) Overrides() []upstream.Override {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		return p.Overrides()
	}
	return nil
}

// EndpointNames implements extend.Changeable.
func (b *pgBackend) EndpointNames() []string {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		return p.EndpointNames()
	}
	return nil
}

// errNoPause is why a SQLite file cannot be paused.
var errNoPause = errors.New("it is a SQLite file, which cannot be paused")

// Pause implements extend.Pausable.
func (b *pgBackend) Pause(limit time.Duration) error {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		return p.Pause(limit)
	}
	return fmt.Errorf("upstream %q: %w", b.Name(), errNoPause)
}

// Resume implements extend.Pausable.
func (b *pgBackend) Resume() bool {
	p, ok := b.Backend.(*pgproxy.Postgres)
	return ok && p.Resume()
}

// Follow implements extend.Follower.
func (b *pgBackend) Follow(next extend.Backend) bool {
	p, ok := b.Backend.(*pgproxy.Postgres)
	n, same := next.(*pgBackend)
	if !ok || !same {
		return false
	}
	to, ok := n.Backend.(*pgproxy.Postgres)
	return ok && p.Follow(to)
}

// Secret implements pgproxy.SecretSource.
func (b *pgBackend) Secret(ctx context.Context, sql, user string) (string, error) {
	p, ok := b.Backend.(*pgproxy.Postgres)
	if !ok { // the configuration's check has refused it
		return "", fmt.Errorf("%w: upstream %q is not a PostgreSQL server", pgproxy.ErrAuthQuery, b.Name())
	}
	return p.Secret(ctx, sql, user)
}

// Update implements extend.Backend.
func (b *pgBackend) Update(s extend.Settings) error {
	if b.apply == nil {
		return nil
	}
	return b.apply(s)
}

// rebuildsPostgres reports whether a changed upstream needs another backend: for any change of a SQLite file. For
// another login see UpstreamKeys.Fixed.
func rebuildsPostgres(old, changed *config.Upstream, files bool) bool {
	_, was := sqlitePath(old)
	if _, is := sqlitePath(changed); was || is {
		return files || !reflect.DeepEqual(*old, *changed)
	}
	return extend.ConnectsOtherwise(old, changed, files)
}

// newPostgresBackend connects to PostgreSQL servers, or opens a SQLite file.
func newPostgresBackend(s extend.Settings) (extend.Backend, error) {
	if _, sqlite := sqlitePath(s.Config); sqlite {
		return newSQLite(s)
	}
	if s.StandIn { // the login may be missing
		return &pgBackend{Backend: &sqliteFile{}}, nil
	}
	tlsConfig, err := extend.ClientTLS(s.Config.TLS)
	if err != nil {
		return nil, err
	}
	cfg := pgproxy.PostgresConfig{
		Name: s.Config.Name, Settings: s.Settings, TLS: tlsConfig, Dial: s.Dial, Logger: s.Logger,
	}
	if pg := loginOf(s.Config); pg != nil {
		cfg.User, cfg.Password, cfg.DBName, cfg.ReadCatalogs = pg.User, pg.Password.Reveal(), pg.DBName, catalogs[pg.ReadCatalogs]
		cfg.ChannelBinding = channelBindings[pg.ChannelBinding]
		if pg.LoginAs == AsClient {
			cfg.LoginAs, cfg.MaxPairs = pgproxy.AsClient, pg.MaxPairs
		}
		for _, p := range pg.Params {
			cfg.Params = append(cfg.Params, pgwire.Param(p))
		}
	}
	probe := pgproxy.Probe(cfg)
	cfg.Settings = probed(s, probe)
	pg, err := pgproxy.NewPostgres(cfg)
	if err != nil {
		return nil, err
	}
	return &pgBackend{Backend: pg, apply: func(s extend.Settings) error { return pg.Update(probed(s, probe)) }}, nil
}

// probed returns the settings with those of protocol postgres: its target, its limit for all pairs, and its own health
// check if the configuration asks for it.
func probed(s extend.Settings, probe upstream.Probe) upstream.Settings {
	if pg := loginOf(s.Config); pg != nil {
		s.Target, _ = upstream.ParseTarget(string(pg.Target)) // the configuration's check has refused others
		if pg.LoginAs == AsClient {
			s.MaxConnections = pg.MaxConnections
		}
	}
	if h := s.Config.Health; h != nil && h.Postgres {
		s.Health.Probe = probe
	}
	return s.Settings
}
