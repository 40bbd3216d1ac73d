package suite

import (
	"fmt"
	"slices"
	"strings"

	"github.com/headpond/headpond/bench/internal/run"
)

// builder makes the groups of a suite.
type builder struct {
	name, about string
	groups      func(*Env) []run.Group
}

var builders = []builder{
	{"engine", "the gateway's engines beside HAProxy, nginx and PgBouncer", (*Env).engine},
	{"tcp", "the TCP proxy: sustained, at a fixed rate, a connection each time", (*Env).tcp},
	{"http", "the HTTP proxy: uploads, small answers, a connection each time", (*Env).http},
}

// Names lists the suites with a word on each.
func Names() string {
	var b strings.Builder
	for _, s := range builders {
		fmt.Fprintf(&b, "  %-8s %s\n", s.name, s.about)
	}
	return b.String()
}

// Groups returns the groups of the named suites; "all" is every one, of which engine is a part. A case that two suites have in
// common is measured once.
func (e *Env) Groups(names []string) ([]run.Group, error) {
	var groups []run.Group
	seen := map[string]bool{}
	for _, name := range names {
		found := false
		for _, s := range builders {
			if s.name != name && (name != "all" || s.name == "engine") {
				continue
			}
			found = true
			for _, g := range s.groups(e) {
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
			return nil, fmt.Errorf("no suite %q; there are\n%s", name, Names())
		}
	}
	return groups, nil
}
