package proxyconf

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/yamltext"
)

// YAML returns the configuration, with comments that say where its parts come from, and what is not in it. file is the one
// that was read.
func (g *Gateway) YAML(file string) []byte {
	m := &yamltext.Mapping{}
	m.Note("From %s of %s by \"headpond import\". Comments say which line a part comes from.", clean(filepath.Base(file)), g.Program)
	g.list(m, "Not in this configuration, because the gateway has no equal:", Missing)
	g.list(m, "Similar, but not the same:", Differs)
	g.list(m, "Not needed here:", Itself)
	m.Note("admin: 127.0.0.1:9090 # for headpond ctl, metrics and a dashboard")
	for _, l := range g.Listeners {
		l.write(m.Add("listeners"))
	}
	if len(g.Upstreams) > 0 {
		all := m.In("upstreams")
		for _, u := range g.Upstreams {
			all.Note("%s", comment(u.Of, u.From))
			u.write(all.In(u.Name))
		}
	}
	return []byte(m.Render(func(key string, _ *yamltext.Mapping) string {
		return map[string]string{"http": "http", "tcp": "tcp", "request_headers": "request", "response_headers": "response", "pool": "pool", "tls": "tls"}[key]
	}))
}

func (g *Gateway) list(m *yamltext.Mapping, title string, fate Fate) {
	reports := g.Reports.Sorted(fate)
	if len(reports) == 0 {
		return
	}
	m.Note("")
	m.Note("%s", title)
	for _, r := range reports {
		m.Note("- %s: %s: %s", r.short(), r.Name, r.Text)
	}
}

func comment(of string, from Position) string {
	if at := from.short(); at != "" {
		return strings.TrimPrefix(clean(of)+", "+clean(at), ", ")
	}
	return clean(of)
}

func (l *Listener) write(m *yamltext.Mapping) {
	m.Put("name", yamltext.Quote(l.Name), comment(l.Of, l.From))
	section := l.Settings.Get("protocol")
	settings := slices.Clone(l.Settings)
	slices.SortStableFunc(settings, func(a, b Setting) int { // what is beside the routes comes last
		return cmp.Compare(btoi(head(a.Key) == section), btoi(head(b.Key) == section))
	})
	settings.write(m)
	if len(l.Routes) == 0 {
		return
	}
	var under *yamltext.Mapping
	if n := len(m.Fields); n > 0 && m.Fields[n-1].Key == section {
		under = m.Fields[n-1].Sub
	} else {
		under = m.In(section)
	}
	for _, r := range l.Routes {
		item := under.Add("routes")
		r.When.write(item)
		r.Settings.write(item)
		if at := comment("", r.From); at != "" && len(item.Fields) > 0 && item.Fields[0].Comment == "" && item.Fields[0].Sub == nil {
			item.Fields[0].Comment = at
		}
	}
}

func (u *Upstream) write(m *yamltext.Mapping) {
	for _, e := range u.Endpoints {
		item := m.Add("endpoints")
		item.Put("address", yamltext.Quote(e.Address), comment("", e.From))
		if e.Weight > 1 {
			item.Put("weight", itoa(e.Weight), "")
		}
		if e.Priority > 0 {
			item.Put("priority", itoa(e.Priority), "")
		}
	}
	u.Settings.write(m)
}

// write adds the settings, those below one key together.
func (s Settings) write(m *yamltext.Mapping) {
	subs := map[string]*yamltext.Mapping{}
	for _, set := range s {
		at, path := m, ""
		names := strings.Split(set.Key, "/")
		for _, name := range names[:len(names)-1] {
			path += name + "/"
			if subs[path] == nil {
				subs[path] = at.In(name)
			}
			at = subs[path]
		}
		why := set.Why
		if why == "" {
			why = comment("", set.From)
		}
		at.Put(yamltext.Quote(names[len(names)-1]), set.Text, why)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
