package suite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/run"
)

// builder makes the groups of a suite.
type builder struct {
	name, about string
	groups      func(*Env) ([]run.Group, error)
}

// sure adapts a builder that cannot fail.
func sure(f func(*Env) []run.Group) func(*Env) ([]run.Group, error) {
	return func(e *Env) ([]run.Group, error) { return f(e), nil }
}

var builders = append([]builder{
	{"engine", "the gateway's engines beside HAProxy, nginx and PgBouncer", sure((*Env).engine)},
	{"tcp", "the TCP proxy: sustained, at a fixed rate, a connection each time, bulk; the library", sure((*Env).tcp)},
	{"http", "the HTTP proxy: uploads, small answers, a connection each time", sure((*Env).http)},
	{"sql", "PostgreSQL and SQLite: the libraries, the poolers, pgbench, logins, idle clients", sure((*Env).sql)},
	{"kube", "TCP before a real Kubernetes API server: what the study claims, requests, idle watches (needs kube-apiserver, etcd)", (*Env).kube},
	{"flood", "TCP: how long honest clients wait while others connect and vanish, 10,000 a second (loopback only)", sure((*Env).flood)},
}, goBuilders()...)

func goBuilders() []builder {
	var b []builder
	for _, s := range goSuites {
		b = append(b, builder{s.name, s.title + " in one process, beside its peers (needs the source tree)", func(e *Env) ([]run.Group, error) { return e.goGroups(s) }})
	}
	return b
}

// Names lists the suites with a short description of each.
func Names() string {
	var b strings.Builder
	for _, s := range builders {
		fmt.Fprintf(&b, "  %-8s %s\n", s.name, s.about)
	}
	return b.String()
}

// Groups returns the groups of the named suites; "all" means every suite, and engine is part of others. A case in two
// suites is measured once. The second result lists what "all" cannot measure on this machine, one line each.
func (e *Env) Groups(names []string) (groups []run.Group, missing []string, err error) {
	e.Versions = map[string]string{}
	seen := map[string]bool{}
	for _, name := range names {
		found := false
		for _, s := range builders {
			if s.name != name && (name != "all" || s.name == "engine") {
				continue
			}
			found = true
			made, err := s.groups(e)
			switch {
			case err != nil && name == "all":
				missing = append(missing, err.Error())
			case err != nil:
				return nil, nil, err
			}
			for _, g := range made {
				g.Cases = slices.DeleteFunc(g.Cases, func(c run.Case) bool { return seen[c.Info.ID] })
				for _, c := range g.Cases {
					seen[c.Info.ID] = true
				}
				if len(g.Cases) > 0 {
					groups = append(groups, g)
				}
			}
		}
		if !found {
			return nil, nil, fmt.Errorf("%w: no suite %q; there are\n%s", ErrSuite, name, Names())
		}
	}
	return groups, missing, nil
}

// ErrSuite means that a suite is unknown.
var ErrSuite = errors.New("wrong suite")
