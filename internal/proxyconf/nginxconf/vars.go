package nginxconf

import (
	"maps"
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// maxValue bounds the value of a variable.
const maxValue = 4000

// constant returns a text with the values of the variables that set gives one value in a scope, whatever the request.
func (v *view) constant(s scope, text string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	values, unknown := map[string]string{}, map[string]bool{}
	for _, block := range s.rewriting() {
		stopped := false // by break, for some requests
		for _, d := range block.block {
			switch {
			case d.name() == "set" && stopped:
				unknown[strings.TrimPrefix(d.arg(1), "$")] = true
			case d.name() == "set":
				name, value := strings.TrimPrefix(d.arg(1), "$"), replaced(d.arg(2), values)
				if values[name] = value; len(value) > maxValue { // it may grow with each line
					unknown[name] = true
					delete(values, name)
				}
			case d.name() == "if" && !slices.Contains(s, d):
				for _, inner := range d.all("set") {
					unknown[strings.TrimPrefix(inner.arg(1), "$")] = true
				}
			}
			stopped = stopped || breaks(d)
		}
	}
	for name := range unknown {
		delete(values, name)
	}
	return replaced(text, values)
}

// rewriting returns the blocks whose set, rewrite and if are for a request: not those of locations around its own.
func (s scope) rewriting() (own scope) {
	outer := true
	for _, d := range slices.Backward(s) {
		if d.name() != "location" || outer {
			own = append(own, d)
		}
		outer = outer && d.name() != "location"
	}
	slices.Reverse(own)
	return own
}

// breaks reports whether nginx may look at no set, rewrite and if of a block after one of them.
func breaks(d *directive) bool {
	switch d.name() {
	case "break":
		return true
	case "rewrite":
		return d.arg(3) == "break" || d.arg(3) == "last"
	}
	return d.name() == "if" && slices.ContainsFunc(d.block, breaks)
}

// replaced returns a text with values in place of variables. Others stay.
func replaced(text string, values map[string]string) string {
	var b strings.Builder
	for text != "" {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			break
		}
		var name string
		sign := "$"
		if inner, ok := strings.CutPrefix(rest, "{"); ok && strings.Contains(inner, "}") {
			name, _, _ = strings.Cut(inner, "}")
			rest, sign = inner[len(name)+1:], "${"+name+"}"
		} else {
			n := strings.IndexFunc(rest, func(c rune) bool {
				return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_'
			})
			if n < 0 {
				n = len(rest)
			}
			name, rest = rest[:n], rest[n:]
			sign += name
		}
		if value, ok := values[name]; ok {
			sign = value
		}
		b.WriteString(sign)
		text = rest
	}
	return b.String()
}

// alternative is a value that a variable has if a condition holds, and none of the alternatives before it.
type alternative struct {
	when *proxyconf.Cond
	text string
}

// alternatives returns the values of a text with one variable of a map; false if there is none, or a route cannot have one of its
// conditions. The last one always holds.
func (v *view) alternatives(text string) (all []alternative, ok bool) {
	for _, name := range slices.Sorted(maps.Keys(v.maps)) {
		m := v.maps[name]
		for _, sign := range []string{name, "${" + strings.TrimPrefix(name, "$") + "}"} {
			before, after, found := strings.Cut(text, sign)
			if !found || sign == name && after != "" && isWord(after[0]) {
				continue
			}
			if all, ok = v.mapped(m); !ok {
				return nil, false
			}
			for i := range all {
				all[i].text = before + all[i].text + after
			}
			return all, true
		}
	}
	return nil, false
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// mapped returns the alternatives of a map, or of a geo of the client's address.
func (v *view) mapped(m *directive) (all []alternative, ok bool) {
	if source := strings.TrimSuffix(strings.TrimPrefix(strings.Replace(m.arg(1), "{", "", 1), "$"), "}"); m.name() == "map" && strings.ContainsFunc(source, func(c rune) bool { return c > 'z' || !isWord(byte(c)) }) {
		return nil, false // more than a variable
	}
	otherwise := alternative{proxyconf.Const(true), ""}
	rank := map[*proxyconf.Cond]int{}
	hostnames := len(m.all("hostnames")) > 0
	for _, d := range m.block {
		c, key := (*proxyconf.Cond)(nil), d.name()
		switch {
		case d.name() == "hostnames" || d.name() == "volatile":
			continue
		case d.name() == "default":
			otherwise.text = d.arg(1)
			continue
		case m.name() == "geo":
			if c = proxyconf.ParsePrefix(key); c != nil && len(m.words) == 2 {
				rank[c] = -c.Prefixes[0].Bits()
				all = slices.DeleteFunc(all, func(a alternative) bool { return a.when.Prefixes[0].Masked() == c.Prefixes[0].Masked() }) // the last one counts
			} else {
				c = nil
			}
		default:
			var r int
			if c, r = v.entry(m.arg(1), key, hostnames); c != nil {
				rank[c] = r
			}
		}
		if c == nil || len(d.words) != 2 || len(all) > 100 {
			return nil, false
		}
		all = append(all, alternative{c, d.arg(1)})
	}
	slices.SortStableFunc(all, func(a, b alternative) int { return rank[a.when] - rank[b.when] })
	return append(all, otherwise), true
}

// entry returns the condition of an entry of a map, nil if a route cannot have it, and where nginx looks at it: texts first, then
// names of hosts, then expressions.
func (v *view) entry(variable, key string, hostnames bool) (*proxyconf.Cond, int) {
	if expression, ok := strings.CutPrefix(key, "~*"); ok {
		return v.compares(variable, "~*", expression), 2000
	} else if expression, ok := strings.CutPrefix(key, "~"); ok {
		return v.compares(variable, "~", expression), 2000
	}
	key = strings.TrimPrefix(key, `\`)
	if variable == "$host" || variable == "$http_host" {
		var hosts []*proxyconf.Cond
		names := []string{strings.ToLower(key)}
		if name, ok := strings.CutPrefix(key, "."); ok {
			names = []string{name, "*." + name}
		}
		for _, name := range names {
			if !isHost(strings.TrimPrefix(name, "*.")) || strings.HasPrefix(name, "*") && !hostnames {
				return nil, 0
			}
			hosts = append(hosts, proxyconf.When(proxyconf.Atom{Kind: proxyconf.Host, Value: name}))
		}
		if strings.HasPrefix(names[len(names)-1], "*") {
			return proxyconf.Either(hosts...), 1000 - len(key)
		}
		return hosts[0], 0
	}
	if hostnames {
		return nil, 0
	}
	if key == "" {
		return v.compares(variable, "=", ""), 0
	}
	switch variable { // maps look at texts without regard to case
	case "$request_method":
		return v.compares(variable, "=", strings.ToUpper(key)), 0
	case "$scheme":
		return v.compares(variable, "=", strings.ToLower(key)), 0
	}
	return v.compares(variable, "~*", "^"+quoteMeta(key)+"$"), 0
}

// holds returns the condition that the variable of a map meets a test; nil if a route cannot have it.
func (v *view) holds(variable string, test func(value string) bool) *proxyconf.Cond {
	m := v.maps[variable]
	if m == nil || test == nil {
		return nil
	}
	all, ok := v.mapped(m)
	if !ok || slices.ContainsFunc(all, func(a alternative) bool { return strings.Contains(a.text, "$") }) {
		return nil
	}
	c := proxyconf.Const(test(all[len(all)-1].text))
	var last *proxyconf.Cond // addresses that were added last, and what they mean: others of the same kind join them
	means := false
	for _, a := range slices.Backward(all[:len(all)-1]) {
		yes := test(a.text)
		switch {
		case c.Op == proxyconf.True && yes, c.Op == proxyconf.False && !yes:
			continue
		case last != nil && means == yes && a.when.Op == proxyconf.Source:
			last.Prefixes = append(last.Prefixes, a.when.Prefixes...)
			continue
		case yes:
			c = proxyconf.Either(a.when, c)
		default:
			c = proxyconf.Both(proxyconf.Unless(a.when), c)
		}
		if last = nil; a.when.Op == proxyconf.Source {
			last, means = a.when, yes
		}
	}
	return c
}
