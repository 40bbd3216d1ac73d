package gateway

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/pool/sqlitepool"
)

// Check reports what config.Load cannot know: what New would refuse, problems inside the files that cfg names among them. It binds and
// connects to nothing.
func Check(cfg *config.Config) config.Problems {
	var problems config.Problems
	report := func(err error, field any) {
		for line := range strings.Lines(err.Error()) {
			problems = append(problems, config.Problem{Position: cfg.Mark(field), Message: strings.TrimSuffix(line, "\n")})
		}
	}
	g := &Gateway{logger: slog.New(slog.DiscardHandler)}
	for i := range cfg.Tunnels {
		if t := &cfg.Tunnels[i]; len(t.Connect) > 0 {
			if _, err := g.linkConfig(t); err != nil {
				report(err, &t.Name)
			}
		}
	}
	backends := map[string]*backend{}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		if path, sqlite := u.SQLite(); sqlite {
			if err := sqlitepool.CheckPath(path); err != nil {
				report(fmt.Errorf("upstream %q: %w", u.Name, err), &u.Endpoints[0])
				problems[len(problems)-1].Warning = !refused(err)
			}
		}
		b, err := g.trialBackend(u)
		if err != nil {
			report(err, &u.Name)
			if b, err = g.trialBackend(standIn(u)); err != nil {
				continue
			}
		}
		defer b.drop()
		backends[u.Name] = b
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		if slices.ContainsFunc(upstreamsOf(l), func(name string) bool { return backends[name] == nil }) {
			continue // and that is reported
		}
		if _, err := g.newSpec(l, backends, &certificate{}); err != nil {
			report(err, &l.Name)
		}
	}
	slices.SortStableFunc(problems, func(a, b config.Problem) int { return cmp.Compare(a.Line, b.Line) })
	return problems
}

// Effective returns cfg with the values that depend on the machine it is asked on: loops.
func Effective(cfg *config.Config) *config.Config {
	out := *cfg
	if out.Loops == 0 {
		out.Loops = fiber.DefaultLoops()
	}
	return &out
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

// standIn is an upstream without what may be wrong with it, so that the listeners that use it can be checked.
func standIn(u *config.Upstream) *config.Upstream {
	s := &config.Upstream{Name: u.Name, Protocol: u.Protocol, Balance: u.Balance, Endpoints: []string{"127.0.0.1:1"}}
	if u.Protocol == config.Postgres {
		s.Endpoints[0] = "sqlite:" + u.Name
	}
	return s
}
