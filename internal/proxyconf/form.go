// Package proxyconf makes configurations of the gateway from those of other proxies. The packages below it read one format
// each, and fill in the form that this package writes as YAML: listeners and upstreams with settings, and rules.
//
// Both HAProxy and nginx take the first rule, or location, that holds, while the gateway takes the most specific route,
// whatever its place in the file. So rules are not translated one by one: Compile follows them as far as they depend on the
// request, and gives each way through them a route, with the conditions, and all settings that the rules on the way have
// made. File route.go then orders these so that the gateway's order gives the same route as theirs.
package proxyconf

import (
	"maps"
	"slices"
	"strings"
)

// Setting is a value of the configuration.
type Setting struct {
	Key  string // with slashes between the keys of mappings
	Text string // as YAML; quote what is the user's
	From Position
	Why  string // the comment, if it is not the position
}

// Settings are the settings of a part of the configuration.
type Settings []Setting

// Set sets a value, in place of one that is there.
func (s *Settings) Set(key, text string, from Position) {
	s.put(Setting{Key: key, Text: text, From: from})
}

// Default sets a value that another program has by default.
func (s *Settings) Default(key, text, why string) {
	if s.Get(key) == "" {
		s.put(Setting{Key: key, Text: text, Why: why})
	}
}

func (s *Settings) put(set Setting) {
	if i := slices.IndexFunc(*s, func(o Setting) bool { return o.Key == set.Key }); i >= 0 {
		(*s)[i] = set
		return
	}
	*s = append(*s, set)
}

// Get returns the value of a key, "" if it is not there.
func (s *Settings) Get(key string) string {
	for _, set := range *s {
		if set.Key == key {
			return set.Text
		}
	}
	return ""
}

// Under reports whether there is a value at a key, or below it.
func (s *Settings) Under(key string) bool {
	return slices.ContainsFunc(*s, func(set Setting) bool { return set.Key == key || strings.HasPrefix(set.Key, key+"/") })
}

// Gateway is a configuration.
type Gateway struct {
	Program   string // that it comes from
	Listeners []*Listener
	Upstreams []*Upstream
	Reports   Reports
	Files     []File

	used map[string]bool // names of upstreams and listeners
}

// File is a file that belongs to the configuration, with secrets.
type File struct {
	Path, Of string
	Data     []byte
}

// Listener is a listener.
type Listener struct {
	Name     string
	Of       string // its section in the file
	From     Position
	Settings Settings
	Routes   []Route // under tcp or http, after the settings
}

// Upstream is an upstream.
type Upstream struct {
	Name      string
	Of        string
	From      Position
	Endpoints []Endpoint
	Settings  Settings
}

// Endpoint is an endpoint of an upstream.
type Endpoint struct {
	Address          string
	Weight, Priority int // 0: the default
	From             Position
}

// Route is a route: its conditions, and its settings.
type Route struct {
	From     Position // of what chose it
	When     Settings
	Settings Settings
}

// Name returns a name for a listener or an upstream that no other one has.
func (g *Gateway) Name(kind, wish string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, wish)
	if name = strings.Trim(name[:min(len(name), 50)], ".-"); name == "" {
		name = kind
	}
	if g.used == nil {
		g.used = map[string]bool{}
	}
	unique := name
	for n := 2; g.used[kind+" "+unique]; n++ {
		unique = name + "-" + itoa(n)
	}
	g.used[kind+" "+unique] = true
	return unique
}

// State is what rules have made of a request so far.
type State struct {
	From     Position // of the rule that decided last
	Settings Settings // of the route
	Request  Fields
	Response Fields
	Allow    []string
	Deny     []string
	Guards   map[string]Position // of Allow and Deny
	Moved    bool                // the path is no longer the client's
	Groups   bool                // the new path has groups of the expression of the route's path
}

func (s State) clone() State {
	s.Settings = slices.Clone(s.Settings)
	s.Request, s.Response = slices.Clone(s.Request), slices.Clone(s.Response)
	s.Allow, s.Deny = slices.Clone(s.Allow), slices.Clone(s.Deny)
	s.Guards = maps.Clone(s.Guards)
	return s
}

// Change is a change of a header.
type Change struct {
	Op    string // set, add or remove
	Name  string
	Value string // with the gateway's variables
	From  Position
}

// Fields are changes of headers.
type Fields []Change

// Do adds a change after those that are there.
func (f *Fields) Do(c Change) {
	kept := slices.DeleteFunc(slices.Clone(*f), func(o Change) bool { return strings.EqualFold(o.Name, c.Name) && c.Op != "add" })
	if c.Op == "add" {
		for i, o := range kept {
			if strings.EqualFold(o.Name, c.Name) && o.Op == "remove" { // nothing of before is left
				kept[i] = Change{"set", c.Name, c.Value, c.From}
				*f = kept
				return
			}
		}
	}
	kept = append(kept, c)
	*f = kept
}

// Adds reports whether a value is to be added, and another one is added already.
func (f Fields) Adds(c Change) bool {
	return c.Op == "add" && slices.ContainsFunc(f, func(o Change) bool { return o.Op == "add" && strings.EqualFold(o.Name, c.Name) })
}

// touches reports whether a header is changed.
func (f Fields) touches(name string) bool {
	return slices.ContainsFunc(f, func(c Change) bool { return strings.EqualFold(c.Name, name) })
}
