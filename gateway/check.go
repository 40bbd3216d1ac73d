package gateway

import (
	"log/slog"
	"strings"

	"github.com/headpond/headpond/gateway/config"
)

// Check reports what config.Load cannot know: what New would refuse, problems inside the files that cfg names among them. It binds and
// connects to nothing.
func Check(cfg *config.Config) config.Problems {
	var problems config.Problems
	report := func(err error, field any) {
		problems = append(problems, config.Problem{Position: cfg.Mark(field), Message: strings.ReplaceAll(err.Error(), "\n", "; ")})
	}
	g := &Gateway{logger: slog.New(slog.DiscardHandler)}
	backends := map[string]*backend{}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		b, err := g.trialBackend(u)
		if err != nil {
			report(err, &u.Name)
			continue
		}
		defer b.drop()
		backends[u.Name] = b
	}
	if len(problems) > 0 {
		return problems // listeners cannot be made without their upstreams
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if _, err := g.newSpec(l, backends, &certificate{}); err != nil {
			field := any(&l.Name)
			if l.Postgres != nil && l.Postgres.UsersFile != "" {
				field = &l.Postgres.UsersFile
			}
			report(err, field)
		}
	}
	return problems
}

// trialBackend builds an upstream that asks nothing of its endpoints.
func (g *Gateway) trialBackend(u *config.Upstream) (*backend, error) {
	quiet := *u
	quiet.Pool.MinIdle, quiet.Pool.CheckInterval, quiet.Health = 0, 0, nil
	if _, sqlite := u.SQLite(); sqlite {
		return &backend{cfg: quiet, impl: &pgBackend{Backend: &sqliteFile{}}}, nil // opening it may create it
	}
	return g.newBackend(&quiet)
}
