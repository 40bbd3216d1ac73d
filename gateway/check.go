package gateway

import (
	"cmp"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/headpond/headpond/fiber"
	"github.com/headpond/headpond/gateway/config"
	"github.com/headpond/headpond/gateway/extend"
)

// Check reports what config.Load cannot know: everything that New would refuse, including problems inside the files
// that cfg names. It neither binds nor connects.
func Check(cfg *config.Config) config.Problems {
	var problems config.Problems
	report := func(err error, field any) {
		for line := range strings.Lines(err.Error()) {
			problems = append(problems, config.Problem{Position: cfg.Mark(field), Message: strings.TrimSuffix(line, "\n")})
		}
	}
	g := &Gateway{logger: slog.New(slog.DiscardHandler)}
	g.newParts()
	for _, part := range g.parts {
		part.Check(cfg, report)
	}
	backends := map[string]*backend{}
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		b, err := g.trialBackend(u, false)
		if err != nil {
			var of *extend.FieldError
			if errors.As(err, &of) {
				report(err, of.Field)
				problems[len(problems)-1].Warning = of.Warning
			} else {
				report(err, &u.Name)
			}
			if b, err = g.trialBackend(standInFor(u), true); err != nil {
				continue
			}
		}
		defer b.drop()
		backends[u.Name] = b
	}
	for i := range cfg.Listeners {
		l := &cfg.Listeners[i]
		checkLogs(l, report)
		if slices.ContainsFunc(l.Upstreams(), func(name string) bool { return backends[name] == nil }) {
			continue // the protocol of the upstream has reported that
		}
		if _, err := g.newSpec(l, backends, &certificates{}); err != nil {
			report(err, &l.Name)
		}
	}
	slices.SortStableFunc(problems, func(a, b config.Problem) int { return cmp.Compare(a.Line, b.Line) })
	return problems
}

// Effective returns cfg with the values that depend on the machine filled in: loops.
func Effective(cfg *config.Config) *config.Config {
	out := *cfg
	if out.Loops == 0 {
		out.Loops = fiber.DefaultLoops()
	}
	return &out
}

// trialBackend builds an upstream without connecting to its endpoints.
func (g *Gateway) trialBackend(u *config.Upstream, standIn bool) (*backend, error) {
	quiet := *u
	quiet.Pool.MinIdle, quiet.Pool.MaxWarm, quiet.Pool.CheckInterval, quiet.Health, quiet.Discover = 0, 0, 0, nil, nil
	return g.makeBackend(&quiet, extend.Settings{Trial: true, StandIn: standIn})
}

// standInFor returns an upstream without its faulty parts, so that the listeners that use it can be checked.
func standInFor(u *config.Upstream) *config.Upstream {
	return &config.Upstream{Name: u.Name, Protocol: u.Protocol, Balance: u.Balance, Endpoints: []config.Endpoint{{Address: "127.0.0.1:1"}}}
}
