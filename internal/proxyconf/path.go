package proxyconf

import (
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/httpproxy"
)

// PathKind says how a Path is compared.
type PathKind int

// The kinds of paths.
const (
	Exact  PathKind = iota
	Affix           // begins with Text and ends with Tail; both together may overlap
	Part            // has Text anywhere
	Regexp          // has a match of the expression Text; Tail are its options, without "(?)"
)

// Path is a set of paths.
type Path struct {
	Kind PathKind
	Text string
	Tail string
	Fold bool // without regard to case
}

// Paths are the paths in one of several sets; nil are all paths, an empty list none.
type Paths []Path

// Prefix returns the paths that begin with a text.
func Prefix(text string) Path { return Path{Kind: Affix, Text: text} }

// Suffix returns the paths that end with a text.
func Suffix(text string) Path { return Path{Kind: Affix, Tail: text} }

// expression returns the set as an expression for the whole path, in which a dot has to match line breaks, too: other
// programs compare paths as clients write them, where there are none.
func (p Path) expression() string {
	text := ""
	switch quoted := regexp.QuoteMeta(p.Text); p.Kind {
	case Exact:
		text = quoted
	case Part:
		text = ".*" + quoted + ".*"
	case Affix:
		text = quoted + ".*" + regexp.QuoteMeta(p.Tail)
		for n := 1; n <= min(len(p.Text), len(p.Tail)); n++ { // where both overlap
			if strings.HasSuffix(p.Text, p.Tail[:n]) {
				text += "|" + quoted + regexp.QuoteMeta(p.Tail[n:])
			}
		}
	case Regexp:
		return p.anywhere()
	}
	if p.Fold {
		return "(?i:" + text + ")"
	}
	return text
}

// anywhere returns the expression of a Regexp for the whole path, with a match at the first place, as capturing groups need it.
func (p Path) anywhere() string {
	text, begin, end := p.Text, ".*?", ".*"
	if inner, ok := strings.CutPrefix(text, "^"); ok && whole(inner) {
		text, begin = inner, ""
	}
	if inner, ok := strings.CutSuffix(text, "$"); ok && !strings.HasSuffix(inner, `\`) && whole(inner) {
		text, end = inner, ""
	}
	if strings.HasSuffix(text, "(.*)") || strings.HasSuffix(text, ".*") && !strings.HasSuffix(text, `\.*`) {
		end = ""
	}
	switch {
	case p.Fold:
		text = "(?i:" + text + ")"
	case !whole(text):
		text = "(?:" + text + ")"
	}
	return begin + text + end
}

// whole reports whether an expression has no alternatives at its top, so that text beside it belongs to all of it.
func whole(expression string) bool {
	depth := 0
	for i := 0; i < len(expression); i++ {
		switch expression[i] {
		case '\\':
			i++
		case '[':
			j := i + 1
			for ; j < len(expression) && (expression[j] != ']' || j == i+1 || j == i+2 && expression[i+1] == '^'); j++ {
				if expression[j] == '\\' {
					j++
				}
			}
			i = j
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				return false
			}
		}
	}
	return depth == 0
}

// Valid reports what is wrong with a path, or an expression, as one of a route. Expressions of PCRE that RE2 lacks are errors.
func (p Path) Valid() error {
	if p.Kind == Regexp {
		if _, err := regexp.Compile(p.Text); err != nil {
			return err
		}
	}
	_, err := httpproxy.CompilePath(Paths{p}.Expression())
	return err
}

// literal returns the text that all paths of the set begin with.
func (p Path) literal() string {
	switch {
	case p.Fold || p.Kind == Part:
		return ""
	case p.Kind != Regexp:
		return p.Text
	}
	inner, ok := strings.CutPrefix(p.Text, "^")
	if !ok || !whole(inner) {
		return ""
	}
	re, err := regexp.Compile(inner)
	if err != nil {
		return ""
	}
	prefix, _ := re.LiteralPrefix()
	return prefix
}

// matches reports whether a path is in the set.
func (p Path) matches(path string) bool {
	switch text, tail := p.Text, p.Tail; {
	case p.Kind == Regexp:
		re, err := regexp.Compile("^(?s:" + p.expression() + ")$")
		return err == nil && re.MatchString(path)
	case p.Fold:
		return p.lower().matches(strings.ToLower(path))
	case p.Kind == Exact:
		return path == text
	case p.Kind == Part:
		return strings.Contains(path, text)
	default:
		return strings.HasPrefix(path, text) && strings.HasSuffix(path, tail)
	}
}

// lower returns the set with its texts in lower case, and with regard to case.
func (p Path) lower() Path {
	return Path{Kind: p.Kind, Text: strings.ToLower(p.Text), Tail: strings.ToLower(p.Tail)}
}

// implies reports whether p is known to be a part of q.
func (p Path) implies(q Path) bool {
	switch {
	case p == q:
		return true
	case q.Kind == Affix && q.Text == "/" && q.Tail == "": // every path
		return true
	case p.Fold:
		return q.Fold && p.Kind != Regexp && q.Kind != Regexp && p.lower().implies(q.lower())
	case p.Kind == Exact:
		return q.matches(p.Text)
	case q.Fold || q.Kind == Exact:
		return false
	case q.Kind == Affix:
		return strings.HasPrefix(p.literal(), q.Text) && (q.Tail == "" || p.Kind == Affix && strings.HasSuffix(p.Tail, q.Tail))
	case q.Kind == Regexp:
		return p.Kind == Affix && p.Text != "" && strings.HasPrefix(p.Text, q.literal()) && slices.Contains([]string{"", ".*", "(.*)", ".*$", "(.*)$"}, strings.TrimPrefix(q.Text, "^"+regexp.QuoteMeta(q.literal())))
	case q.Kind == Part:
		return p.Kind != Regexp && (strings.Contains(p.Text, q.Text) || strings.Contains(p.Tail, q.Text))
	}
	return false
}

// disjoint reports whether no path is known to be in both.
func (p Path) disjoint(q Path) bool {
	if q.Kind == Exact && p.Kind != Exact {
		p, q = q, p
	}
	switch {
	case p.Kind == Exact && !p.Fold:
		return !q.matches(p.Text)
	case p.Kind == Exact && q.Kind == Exact:
		return !strings.EqualFold(p.Text, q.Text)
	case p.Fold || q.Fold: // the sets without regard to case are larger
		return p.Kind != Regexp && q.Kind != Regexp && p.lower().disjoint(q.lower())
	}
	a, b := p.literal(), q.literal()
	if !strings.HasPrefix(a, b) && !strings.HasPrefix(b, a) {
		return true
	}
	return p.Kind == Affix && q.Kind == Affix && !strings.HasSuffix(p.Tail, q.Tail) && !strings.HasSuffix(q.Tail, p.Tail)
}

// Apart reports whether no path is known to be in both.
func (p Path) Apart(q Path) bool { return p.disjoint(q) }

// intersect returns the paths in both; false if there is no form for them.
func (p Path) intersect(q Path) (Paths, bool) {
	switch {
	case p.implies(q):
		return Paths{p}, true
	case q.implies(p):
		return Paths{q}, true
	case p.disjoint(q):
		return Paths{}, true
	case p.Kind == Affix && q.Kind == Affix && !p.Fold && !q.Fold: // one of the texts, and of the tails, is a part of the other
		r := p
		if len(q.Text) > len(r.Text) {
			r.Text = q.Text
		}
		if len(q.Tail) > len(r.Tail) {
			r.Tail = q.Tail
		}
		return Paths{r}, true
	}
	if r, ok := p.within(q); ok {
		return Paths{r}, true
	}
	r, ok := q.within(p)
	return Paths{r}, ok
}

// within returns the paths of p in an Affix as an expression, for some kinds of p.
func (p Path) within(q Path) (Path, bool) {
	if q.Kind != Affix || q.Fold || p.Kind == Part && p.Fold {
		return Path{}, false
	}
	begin, end := regexp.QuoteMeta(q.Text), regexp.QuoteMeta(q.Tail)
	switch {
	case p.Kind == Exact && len(p.Text) >= len(q.Text)+len(q.Tail) && len(p.Text) == len(strings.ToLower(p.Text)):
		middle := p.Text[len(q.Text) : len(p.Text)-len(q.Tail)]
		return Path{Kind: Regexp, Text: "^" + begin + "(?i:" + regexp.QuoteMeta(middle) + ")" + end + "$"}, plain(p.Text)
	case p.Kind == Regexp && q.Tail == "" && q.Text != "" && p.startsBehind(q.Text):
		inner := p.Text
		if p.Fold {
			inner = "i:" + inner
		} else {
			inner = ":" + inner
		}
		return Path{Kind: Regexp, Text: "^" + begin + ".*?(?" + inner + ")"}, true
	case p.Kind == Part && !overlap(q.Text, p.Text) && !overlap(p.Text, q.Tail) && !overlap(q.Text, q.Tail):
		return Path{Kind: Regexp, Text: "^" + begin + ".*" + regexp.QuoteMeta(p.Text) + ".*" + end + "$"}, true
	}
	return Path{}, false
}

// startsBehind reports whether a match of an expression cannot begin in a text at the beginning of a path.
func (p Path) startsBehind(text string) bool {
	anchors := strings.NewReplacer(`\\`, "", "[^", "").Replace(p.Text)
	if strings.Contains(anchors, "^") || strings.Contains(anchors, `\b`) || strings.Contains(anchors, `\B`) || strings.Contains(anchors, `\A`) {
		return false
	}
	re, err := regexp.Compile(p.Text)
	if err != nil {
		return false
	}
	first, _ := re.LiteralPrefix()
	return first != "" && !overlap(strings.ToLower(text), strings.ToLower(first))
}

// overlap reports whether a text may end with the beginning of another one.
func overlap(a, b string) bool {
	for n := 1; n <= min(len(a), len(b)); n++ {
		if strings.HasSuffix(a, b[:n]) {
			return true
		}
	}
	return strings.Contains(b, a) && a != "" || strings.Contains(a, b) && b != ""
}

func (all Paths) implies(others Paths) bool {
	if others == nil {
		return true
	}
	if all == nil {
		return slices.ContainsFunc(others, func(q Path) bool { return Prefix("/").implies(q) })
	}
	return !slices.ContainsFunc(all, func(p Path) bool { return !slices.ContainsFunc(others, p.implies) })
}

// Same reports whether the paths are known to be the same as others.
func (all Paths) Same(others Paths) bool { return all.implies(others) && others.implies(all) }

func (all Paths) disjoint(others Paths) bool {
	if all == nil || others == nil {
		return all != nil && len(all) == 0 || others != nil && len(others) == 0
	}
	for _, p := range all {
		if slices.ContainsFunc(others, func(q Path) bool { return !p.disjoint(q) }) {
			return false
		}
	}
	return true
}

// maxExpression bounds an expression, as the gateway does, less what is around it.
const maxExpression = 1000

func (p Path) long() bool {
	return len(p.Text)+len(p.Tail) > maxExpression/4 && len(p.expression()) > maxExpression
}

// maxPaths bounds the sets of an intersection, which may multiply.
const maxPaths = 64

func (all Paths) intersect(others Paths) (Paths, bool) {
	if all == nil {
		return others, true
	}
	both := Paths{}
	for _, p := range all {
		for _, q := range others {
			r, ok := p.intersect(q)
			if !ok || len(both) > maxPaths || slices.ContainsFunc(r, Path.long) {
				return nil, false
			}
			for _, path := range r {
				if !slices.Contains(both, path) {
					both = append(both, path)
				}
			}
		}
	}
	return both, true
}

// Expression returns the paths as an expression for the whole path.
func (all Paths) Expression() string {
	if all == nil {
		return "(?s).*"
	}
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.expression()
	}
	text := strings.Join(texts, "|")
	if strings.Contains(strings.ReplaceAll(text, `\.`, ""), ".") {
		return "(?s)" + text
	}
	return text
}

// CheckRewrite reports what is wrong with a new path for the route of the paths, which may have groups of their expression.
func (all Paths) CheckRewrite(text string) error {
	expression, err := httpproxy.CompilePath(all.Expression())
	if err != nil {
		return err
	}
	return httpproxy.CheckRewrite(text, expression)
}

// Grouped returns the paths as one expression with the group of another one, such as "^/api/(.*)", if they are a part of it.
func (all Paths) Grouped(p Path) (Path, bool) {
	begin := p.literal()
	if end := strings.TrimPrefix(p.Text, "^"+regexp.QuoteMeta(begin)); begin == "" || end != "(.*)" && end != "(.*)$" || len(all) == 0 {
		return p, false
	}
	var texts []string
	for _, q := range all {
		if q.Fold || q.Kind != Exact && q.Kind != Affix || !strings.HasPrefix(q.Text, begin) || overlap(q.Text, q.Tail) {
			return p, false
		}
		text := regexp.QuoteMeta(q.Text[len(begin):])
		if q.Kind == Affix {
			text += ".*" + regexp.QuoteMeta(q.Tail)
		}
		texts = append(texts, text)
	}
	return Path{Kind: Regexp, Text: "^" + regexp.QuoteMeta(begin) + "(" + strings.Join(texts, "|") + ")$"}, true
}

// CheckRedirect is CheckRewrite for the address of a redirect.
func (all Paths) CheckRedirect(text string) error {
	expression, err := httpproxy.CompilePath(all.Expression())
	if err != nil {
		return err
	}
	return httpproxy.CheckRedirect(text, expression)
}

// Narrow makes the known paths an expression with the groups of p, which holds; false if they are only a part of it.
func (k *Known) Narrow(p Path) bool {
	all := Paths{p}
	if len(k.Paths) == 1 && all.Same(k.Paths) {
		k.Paths = all
		return true
	}
	part, ok := k.Paths.Grouped(p)
	if ok = ok && !part.long(); ok {
		k.Paths = Paths{part}
	}
	return ok
}
