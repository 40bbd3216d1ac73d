package nginxconf

import (
	"regexp"
	"slices"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// condition returns the condition of an if.
func (v *view) condition(d *directive) (*proxyconf.Cond, bool) {
	text := strings.TrimSpace(strings.Join(d.words[1:], " "))
	text = strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(text, "("), ")"))
	name, rest, _ := strings.Cut(text, " ")
	op, value, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if value = strings.TrimSpace(value); !strings.Contains(op, "~") {
		value = strings.Trim(value, `"'`)
	}
	negative := strings.HasPrefix(op, "!")
	c := v.compares(name, strings.TrimPrefix(op, "!"), value)
	if c == nil {
		c = v.holds(name, compare(strings.TrimPrefix(op, "!"), value))
	}
	if c == nil {
		v.missing(d, "no route can have this condition%s", refuses(d))
		return proxyconf.Const(false), false
	}
	if negative {
		c = proxyconf.Unless(c)
	}
	return c, true
}

// compare returns the test of a value that an if makes of a variable; nil for an expression that RE2 does not have.
func compare(op, value string) func(string) bool {
	switch op {
	case "":
		return func(s string) bool { return s != "" && s != "0" }
	case "=":
		return func(s string) bool { return s == value }
	}
	e, err := regexp.Compile(map[string]string{"~": "", "~*": "(?i)"}[op] + value)
	if err != nil || op != "~" && op != "~*" {
		return nil
	}
	return e.MatchString
}

// maxBreaks bounds the lines with break of a block: each makes the conditions of all lines after it longer.
const maxBreaks = 32

// stops returns the conditions under which nginx does not look at directives of a block, as a break before them has ended its
// rules of rewriting; nil if nothing does.
func (v *view) stops(block *directive) map[*directive]*proxyconf.Cond {
	if !slices.ContainsFunc(block.block, breaks) {
		return nil
	}
	all, stopped := map[*directive]*proxyconf.Cond{}, proxyconf.Const(false)
	var stop func(d *directive) *proxyconf.Cond
	stop = func(d *directive) *proxyconf.Cond {
		path := proxyconf.Path{Kind: proxyconf.Regexp, Text: d.arg(1)}
		path.Text, path.Fold = strings.CutPrefix(path.Text, "(?i)")
		switch {
		case d.name() == "break":
			return proxyconf.Const(true)
		case d.name() == "rewrite" && path.Valid() == nil && len(path.Text) <= 2000:
			return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{path}})
		case d.name() == "if":
			cond, _ := v.condition(d)
			inner := proxyconf.Const(false)
			for _, d := range d.block {
				if breaks(d) {
					inner = proxyconf.Either(inner, stop(d))
				}
			}
			return proxyconf.Both(cond, inner)
		}
		return proxyconf.Const(false)
	}
	n := 0
	for _, d := range block.block {
		all[d] = stopped
		if !breaks(d) {
			continue
		}
		if n++; n > maxBreaks {
			v.missing(d, "of a block %d lines with break are carried: lines after this one hold for its requests, too", maxBreaks)
			continue
		}
		stopped = proxyconf.Either(stopped, stop(d))
	}
	return all
}

// methodsOf are the methods of an expression such as ^(GET|HEAD)$.
var methodsOf = regexp.MustCompile(`^\^(?:\(([A-Z]+(?:\|[A-Z]+)*)\)|([A-Z]+))\$$`)

// compares returns the condition that a variable has a value, is like an expression (op ~ and ~*), or is not empty (no op); nil
// if no route can have it.
func (v *view) compares(variable, op, value string) *proxyconf.Cond {
	if op != "=" && op != "~" && op != "~*" && op != "" {
		return nil
	}
	if c := v.comparesField(variable, op, value); c != nil {
		return c
	}
	path := variable == "$uri" || variable == "$document_uri"
	switch {
	case variable == "$remote_addr" && op == "=" && proxyconf.ParsePrefix(value) != nil && !strings.Contains(value, "/"):
		return proxyconf.ParsePrefix(value)
	case variable == "$https" && (op == "" || op == "="):
		return proxyconf.Const(compare(op, value)(map[bool]string{true: "on"}[v.tls]))
	case variable == "$server_port" && op == "=" && v.port != "":
		return proxyconf.Const(value == v.port)
	case variable == "$scheme" && op == "=":
		return proxyconf.Const(value == map[bool]string{true: "https", false: "http"}[v.tls])
	case (variable == "$host" || variable == "$http_host") && op == "=" && isHost(strings.ToLower(value)):
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Host, Value: strings.ToLower(value)})
	case (variable == "$host" || variable == "$http_host") && strings.HasPrefix(op, "~"):
		return proxyconf.HostLike(value)
	case variable == "$request_method" && op == "=" && methodsOf.MatchString("^"+value+"$") && value != "CONNECT":
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: []string{value}})
	case variable == "$request_method" && op == "~" && methodsOf.MatchString(value) && !strings.Contains(value, "CONNECT"):
		set := strings.Split(strings.Trim(value, "^()$"), "|")
		slices.Sort(set)
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: slices.Compact(set)})
	case path && op == "=" && strings.HasPrefix(value, "/"):
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{{Text: value}}})
	case path && strings.HasPrefix(op, "~"):
		p := proxyconf.Path{Kind: proxyconf.Regexp, Text: value, Fold: op == "~*"}
		if value != "" && p.Valid() == nil && len(value) <= 2000 {
			return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: proxyconf.Paths{p}})
		}
	}
	return nil
}

// comparesField is compares for a header, cookie or parameter, which for nginx is empty if it is not there.
func (v *view) comparesField(variable, op, value string) *proxyconf.Cond {
	header, isHeader := strings.CutPrefix(variable, "$http_")
	cookie, isCookie := strings.CutPrefix(variable, "$cookie_")
	arg, isArg := strings.CutPrefix(variable, "$arg_")
	atom := proxyconf.Atom{Kind: proxyconf.Header, Name: strings.ReplaceAll(header, "_", "-")}
	switch {
	case isHeader && (header == "host" || strings.Contains(header, "-") || proxyconf.Hop(atom.Name)):
		return nil
	case isCookie:
		atom.Kind, atom.Name = proxyconf.Cookie, cookie
	case isArg:
		atom.Kind, atom.Name = proxyconf.Query, arg
	case !isHeader:
		return nil
	}
	if !isHost(strings.ToLower(atom.Name)) || len(atom.Name) > 200 {
		return nil
	}
	some := atom // something is there
	some.Match, some.Value = "regex", ".+"
	match, holds := "", true
	switch {
	case op == "":
		atom.Match, atom.Value = "regex", "[^0]|..+"
		return proxyconf.When(atom)
	case op == "=" && value == "", op != "=" && value == "^$":
		return proxyconf.Unless(proxyconf.When(some))
	case op != "=":
		e, err := regexp.Compile(value)
		match, holds = "regex", err == nil && !e.MatchString("") // nothing is like the expression, too
	}
	part, ok := atom.Part(match, value, op == "~*")
	if !ok || !holds {
		return nil
	}
	return proxyconf.When(part)
}
