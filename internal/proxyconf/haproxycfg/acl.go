package haproxycfg

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/headpond/headpond/internal/proxyconf"
)

// place is where rules are looked at: a proxy, behind one kind of address.
type place struct {
	*proxy
	tls  bool   // clients speak TLS to the listener
	port string // of the listener, "" if there are several
	acls map[string]*proxyconf.Cond
	// accepted are the clients of tcp-request connection accept so far.
	accepted []*proxyconf.Cond
}

// cannot is why a condition cannot be carried.
type cannot string

func (e cannot) Error() string { return string(e) }

// cut splits a rule into its words and its condition. With an error, the condition is that of the alternatives that can be
// carried, nil if there is none.
func (p *place) cut(words []word) ([]word, *proxyconf.Cond, error) {
	for i, w := range words {
		if w == "if" || w == "unless" {
			cond, err := p.cond(words[i+1:])
			if w == "unless" && cond != nil {
				cond = proxyconf.Unless(cond)
			}
			if w == "unless" && err != nil {
				cond = nil // without one alternative it would hold too often
			}
			return words[:i], cond, err
		}
	}
	return words, proxyconf.Const(true), nil
}

// cond reads a condition. With an error it returns the alternatives, between "or", that can be carried, nil if there is none.
func (p *place) cond(words []word) (*proxyconf.Cond, error) {
	var either, both []*proxyconf.Cond
	var failed error
	lost := false // the alternative
	end := func() {
		if !lost && both != nil { // HAProxy has no alternative behind an "or" at the end
			either = append(either, proxyconf.Both(both...))
		}
		both, lost = nil, false
	}
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		if w == "||" || w == "or" {
			end()
			continue
		}
		negative := false
		for strings.HasPrefix(w, "!") {
			negative, w = !negative, w[1:]
			if w == "" && len(words) > 0 {
				w, words = words[0], words[1:]
			}
		}
		var c *proxyconf.Cond
		var err error
		if w == "{" {
			n := slices.Index(words, "}")
			if n < 0 {
				return nil, errors.New("{ has no }")
			}
			c, err = p.test(words[:n])
			words = words[n+1:]
		} else {
			c, err = p.acl(w)
		}
		if err != nil {
			failed, lost = err, true
			continue
		}
		if negative {
			c = proxyconf.Unless(c)
		}
		both = append(both, c)
	}
	end()
	if either == nil {
		return nil, cmp.Or(failed, errors.New("an empty condition"))
	}
	return proxyconf.Either(either...), failed
}

// acl returns the condition of a name: all lines of that name.
func (p *place) acl(name string) (*proxyconf.Cond, error) {
	if c := p.acls[name]; c != nil {
		return c, nil
	}
	var all []*proxyconf.Cond
	for _, l := range p.lines {
		if l.words[0] == "acl" && l.arg(1) == name {
			c, err := p.test(l.words[2:])
			if err != nil {
				return nil, fmt.Errorf("acl %s: %w", name, err)
			}
			all = append(all, c)
		}
	}
	if all == nil {
		c := p.predefined(name)
		if c == nil {
			return nil, fmt.Errorf("there is no acl %q", name)
		}
		return c, nil
	}
	c := proxyconf.Either(all...)
	p.acls[name] = c
	return c, nil
}

// predefined returns one of HAProxy's own conditions, nil if there is none of that name.
func (p *place) predefined(name string) *proxyconf.Cond {
	switch name {
	case "TRUE", "HTTP", "HTTP_URL_SLASH", "WAIT_END", "REQ_CONTENT", "HTTP_1.1":
		return proxyconf.Const(true)
	case "FALSE", "HTTP_URL_ABS", "HTTP_URL_STAR", "HTTP_1.0":
		return proxyconf.Const(false)
	case "LOCALHOST":
		return sources([]string{"127.0.0.0/8", "::1"})
	}
	if method, ok := strings.CutPrefix(name, "METH_"); ok {
		set := []string{method}
		if method == "GET" {
			set = []string{"GET", "HEAD"}
		}
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: set})
	}
	return nil
}

// fetch is a test of an acl, such as "hdr(host) -m end -i .example".
type fetch struct {
	name, arg  string
	converters []string
	match      string // of -m, or the end of the name
	fold       bool
	values     []string
}

// matches are the ends of names that stand for -m.
var matches = []string{"beg", "end", "reg", "sub", "dir", "dom", "len", "str", "found", "cnt"}

// parse reads a test.
func (p *place) parse(words []word) (f fetch, err error) {
	if len(words) == 0 {
		return f, errors.New("an empty condition")
	}
	head, rest, _ := strings.Cut(words[0], ",")
	if i := strings.LastIndex(words[0], ")"); i >= 0 && !strings.Contains(head, ")") {
		head, rest = words[0][:i+1], strings.TrimPrefix(words[0][i+1:], ",")
	}
	f.name, f.arg, _ = strings.Cut(strings.TrimSuffix(head, ")"), "(")
	if rest != "" {
		f.converters = strings.Split(rest, ",")
	}
	if f.name == "var" {
		if value := p.variable(f.arg); value != "" && rest == "" {
			return p.parse(append([]word{value}, words[1:]...))
		}
	}
	if i := strings.LastIndexByte(f.name, '_'); i > 0 && slices.Contains(matches, f.name[i+1:]) && f.name != "req_len" {
		f.name, f.match = f.name[:i], f.name[i+1:]
	}
	words = words[1:]
	for ; len(words) > 0 && strings.HasPrefix(words[0], "-"); words = words[1:] {
		switch {
		case words[0] == "--":
			f.values = append(f.values, words[1:]...)
			return f, nil
		case words[0] == "-i":
			f.fold = true
		case words[0] == "-n" || words[0] == "-u" && len(words) > 1:
			if words[0] == "-u" {
				words = words[1:]
			}
		case words[0] == "-m" && len(words) > 1:
			f.match, words = words[1], words[1:]
		case words[0] == "-f" && len(words) > 1:
			values, err := p.patterns(words[1])
			if err != nil {
				return f, err
			}
			f.values, words = append(f.values, values...), words[1:]
		default:
			return f, cannot(fmt.Sprintf("the flag %.20q is not supported", words[0]))
		}
	}
	f.values = append(f.values, words...)
	return f, nil
}

// variable returns what a variable is made of, if one line sets it, for all requests, before others look at it; else "".
func (p *place) variable(name string) (value string) {
	looks := []string{} // names of conditions that look at it
	for _, l := range p.lines {
		if l.words[0] == "acl" && strings.Contains(strings.Join(l.words[2:], " "), "var("+name) {
			looks = append(looks, l.arg(1))
		}
	}
	early := false
	for _, l := range p.lines {
		action, arg, _ := strings.Cut(l.arg(1), "(")
		if !strings.HasPrefix(action, "set-var") && action != "unset-var" || !strings.HasPrefix(arg, name+")") && !strings.HasPrefix(arg, name+",") {
			// tcp-request comes before http-request, and use_backend behind it
			early = early || (l.words[0] == "tcp-request" || l.words[0] == "http-request" && value == "") && slices.ContainsFunc(l.words, func(w word) bool {
				return strings.Contains(w, "var("+name) || slices.Contains(looks, strings.TrimLeft(w, "!"))
			})
			continue
		}
		if value != "" || l.words[0] != "http-request" || action != "set-var" || arg != name+")" || len(l.words) != 3 || strings.HasPrefix(l.arg(2), "var(") {
			return ""
		}
		value = l.arg(2)
	}
	if early {
		return ""
	}
	return value
}

// patterns reads a file of values.
func (p *place) patterns(name string) (values []string, err error) {
	text, err := p.c.opt.Read(p.c.path(name))
	if err != nil {
		return nil, cannot(fmt.Sprintf("cannot read %q", name))
	}
	for l := range strings.Lines(string(text)) {
		if l = strings.TrimSpace(l); l != "" && l[0] != '#' && len(values) < maxPatterns {
			values = append(values, l)
		}
	}
	return values, nil
}

// maxPatterns bounds the values of a condition: each host, header or parameter is a route.
const maxPatterns = 1000

// test returns the condition of a test.
func (p *place) test(words []word) (*proxyconf.Cond, error) {
	f, err := p.parse(words)
	if err != nil {
		return nil, err
	}
	unknown := cannot(fmt.Sprintf("no route can have a condition on %.200s", strings.Join(words[:min(len(words), 4)], " ")))
	switch name := strings.TrimPrefix(f.name, "req."); name {
	case "always_true":
		return proxyconf.Const(true), nil
	case "always_false":
		return proxyconf.Const(false), nil
	case "src":
		if c := sources(f.values); c != nil && len(f.converters) == 0 && (f.match == "" || f.match == "ip") {
			return c, nil
		}
	case "ssl_fc":
		return proxyconf.Const(p.tls), nil
	case "dst_port":
		if p.port != "" && f.match == "" {
			return proxyconf.Const(slices.Contains(f.values, p.port)), nil
		}
	case "method":
		set := slices.DeleteFunc(slices.Clone(f.values), func(m string) bool { return m == "CONNECT" }) // which is always refused
		if len(f.converters) == 0 && (f.match == "" || f.match == "str") && len(f.values) > 0 && !slices.ContainsFunc(set, badToken) {
			if len(set) == 0 {
				return proxyconf.Const(false), nil
			}
			return proxyconf.When(proxyconf.Atom{Kind: proxyconf.Method, Set: set}), nil
		}
	case "path":
		return f.paths(unknown)
	case "hdr", "fhdr", "shdr", "ssl_fc_sni", "ssl_sni", "req_ssl_sni", "ssl_alpn", "req_ssl_alpn", "url_param", "urlp", "cook":
		return f.named(name, p, unknown)
	case "ssl_hello_type", "req_ssl_hello_type", "ssl_ver", "req_ssl_ver", "proto_http":
		return proxyconf.Const(true), nil
	case "http_auth":
		return &proxyconf.Cond{Op: proxyconf.User, Name: f.arg}, nil
	case "http_auth_group":
		if f.match == "" && len(f.converters) == 0 && len(f.values) > 0 {
			return &proxyconf.Cond{Op: proxyconf.User, Name: strings.Join(append([]string{f.arg}, f.values...), " ")}, nil
		}
	}
	if c := p.above(f); c != nil {
		return c, nil
	}
	return nil, unknown
}

// sources returns the condition on addresses, nil if one is none.
func sources(values []string) *proxyconf.Cond {
	all := &proxyconf.Cond{Op: proxyconf.Source}
	for _, v := range values {
		c := proxyconf.ParsePrefix(v)
		if c == nil {
			return nil
		}
		all.Prefixes = append(all.Prefixes, c.Prefixes...)
	}
	if len(values) == 0 {
		return nil
	}
	return all
}

func badToken(text string) bool {
	return text == "" || len(text) > 32 || strings.ContainsFunc(text, func(c rune) bool { return c < 'A' || c > 'Z' })
}

// paths returns the condition on a path.
func (f fetch) paths(unknown error) (*proxyconf.Cond, error) {
	fold := f.fold
	for _, conv := range f.converters {
		switch {
		case conv == "lower":
			fold = true
		case strings.HasPrefix(conv, "url_dec"):
		default:
			return nil, unknown
		}
	}
	if f.match == "found" {
		return proxyconf.Const(true), nil
	}
	paths := proxyconf.Paths{}
	for _, v := range f.values {
		path, err := pathOf(f.match, v, fold)
		if err != nil {
			return nil, err
		}
		if path == nil {
			return nil, unknown
		}
		paths = append(paths, path...)
	}
	return proxyconf.When(proxyconf.Atom{Kind: proxyconf.InPath, Paths: paths}), nil
}

// pathOf returns the paths that a value matches, nil if there is no form for it.
func pathOf(match, v string, fold bool) (proxyconf.Paths, error) {
	if match != "reg" && strings.Contains(v, "%") { // HAProxy compares what the client writes, and the gateway what it means
		if plain, err := url.PathUnescape(v); err == nil {
			v = plain
		}
	}
	path := proxyconf.Path{Text: v, Fold: fold && strings.ToLower(v) != strings.ToUpper(v)}
	switch match {
	case "", "str":
		path.Kind = proxyconf.Exact
	case "beg":
		path.Kind = proxyconf.Affix
	case "end":
		path.Kind, path.Text, path.Tail = proxyconf.Affix, "", v
	case "sub":
		path.Kind = proxyconf.Part
	case "dir":
		v = "/" + strings.Trim(v, "/")
		return proxyconf.Paths{{Kind: proxyconf.Part, Text: v + "/", Fold: path.Fold}, {Kind: proxyconf.Affix, Tail: v, Fold: path.Fold}}, nil
	case "reg":
		path.Kind = proxyconf.Regexp
		if err := path.Valid(); err != nil {
			return nil, cannot(fmt.Sprintf("the expression %q is not one of RE2, which the gateway has: %v; write it without look-around and back references", v, err))
		}
	default:
		return nil, nil
	}
	if len(v) <= maxPath && path.Valid() == nil {
		return proxyconf.Paths{path}, nil
	}
	return nil, nil
}

// maxPath bounds a text of a path.
const maxPath = 2000

// named returns the condition on something that has one value in a route: a host, header or parameter.
func (f fetch) named(name string, p *place, unknown error) (*proxyconf.Cond, error) {
	atom := proxyconf.Atom{Kind: proxyconf.Header, Name: strings.ToLower(f.arg)}
	switch {
	case strings.HasSuffix(name, "alpn"):
		if p.http() || f.match != "" || len(f.values) == 0 {
			return nil, unknown
		}
		return proxyconf.When(proxyconf.Atom{Kind: proxyconf.ALPN, Set: f.values}), nil
	case strings.HasSuffix(name, "sni"):
		atom.Kind, atom.Name = proxyconf.Host, ""
		if p.http() && !p.tls {
			return proxyconf.Const(false), nil
		}
	case strings.HasPrefix(name, "url"):
		atom.Kind, atom.Name = proxyconf.Query, f.arg
	case name == "cook":
		atom.Kind, atom.Name = proxyconf.Cookie, f.arg
	case strings.EqualFold(f.arg, "host") || strings.HasPrefix(strings.ToLower(f.arg), "host,"):
		atom.Kind, atom.Name = proxyconf.Host, ""
	case proxyconf.Hop(f.arg):
		return nil, cannot(fmt.Sprintf("no route can have a condition on %s, which is for one connection; WebSockets pass on every route: choose theirs by its path", f.arg))
	}
	if !p.http() && atom.Kind != proxyconf.Host || atom.Kind != proxyconf.Host && (!headerName(f.arg) || len(f.converters) > 0 && !slices.Equal(f.converters, []string{"lower"})) {
		return nil, unknown
	}
	var all []*proxyconf.Cond
	values := f.values
	if f.match == "found" {
		values = []string{"*"}
	}
	for _, v := range values {
		if c := f.hosts(atom, v); c != nil {
			all = append(all, c)
			continue
		}
		a, ok := f.valued(atom, v)
		if !ok {
			return nil, unknown
		}
		all = append(all, proxyconf.When(a))
	}
	return proxyconf.Either(all...), nil
}

// valued returns the atom for a value; false if a route cannot have it.
func (f fetch) valued(atom proxyconf.Atom, v string) (proxyconf.Atom, bool) {
	match, known := map[string]string{"": "", "str": "", "found": "", "beg": "prefix", "end": "suffix", "sub": "contains", "reg": "regex"}[f.match]
	switch {
	case atom.Kind == proxyconf.Host:
		atom.Value = f.host(v)
		return atom, atom.Value != ""
	case f.match == "found":
		atom.Value = "*"
		return atom, true
	}
	atom, ok := atom.Part(match, v, f.fold || len(f.converters) > 0)
	return atom, ok && known
}

// hosts returns the condition for a value that stands for several hosts, nil if it does not. As their end, and as part between dots,
// a name is here for itself and all hosts below it: others are not refused, or chosen, by whole names.
func (f fetch) hosts(atom proxyconf.Atom, v string) *proxyconf.Cond {
	switch {
	case atom.Kind != proxyconf.Host:
		return nil
	case f.match == "reg":
		return proxyconf.HostLike(v)
	case f.match == "end" && !strings.HasPrefix(v, "."), f.match == "dom" && strings.Contains(v, "."):
		name := f
		name.match = ""
		if v = name.host(v); v == "" || strings.HasPrefix(v, "-") { // the end of a part between dots
			return nil
		}
		below := atom
		atom.Value, below.Value = v, "*."+v
		return proxyconf.Either(proxyconf.When(atom), proxyconf.When(below))
	}
	return nil
}

// host returns the host of a condition, "" if a route cannot have it.
func (f fetch) host(v string) string {
	for _, conv := range f.converters {
		if conv != "lower" && conv != "host_only" && conv != "field(1" && conv != ":)" && conv != "field(1,:)" {
			return ""
		}
	}
	v = strings.ToLower(v)
	v, _, _ = strings.Cut(v, ":")
	if f.match == "end" && strings.HasPrefix(v, ".") && isHost(v[1:]) {
		return "*" + v
	}
	if (f.match == "" || f.match == "str") && isHost(v) {
		return v
	}
	return ""
}

func plainText(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' }) && strings.TrimSpace(text) == text
}

// isHost reports whether a text may be the name of a host in a route.
func isHost(text string) bool {
	last := text[strings.LastIndexByte(text, '.')+1:]
	if _, err := netip.ParseAddr(text); err != nil && strings.Trim(last, "0123456789") == "" { // neither an address nor a name
		return false
	}
	return text != "unix" && len(text) < 254 && !strings.HasPrefix(text, ".") && !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_'
	})
}

// above returns the condition on a limit, nil if there is none.
func (p *place) above(f fetch) *proxyconf.Cond {
	name := strings.TrimPrefix(strings.TrimPrefix(f.name, "src_"), "sc_")
	if len(name) > 3 && strings.HasPrefix(name, "sc") && name[3] == '_' { // sc0_http_req_rate
		name = name[4:]
	}
	if f.match != "" || len(f.converters) > 0 || len(f.values) != 2 || f.values[0] != "gt" && f.values[0] != "ge" {
		return nil
	}
	n, err := strconv.Atoi(f.values[1])
	if err != nil || n < 0 || n > 999_999 {
		return nil
	}
	if f.values[0] == "ge" {
		n--
	}
	limit := proxyconf.Limit{Kind: name, Count: max(n, 1)}
	if name != "conn_cur" {
		if name != "conn_rate" && name != "http_req_rate" {
			return nil
		}
		if limit.Per = p.c.period(name); limit.Per == "" {
			return nil
		}
	}
	return &proxyconf.Cond{Op: proxyconf.Above, Limit: limit}
}
