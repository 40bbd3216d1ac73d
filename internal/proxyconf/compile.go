package proxyconf

import (
	"slices"
	"strconv"
	"strings"
)

func itoa(n int) string { return strconv.Itoa(n) }

// Rule is one rule of a list, of which each is tried in turn.
type Rule struct {
	From Position
	Name string // for reports
	Lost string // what is added to a report that it does not hold for some requests
	When *Cond
	// Do changes the state of requests for which the rule holds. It returns why it cannot, and "" if it has.
	Do func(s *State, k *Known) string
	// Guard changes the state of all requests at this rule, for a condition of clients that no route can have. It returns
	// why it cannot. nil: it cannot.
	Guard func(s *State, left *Cond) string
	// Then replaces the rules that follow; with End there are none.
	Then []*Rule
	End  bool
}

// Leaf is one way through the rules.
type Leaf struct {
	Known Known
	State State
}

// maxLeaves bounds the ways through the rules of a listener: each condition may double them.
const maxLeaves = 2000

// compiler follows rules.
type compiler struct {
	leaves  []Leaf
	reports *Reports
	steps   int
}

// maxSteps bounds the work of a compilation.
const maxSteps = 200_000

// Compile returns the ways through the rules, first those that are tried first. The last one is for all requests. It returns
// false if there are too many.
func Compile(rules []*Rule, start State, reports *Reports) ([]Leaf, bool) {
	c := &compiler{reports: reports}
	c.run(rules, &Known{}, start)
	return c.leaves, len(c.leaves) <= maxLeaves && c.steps <= maxSteps
}

func (c *compiler) run(rules []*Rule, k *Known, s State) {
	for len(rules) > 0 && len(c.leaves) <= maxLeaves && c.steps <= maxSteps {
		c.steps++
		r := rules[0]
		cond := r.When.Given(k)
		switch a := cond.atom(); {
		case cond.Op == False:
			rules = rules[1:]
		case cond.Op == True:
			var over bool
			if rules, over = c.apply(r, rules, k, &s); over {
				c.leaves = append(c.leaves, Leaf{*k, s})
				return
			}
		case s.obscures(cond):
			c.miss(r, "its condition looks at what rules before have changed, and routes look at what the client sent")
			rules = rules[1:]
		case a == nil:
			if why := r.guard(&s, cond); why != "" {
				c.miss(r, why)
			}
			rules = rules[1:]
		default:
			yes, ok := k.And(*a)
			if !ok {
				c.miss(r, "no route can have its condition together with those of other rules that hold for the same requests; write a route with an expression (path_match: regex) for both")
				rules = rules[1:]
				continue
			}
			c.run(rules, yes, s.clone())
			k = k.without(*a)
		}
	}
	c.leaves = append(c.leaves, Leaf{*k, s})
}

// apply applies a rule that holds, and returns those that follow; true if none may.
func (c *compiler) apply(r *Rule, rules []*Rule, k *Known, s *State) ([]*Rule, bool) {
	if r.Do != nil {
		if why := r.Do(s, k); why != "" {
			c.miss(r, why)
			return rules[1:], false
		}
	}
	if r.Then != nil || r.End {
		return r.Then, r.End
	}
	return rules[1:], false
}

func (c *compiler) miss(r *Rule, why string) {
	c.reports.Add(r.From, r.Name, Missing, "%s%s", why, r.lost(why))
}

// lost returns what is to be said of a rule that some requests miss.
func (r *Rule) lost(why string) string {
	if strings.HasSuffix(why, r.Lost) || strings.Contains(why, "nobody may use") {
		return ""
	}
	return r.Lost
}

// guard is Rule.Guard, if there is one.
func (r *Rule) guard(s *State, left *Cond) string {
	if r.Guard == nil {
		return "no route can have its condition: routes do not look at the address, the user or the limits of a client to choose what is done, only to refuse it"
	}
	return r.Guard(s, left)
}

// obscures reports whether a condition looks at what has been changed.
func (s *State) obscures(c *Cond) bool {
	return c.uses(func(a Atom) bool {
		switch a.Kind {
		case InPath:
			return s.Moved
		case Header:
			return s.Request.touches(a.Name)
		case Host:
			return s.Request.touches("host")
		case Cookie:
			return s.Request.touches("cookie")
		}
		return false
	})
}

// Refuse is the Guard of rules that refuse clients by their address.
func Refuse(at Position) func(s *State, left *Cond) string {
	return func(s *State, left *Cond) string {
		alternatives := []*Cond{left}
		if left.Op == Or {
			alternatives = left.Sub
		}
		allow, deny := s.Allow, s.Deny
		for _, c := range alternatives {
			switch {
			case c.Op == Source:
				deny = append(slices.Clone(deny), prefixes(c)...)
			case c.Op == Not && c.Sub[0].Op == Source && len(allow) == 0:
				allow = prefixes(c.Sub[0])
			case c.Op == And && exceptions(c) != nil && len(allow)+len(deny) == 0 && len(alternatives) == 1:
				allow = exceptions(c)
			default:
				return "a route has one list of addresses that may use it (allow), and one of exceptions (deny); this condition fits into neither"
			}
		}
		s.Allow, s.Deny = allow, deny
		if s.Guards == nil {
			s.Guards = map[string]Position{}
		}
		for key, list := range map[string][]string{"allow": allow, "deny": deny} {
			if _, ok := s.Guards[key]; !ok && len(list) > 0 {
				s.Guards[key] = at
			}
		}
		return ""
	}
}

// exceptions returns the addresses in several negated lists, nil if the condition is something else.
func exceptions(c *Cond) (all []string) {
	for _, sub := range c.Sub {
		if sub.Op != Not || sub.Sub[0].Op != Source {
			return nil
		}
		all = append(all, prefixes(sub.Sub[0])...)
	}
	return all
}

func prefixes(c *Cond) (texts []string) {
	for _, p := range c.Prefixes {
		texts = append(texts, p.String())
	}
	return texts
}

// ParsePrefix reads an address or a prefix.
func ParsePrefix(text string) *Cond {
	c := &Cond{Op: Source}
	if p, ok := prefixOf(text); ok {
		c.Prefixes = append(c.Prefixes, p)
		return c
	}
	return nil
}

// Escape returns text as a template of the gateway: its braces are doubled, and with groups its dollars.
func Escape(text string, groups bool) string {
	text = strings.ReplaceAll(text, "{", "{{")
	if groups {
		text = strings.ReplaceAll(text, "$", "$$")
	}
	return text
}
