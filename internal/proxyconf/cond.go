package proxyconf

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpproxy"
	"github.com/headpond/headpond/internal/yamltext"
)

// Op is the kind of a condition.
type Op int

// The kinds of conditions.
const (
	True Op = iota
	False
	And
	Or
	Not
	Is     // a route can have it: Atom
	Source // the client's address is in Prefixes
	User   // the request has the password of a user of the list Name
	Above  // the client is above the limit Limit
)

// Cond is a condition of a rule.
type Cond struct {
	Op       Op
	Sub      []*Cond // of And, Or and Not
	Atom     Atom
	Prefixes []netip.Prefix
	Name     string
	Limit    Limit
}

// Limit is a bound of a client's requests or connections.
type Limit struct {
	Kind  string // req_rate, conn_rate, conn_cur
	Count int
	Per   string // a duration, of rates
}

// Kind is what an Atom looks at.
type Kind int

// The kinds of atoms.
const (
	Host Kind = iota // or the name that a client of TLS asks for
	InPath
	Method
	Header
	Query
	Cookie
	ALPN
)

// Atom is a condition that a route can have. Atoms of Host, Header, Query and Cookie have one value.
type Atom struct {
	Kind  Kind
	Name  string // of Header, Query and Cookie
	Value string // Host: a name, or "*.name"; Header, Query and Cookie: "*" is any, without Match
	Match string // of Header, Query and Cookie: prefix, suffix, contains or regex; "" = Value is the whole value
	Paths Paths  // of InPath
	Set   []string
}

// Hop reports whether a header is one that requests have for one connection: routes do not see it.
func Hop(name string) bool {
	return slices.Contains([]string{"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}, strings.ToLower(name))
}

// Part returns the atom about a part of a value, with or without regard to case; false if a route cannot have it. An
// expression may match anywhere in the value.
func (a Atom) Part(match, value string, fold bool) (Atom, bool) {
	text := regexp.QuoteMeta(value)
	switch {
	case match == "regex":
		p := Path{Kind: Regexp, Text: value, Fold: fold}
		if p.Valid() != nil {
			return a, false
		}
		text = p.anywhere()
	case !fold:
		a.Match, a.Value = match, value
		return a, value != "" && (match != "" || value != "*") && len(value) <= maxValue && plain(value) && strings.TrimSpace(value) == value
	default:
		text = "(?i:" + map[string]string{"suffix": ".*", "contains": ".*"}[match] + text + map[string]string{"prefix": ".*", "contains": ".*"}[match] + ")"
	}
	a.Match, a.Value = "regex", text
	_, err := httpproxy.CompileWhole(a.Value)
	return a, err == nil && value != "" && plain(value)
}

// maxValue bounds a value of a condition, as the gateway does.
const maxValue = 200

// has reports whether a value meets the condition on it.
func (a Atom) has(value string) bool {
	switch a.Match {
	case "prefix":
		return strings.HasPrefix(value, a.Value)
	case "suffix":
		return strings.HasSuffix(value, a.Value)
	case "contains":
		return strings.Contains(value, a.Value)
	case "regex":
		e, err := httpproxy.CompileWhole(a.Value)
		return err == nil && e.MatchString(value)
	}
	return a.Value == "*" || a.Value == value
}

// text returns the condition on the value as YAML.
func (a Atom) text() string {
	if a.Match == "" {
		return yamltext.Quote(a.Value)
	}
	return "{" + a.Match + ": " + yamltext.Quote(a.Value) + "}"
}

// When returns the condition that an atom holds.
func When(a Atom) *Cond { return &Cond{Op: Is, Atom: a} }

// Either returns the condition that one of all holds.
func Either(all ...*Cond) *Cond { return &Cond{Op: Or, Sub: all} }

// Both returns the condition that all hold.
func Both(all ...*Cond) *Cond { return &Cond{Op: And, Sub: all} }

// Unless negates a condition.
func Unless(c *Cond) *Cond { return &Cond{Op: Not, Sub: []*Cond{c}} }

// Const returns a condition that always holds, or never.
func Const(holds bool) *Cond {
	if holds {
		return &Cond{Op: True}
	}
	return &Cond{Op: False}
}

// negated returns the opposite of a condition without constants in it, with Not only at the leaves.
func (c *Cond) negated() *Cond {
	switch c.Op {
	case True, False:
		return Const(c.Op == False)
	case Not:
		return c.Sub[0]
	case And, Or:
		n := &Cond{Op: Or}
		if c.Op == Or {
			n.Op = And
		}
		for _, sub := range c.Sub {
			n.Sub = append(n.Sub, sub.negated())
		}
		return n
	}
	return Unless(c)
}

// Given returns what is left of the condition if k is known.
func (c *Cond) Given(k *Known) *Cond {
	switch c.Op {
	case Is:
		switch holds, known := k.decides(c.Atom); {
		case known:
			return Const(holds)
		}
	case Not:
		return c.Sub[0].Given(k).negated()
	case And, Or:
		decisive, neutral := False, True
		if c.Op == Or {
			decisive, neutral = True, False
		}
		left := &Cond{Op: c.Op}
		for _, sub := range c.Sub {
			switch sub = sub.Given(k); sub.Op {
			case decisive:
				return sub
			case neutral:
			default:
				left.Sub = append(left.Sub, sub)
			}
		}
		switch len(left.Sub) {
		case 0:
			return &Cond{Op: neutral}
		case 1:
			return left.Sub[0]
		}
		return left
	}
	return c
}

// atom returns the first atom in the condition, nil if there is none.
func (c *Cond) atom() *Atom {
	if c.Op == Is {
		return &c.Atom
	}
	for _, sub := range c.Sub {
		if a := sub.atom(); a != nil {
			return a
		}
	}
	return nil
}

// uses reports whether an atom of the condition fits.
func (c *Cond) uses(fits func(Atom) bool) bool {
	return c.Op == Is && fits(c.Atom) || slices.ContainsFunc(c.Sub, func(sub *Cond) bool { return sub.uses(fits) })
}

// Known is what is known of a request at a rule. The zero value is nothing.
type Known struct {
	Host    string // "": any
	Paths   Paths  // nil: any
	Methods []string
	Fields  []Atom // of Header, Query, Cookie and ALPN, that hold
	held    []Atom // all atoms that hold, as an intersection of paths does not tell of which
	not     []Atom // atoms that do not hold, because requests with them have been taken by routes before
}

// implies reports whether requests with a have b.
func (a Atom) implies(b Atom) bool {
	if a.Kind != b.Kind || a.Name != b.Name {
		return false
	}
	switch a.Kind {
	case Host:
		return hostImplies(a.Value, b.Value)
	case InPath:
		return a.Paths.implies(b.Paths)
	case Method, ALPN:
		return !slices.ContainsFunc(a.Set, func(m string) bool { return !slices.Contains(b.Set, m) })
	}
	return a.Value == b.Value && a.Match == b.Match || b.Match == "" && b.Value == "*" || a.Match == "" && a.Value != "*" && b.has(a.Value)
}

func hostImplies(a, b string) bool {
	if suffix, ok := strings.CutPrefix(b, "*"); ok {
		return len(strings.TrimPrefix(a, "*")) >= len(suffix) && strings.HasSuffix(a, suffix) && strings.TrimPrefix(a, "*") != suffix || a == b
	}
	return a == b
}

// decides reports whether an atom holds, as far as that is known.
func (k *Known) decides(a Atom) (holds, known bool) {
	if slices.ContainsFunc(k.not, a.implies) {
		return false, true
	}
	if slices.ContainsFunc(k.held, func(h Atom) bool { return h.implies(a) }) {
		return true, true
	}
	switch a.Kind {
	case Host:
		switch {
		case k.Host == "":
			return false, false
		case hostImplies(k.Host, a.Value):
			return true, true
		}
		return false, !hostImplies(a.Value, k.Host)
	case InPath:
		switch {
		case len(a.Paths) == 0: // none
			return false, true
		case k.Paths.implies(a.Paths):
			return true, true
		}
		return false, k.Paths.disjoint(a.Paths)
	case Method:
		switch {
		case k.Methods == nil:
			return false, false
		case (Atom{Kind: Method, Set: k.Methods}).implies(a):
			return true, true
		}
		return false, !slices.ContainsFunc(k.Methods, func(m string) bool { return slices.Contains(a.Set, m) })
	}
	for _, f := range k.Fields {
		if f.implies(a) {
			return true, true
		}
	}
	return false, false
}

// And returns what is known if the atom holds, too; false if no route can have both.
func (k *Known) And(a Atom) (*Known, bool) {
	next := *k
	next.Fields, next.held = slices.Clone(k.Fields), append(slices.Clone(k.held), a)
	switch a.Kind {
	case Host:
		next.Host = a.Value
	case InPath:
		paths, ok := k.Paths.intersect(a.Paths)
		if !ok {
			return nil, false
		}
		next.Paths = paths
	case Method:
		next.Methods = slices.Clone(a.Set)
		if k.Methods != nil {
			next.Methods = slices.DeleteFunc(next.Methods, func(m string) bool { return !slices.Contains(k.Methods, m) })
		}
	default:
		for i, f := range next.Fields {
			if f.Kind == a.Kind && f.Name == a.Name {
				if a.implies(f) { // and now more is known
					next.Fields[i] = a
					return &next, true
				}
				return nil, false // a route has one value for each name
			}
		}
		next.Fields = append(next.Fields, a)
	}
	return &next, true
}

// without returns what is known if the atom does not hold.
func (k *Known) without(a Atom) *Known {
	next := *k
	next.not = append(slices.Clone(k.not), a)
	return &next
}
