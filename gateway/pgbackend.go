package gateway

import (
	"context"
	"sync"

	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pgproxy"
	"github.com/headpond/headpond/pgwire"
)

// pgBackend is an upstream of postgres listeners. It counts its sessions, because a backend must not be drained under a session that runs:
// in transaction mode one leases again and again.
type pgBackend struct {
	pgproxy.Backend
	apply func(s settings) error // nil: nothing changes in place

	mu       sync.Mutex
	sessions int
	waiting  chan struct{} // closed when the last session has left; nil until somebody asks
}

var _ pgproxy.Backend = (*pgBackend)(nil)

// Serve implements pgproxy.Backend.
func (b *pgBackend) Serve(ctx context.Context, c *pgproxy.Client) (err error) {
	if c.Session == nil { // else it was suspended, and counted
		b.mu.Lock()
		b.sessions++
		b.mu.Unlock()
	}
	defer func() {
		if err != pgproxy.ErrSuspended { //nolint:errorlint // returned as it is
			b.leave()
		}
	}()
	return b.Backend.Serve(ctx, c)
}

func (b *pgBackend) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions--
	if b.sessions == 0 && b.waiting != nil {
		close(b.waiting)
		b.waiting = nil
	}
}

// using counts the sessions.
func (b *pgBackend) using() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sessions
}

// idle implements backendImpl.
func (b *pgBackend) idle() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting == nil {
		b.waiting = make(chan struct{})
	}
	ch := b.waiting
	if b.sessions == 0 {
		close(ch)
		b.waiting = nil
	}
	return ch
}

// retire lets sessions end that cannot go on with what they began with.
func (b *pgBackend) retire() {
	if p, ok := b.Backend.(*pgproxy.Postgres); ok {
		p.Retire()
	}
}

func (b *pgBackend) update(s settings) error {
	if b.apply == nil {
		return nil
	}
	return b.apply(s)
}

// newPostgres connects to PostgreSQL servers.
func newPostgres(u *config.Upstream, s settings) (backendImpl, error) {
	tlsConfig, err := clientConfig(u.TLS)
	if err != nil {
		return nil, err
	}
	cfg := pgproxy.PostgresConfig{
		Name: s.name, Endpoints: s.endpoints, Balance: s.balance, Limits: s.limits, Health: s.health, Ejection: s.ejection,
		TLS: tlsConfig, Dial: s.dial, Logger: s.logger,
	}
	if pg := u.Postgres; pg != nil {
		cfg.User, cfg.Password, cfg.DBName = pg.User, pg.Password.Reveal(), pg.DBName
		for _, p := range pg.Params {
			cfg.Params = append(cfg.Params, pgwire.Param(p))
		}
	}
	probe := pgproxy.Probe(cfg)
	if s.pgProbe {
		cfg.Health.Probe = probe
	}
	pg, err := pgproxy.NewPostgres(cfg)
	if err != nil {
		return nil, err
	}
	return &pgBackend{Backend: pg, apply: func(s settings) error {
		if s.pgProbe {
			s.health.Probe = probe
		}
		return pg.Update(s.endpoints, s.balance, s.limits, s.health, s.ejection)
	}}, nil
}
